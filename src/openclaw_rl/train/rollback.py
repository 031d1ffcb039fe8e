"""`openclaw-rl rollback`: take back what was learned. An earlier version answers again, at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.common.policy_digest import digest_of
from openclaw_rl.errors import OpenClawError
from openclaw_rl.store import policies, turn_states
from openclaw_rl.store.turn_states import Cause
from openclaw_rl.types import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What going back to version `to` would take back."""

    head: int
    to: int
    undone: tuple[int, ...]  # versions, newest first
    turns: tuple[str, ...]  # that these versions learned from


def plan(conn: Connection, to: int | None) -> Plan:
    """`to` None: the version before the head. Raises `OpenClawError` where there is no way back to it."""
    head = policies.head(conn).version
    line = policies.lineage(conn, head)
    if head == 0:
        raise OpenClawError("version 0, the base itself, answers: nothing was learned that could be taken back")
    to = line[1] if to is None else to
    if to not in line[1:]:
        raise OpenClawError(f"expected a version that {head} was trained from, one of {_words(line[1:])}; got {to}")
    undone = tuple(line[: line.index(to)])
    turns = dict.fromkeys(use.turn for version in reversed(undone) for use in policies.uses(conn, version))
    return Plan(head=head, to=to, undone=undone, turns=tuple(turns))


def check(policy: Policy) -> None:
    """What is to answer has to be there, whole. Raises `OpenClawError`."""
    if policy.path is None:
        return
    try:
        found = digest_of(Path(policy.path))
    except OSError as error:
        raise OpenClawError(
            f"version {policy.version} cannot answer: {error}. Weights of old whole models are thinned out "
            "(train.keep_checkpoints); name another version, 0 is the base"
        ) from None
    if found != policy.digest:
        raise OpenClawError(
            f"version {policy.version} cannot answer: the files in {policy.path} were changed after training "
            f"(digest {found[:12]}, expected {policy.digest[:12]}). Restore them, or name another version"
        )


def take_back(conn: Connection, agreed: Plan, *, learn_again: bool, reason: str) -> int:
    """Carry the plan out. Returns the number of turns that are taken out, so that they never train again.

    With `learn_again` they stay. A step that is being made on what is taken back publishes nothing (`policies.publish`
    wants the head for its parent). Raises `OpenClawError` when the head has moved since the plan was made.
    """
    if plan(conn, agreed.to) != agreed:
        raise OpenClawError(f"version {agreed.head} no longer answers: it learned meanwhile. Look again, and repeat")
    now = time.time()
    policies.roll_back(conn, to=agreed.to, reason=reason, at=now)
    if learn_again:
        return 0
    why = f"what was learned from it was taken back (to version {agreed.to})"
    return turn_states.drop_all(conn, agreed.turns, Cause.TAKEN_BACK, why, at=now)


def _words(versions: list[int], most: int = 12) -> str:
    return ", ".join(map(str, versions[:most])) + (f", ... {versions[-1]}" if len(versions) > most else "")
