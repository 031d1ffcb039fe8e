"""`openclaw-rl rollback`: make an earlier version the head again, effective at once."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.store import policies, turn_states
from openclaw_rl.store.db import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The effect of a rollback to version `to`."""

    head: int
    to: int
    undone_versions: tuple[int, ...]  # versions, newest first
    turns: tuple[str, ...]  # ids of the turns that these versions were trained on


def plan_rollback(conn: Connection, to: int | None) -> RollbackPlan:
    """Plan a rollback to version `to`; None: the parent of the head.

    Raises `OpenClawError` if `to` is no ancestor, or if its files were removed or are damaged.
    """
    head = policies.head(conn).version
    line = policies.lineage(conn, head)
    if head == 0:
        raise OpenClawError("the head is version 0, the base itself: there is nothing to roll back")
    to = line[1] if to is None else to
    if to not in line[1:]:
        raise OpenClawError(f"expected an ancestor of version {head}, one of {_format_versions(line[1:])}; got {to}")
    target = policies.get(conn, to)
    assert target is not None, f"version {to} is an ancestor of the head"
    if policies.is_removed(target) or target.damage is not None:
        raise _unusable_error(conn, to, target.damage or policies.REMOVED_REASON)
    undone = tuple(line[: line.index(to)])
    turns = dict.fromkeys(use.turn for version in reversed(undone) for use in policies.uses_of_version(conn, version))
    return RollbackPlan(head=head, to=to, undone_versions=undone, turns=tuple(turns))


def check_policy_files(store: Store, version: int) -> None:
    """Raise `OpenClawError` unless the version's files are complete and match their digests."""
    if (damage := policies.examine_files(store, version)) is not None:
        with store.read() as conn:
            raise _unusable_error(conn, version, damage)


def _unusable_error(conn: Connection, version: int, reason: str) -> OpenClawError:
    targets = _format_versions(policies.rollback_targets(conn))
    return OpenClawError(f"version {version} cannot be served: {reason}. Versions to roll back to: {targets}")


def apply_rollback(conn: Connection, agreed: RollbackPlan, *, learn_again: bool, reason: str) -> int:
    """Execute the plan. Return the number of turns that are dropped, so that they never train again.

    With `learn_again` no turn is dropped. A step in progress on a rolled-back version publishes nothing, because
    `policies.publish` requires the head as its parent. Raises `OpenClawError` when the head has moved since planning.
    """
    if plan_rollback(conn, agreed.to) != agreed:
        raise OpenClawError(f"version {agreed.head} is no longer the head. Look at the new version, and repeat")
    now = time.time()
    policies.roll_back(conn, to=agreed.to, reason=reason, at=now)
    if learn_again:
        return 0
    why = f"the version trained on it was rolled back (to version {agreed.to})"
    turn_states.take_back(conn, agreed.turns, why, at=now)
    return len(agreed.turns)


def _format_versions(versions: list[int], most: int = 12) -> str:
    return ", ".join(map(str, versions[:most])) + (f", ... {versions[-1]}" if len(versions) > most else "")
