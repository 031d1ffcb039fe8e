"""Marks on policy versions: which are pinned, whether training is frozen, and the last rollback or promotion."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, read_heads, record_change
from openclaw_rl.store.rows import from_json, to_json

_PINNED_KEY = "pinned_versions"
_FROZEN_KEY = "training_frozen"
_MOVE_KEY = "last_head_move"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMove:
    """A move of the head that was no publication: a rollback or a promotion."""

    old: int  # the head before
    to: int
    left: list[int]  # versions that are no longer on the head's lineage, newest first
    reason: str
    automatic: bool  # whether the satisfaction watch moved it
    after: int  # number of the newest exchange at that time
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryMark:
    """A candidate answers a share of the conversations."""

    version: int
    share: float
    after: int  # number of the newest exchange when it began
    at: float  # seconds since the epoch


def begin_canary(conn: Connection, name: str, version: int, share: float, at: float) -> None:
    """Let a candidate of the policy `name` answer this share of the conversations."""
    _write(
        conn,
        _canary_key(name),
        asdict(CanaryMark(version=version, share=share, after=_last_seq(conn), at=at)),
    )
    record_change(conn)


def end_canary(conn: Connection, name: str) -> None:
    conn.execute(delete(t.meta).where(t.meta.c.key == _canary_key(name)))
    record_change(conn)


def find_canary(conn: Connection, name: str) -> CanaryMark | None:
    """Return the canary of a policy, or None."""
    mark = _read(conn, _canary_key(name))
    return None if mark is None else CanaryMark(**mark)


def all_canaries(conn: Connection) -> dict[str, CanaryMark]:
    """Return the canaries by the name of their policy."""
    prefix = _canary_key("")
    rows = conn.execute(select(t.meta.c.key, t.meta.c.value).where(t.meta.c.key.startswith(prefix)))
    return {key.removeprefix(prefix): CanaryMark(**from_json(value)) for key, value in rows}


def _canary_key(name: str) -> str:
    return f"canary:{name}"


def _last_seq(conn: Connection) -> int:
    return int(conn.execute(select(func.coalesce(func.max(t.exchanges.c.seq), 0))).scalar_one())


def record_head_move(
    conn: Connection,
    name: str,
    *,
    old: int,
    to: int,
    left: list[int],
    reason: str,
    automatic: bool,
    at: float,
) -> None:
    """Record the move as the last one of the policy `name`.

    Satisfaction is compared only over turns that were admitted after it.
    """
    after = _last_seq(conn)
    move = HeadMove(
        old=old, to=to, left=left, reason=reason, automatic=automatic, after=after, at=at
    )
    _write(conn, _move_key(name), asdict(move))


def last_head_move(conn: Connection, name: str = DEFAULT_NAME) -> HeadMove | None:
    """Return the last rollback or promotion of a policy; None if there was none."""
    move = _read(conn, _move_key(name))
    return None if move is None else HeadMove(**move)


def last_automatic_rollback(conn: Connection) -> HeadMove | None:
    """Return the newest automatic rollback that is the last move of its policy, or None."""
    moves = [last_head_move(conn, name) for name in read_heads(conn)]
    return max(
        (move for move in moves if move is not None and move.automatic),
        key=lambda move: move.at,
        default=None,
    )


def _move_key(name: str) -> str:
    return _MOVE_KEY if name == DEFAULT_NAME else f"{_MOVE_KEY}:{name}"


def pin_version(conn: Connection, version: int) -> None:
    """Keep the files of a version until it is unpinned."""
    _write(conn, _PINNED_KEY, sorted(pinned_versions(conn) | {version}))


def unpin_version(conn: Connection, version: int) -> None:
    """Let the files of a version be removed as the settings say."""
    _write(conn, _PINNED_KEY, sorted(pinned_versions(conn) - {version}))


def pinned_versions(conn: Connection) -> set[int]:
    return set(_read(conn, _PINNED_KEY) or ())


def freeze_training(conn: Connection, at: float) -> None:
    """Stop steps and automatic rollbacks until `unfreeze_training`. A freeze that exists keeps its time."""
    if frozen_since(conn) is None:
        _write(conn, _FROZEN_KEY, at)


def unfreeze_training(conn: Connection) -> None:
    conn.execute(delete(t.meta).where(t.meta.c.key == _FROZEN_KEY))


def frozen_since(conn: Connection) -> float | None:
    """Return when training was frozen, in seconds since the epoch; None if it is not."""
    since = _read(conn, _FROZEN_KEY)
    return None if since is None else float(since)


def _read(conn: Connection, key: str) -> Any:
    raw = conn.scalar(select(t.meta.c.value).where(t.meta.c.key == key))
    return None if raw is None else from_json(raw)


def _write(conn: Connection, key: str, value: Any) -> None:
    row = {"key": key, "value": to_json(value)}
    conn.execute(insert(t.meta).values(row).on_conflict_do_update(index_elements=["key"], set_=row))
