"""`openclaw-rl rollback`: make an earlier version the head again, effective at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.errors import OpenClawError
from openclaw_rl.store import policies, turn_states
from openclaw_rl.types import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The effect of a rollback to version `to`."""

    head: int
    to: int
    undone_versions: tuple[int, ...]  # versions, newest first
    turns: tuple[str, ...]  # ids of the turns that these versions were trained on


def plan_rollback(conn: Connection, to: int | None) -> RollbackPlan:
    """Plan a rollback to version `to`; None: the parent of the head. Raises `OpenClawError` if `to` is no ancestor."""
    head = policies.head(conn).version
    line = policies.lineage(conn, head)
    if head == 0:
        raise OpenClawError("the head is version 0, the base itself: there is nothing to roll back")
    to = line[1] if to is None else to
    if to not in line[1:]:
        raise OpenClawError(f"expected an ancestor of version {head}, one of {_format_versions(line[1:])}; got {to}")
    undone = tuple(line[: line.index(to)])
    turns = dict.fromkeys(use.turn for version in reversed(undone) for use in policies.uses_of_version(conn, version))
    return RollbackPlan(head=head, to=to, undone_versions=undone, turns=tuple(turns))


def check_policy_files(policy: Policy) -> None:
    """Raise `OpenClawError` unless the version's files are complete and match its digest."""
    if policy.path is None:
        return
    try:
        found = digest_of_folder(Path(policy.path))
    except OSError as error:
        raise OpenClawError(
            f"version {policy.version} cannot be served: {error}. Weights of old full models are pruned "
            "(train.checkpoint.keep); choose another version, 0 is the base"
        ) from None
    if found != policy.digest:
        raise OpenClawError(
            f"version {policy.version} cannot be served: the files in {policy.path} were changed after training "
            f"(digest {found[:12]}, expected {policy.digest[:12]}). Restore them, or choose another version"
        )


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
