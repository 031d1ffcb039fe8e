"""The batches that an undo trains on again, in their order. Finished ones are removed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, or_, select

from openclaw_rl.reasons import TAKEN_BACK_CODES, ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.trained_turns import (
    count_uses,
    replayed_uses,
    turns_used_before,
    used_by_lineage,
    uses_in_versions,
    uses_of_versions,
)
from openclaw_rl.store.lineage.training_queue import load_judged_turns
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.types import JudgedTurn, Kind, RepeatedBatch

_LEFT_OUT = sorted(TAKEN_BACK_CODES | {ReasonCode.SET_ASIDE, ReasonCode.DAMAGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneVersions:
    """The versions that an undo rolls back. Their batches are trained on again, without the turns that it takes out."""

    versions: tuple[int, ...]
    safe: int
    """The version that training continues from."""
    left: tuple[RepeatedBatch, ...]
    """Batches of an earlier undo, which come after those of the versions."""
    taken_out: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedWork:
    """The size of what an undo trains on again. `sizes`: (undone version, number of turns) of each batch, in order."""

    sizes: tuple[tuple[int, int], ...] = ()
    turns: int = 0
    """Number of different turns."""


def outstanding_batches(conn: Connection, name: str) -> list[RepeatedBatch]:
    """Return the batches that are left of the policy `name`, in their order."""
    return _read_batches(conn, name, None)


def _read_batches(conn: Connection, name: str, limit: int | None) -> list[RepeatedBatch]:
    query = select(t.retraining).where(t.retraining.c.name == name)
    rows = conn.execute(query.order_by(t.retraining.c.seq).limit(limit))
    return [
        RepeatedBatch(repeats=row.repeats, turns=tuple(from_json(row.turns)), place=row.seq)
        for row in rows
    ]


def first_batch(conn: Connection, name: str) -> RepeatedBatch | None:
    """Return the batch of the policy `name` that is next; None if no undo of it is in progress."""
    return next(iter(_read_batches(conn, name, 1)), None)


def count_batches(conn: Connection, name: str | None = None) -> int:
    """Return the number of batches that are left, of one policy or of all."""
    counted = select(func.count()).select_from(t.retraining)
    return int(
        conn.execute(
            counted if name is None else counted.where(t.retraining.c.name == name)
        ).scalar_one()
    )


def names_with_batches(conn: Connection) -> set[str]:
    """Return the policies of which an undo is in progress."""
    return set(conn.execute(select(t.retraining.c.name).distinct()).scalars())


def replace_batches(conn: Connection, name: str, batches: Iterable[RepeatedBatch]) -> None:
    """Write these batches in place of all that are left of the policy `name`; their places are new."""
    conn.execute(delete(t.retraining).where(t.retraining.c.name == name))
    rows = [
        {"name": name, "repeats": batch.repeats, "turns": to_json(batch.turns)} for batch in batches
    ]
    if rows:
        conn.execute(insert(t.retraining), rows)


def remove_batch(conn: Connection, place: int) -> None:
    """Remove the batch that is finished."""
    conn.execute(delete(t.retraining).where(t.retraining.c.seq == place))


def repeatable_turns(conn: Connection, ids: Sequence[str]) -> list[JudgedTurn]:
    """Return those of the turns that may be trained on again, in the given order, with their current verdicts.

    Turns that were erased, taken back, set aside or found untrainable since are left out. Raises `DamagedRow`.
    """
    c = t.turns.c
    fit = select(c.id).where(
        c.id.in_(list(ids)),
        c.untrainable.is_(None),
        c.kind.in_([Kind.MAIN.value, Kind.PRACTICE.value]),
        or_(c.cause.is_(None), c.cause.not_in(_LEFT_OUT)),
        c.id.in_(select(t.verdicts.c.turn)),
    )
    turns_by_id = {
        item.turn.id: item for item in load_judged_turns(conn, list(conn.execute(fit).scalars()))
    }
    return [turns_by_id[id_] for id_ in ids if id_ in turns_by_id]


def progress_reports(conn: Connection) -> list[str]:
    """Return a line if an undo is in progress, else nothing."""
    left = count_batches(conn)
    if not left:
        return []
    batches = "1 batch" if left == 1 else f"{left} batches"
    query = select(t.retraining.c.name).distinct().order_by(t.retraining.c.name)
    names = conn.execute(query).scalars().all()
    heads = ", ".join(str(policies.head(conn, name).version) for name in names)
    answers = f"version {heads} answers" if len(names) == 1 else f"versions {heads} answer"
    return [f"an undo is in progress: {batches} left to train on again; {answers}"]


def batches_of_undone(conn: Connection, undone: UndoneVersions) -> list[RepeatedBatch]:
    """Return the batches that are trained on again, in their order.

    Batches without new turns fall out, as no step is taken on replays alone.
    """
    turns_of_version: dict[int, list[str]] = {}
    for version, turn in uses_of_versions(conn, undone.versions):
        turns_of_version.setdefault(version, []).append(turn)
    left_turns = {turn for batch in undone.left for turn in batch.turns}
    seen = turns_used_before(conn, undone.versions, undone.safe)
    seen |= used_by_lineage(conn, undone.safe, left_turns)
    again = [RepeatedBatch(repeats=v, turns=tuple(ids)) for v, ids in turns_of_version.items()]
    batches = []
    for batch in (*again, *undone.left):
        remaining = _without(batch.turns, undone.taken_out)
        if not seen.issuperset(remaining):
            batches.append(RepeatedBatch(repeats=batch.repeats, turns=remaining))
            seen.update(remaining)
    return batches


def count_work(conn: Connection, undone: UndoneVersions) -> RepeatedWork:
    """Return the size of `batches_of_undone`, without reading the turns that an undone version was the first to use.

    Most turns are used once. A version that is still the first to use one is trained again.
    """
    replays: dict[int, list[str]] = {}
    for version, turn in replayed_uses(conn, undone.versions):
        replays.setdefault(version, []).append(turn)
    sought = {turn for turns in replays.values() for turn in turns}
    sought.update(turn for batch in undone.left for turn in batch.turns)
    first_uses = count_uses(conn, undone.versions)
    for version, again in replays.items():
        first_uses[version] -= len(again)
    first_used: set[str] = set()
    for use in uses_in_versions(conn, undone.versions, sought | undone.taken_out):
        if use.number == 1 and use.turn in undone.taken_out:
            first_uses[use.policy] -= 1
        elif use.number == 1:
            first_used.add(use.turn)
    batches = []
    for version in sorted(first_uses):
        batches.append((version, first_uses[version], tuple(replays.get(version, ()))))
    batches += [(batch.repeats, 0, batch.turns) for batch in undone.left]
    seen = used_by_lineage(conn, undone.safe, sought) | first_used
    sizes = []
    others: set[str] = set()
    for version, first, turns in batches:
        remaining = _without(turns, undone.taken_out)
        if first or not seen.issuperset(remaining):
            sizes.append((version, first + len(remaining)))
            seen.update(remaining)
            others.update(remaining)
    different = sum(first_uses.values()) + len(others - first_used)
    return RepeatedWork(sizes=tuple(sizes), turns=different)


def _without(turns: tuple[str, ...], taken_out: frozenset[str]) -> tuple[str, ...]:
    if taken_out.isdisjoint(turns):
        return turns
    return tuple(turn for turn in turns if turn not in taken_out)
