"""Moves of the head by hand or by the satisfaction watch: rollbacks and promotions, effective at once."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import turn_states
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import removal
from openclaw_rl.store.lineage import head_moves, policies, retraining, version_files
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.store.lineage.trained_turns import (
    turns_of_lineage,
    turns_used_before,
    uses_of_versions,
)
from openclaw_rl.types import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The effect of a rollback to version `to`."""

    name: str  # of the policy
    head: int
    to: int
    undone_versions: tuple[int, ...]  # versions, newest first
    # Ids of the turns that these versions were trained on, or that an undo in progress repeats.
    turns: tuple[str, ...]
    cancelled_batches: int  # of an undo in progress, which the rollback ends
    keep_outstanding: bool = False  # the turns of these batches return to the queue


def plan_rollback(
    conn: Connection, to: int | None, *, name: str = DEFAULT_NAME, keep_outstanding: bool = False
) -> RollbackPlan:
    """Plan a rollback of the policy `name` to version `to`; None: the parent of the head.

    `keep_outstanding`: turns that an undo was still to train on return to the queue instead of being dropped.
    Raises `OpenClawError` if `to` is no ancestor, or if its files were removed or are damaged.
    """
    head = policies.head(conn, name).version
    lineage = policies.lineage(conn, head)
    if head == 0:
        raise OpenClawError("the head is version 0, the base itself: there is nothing to roll back")
    to = lineage[1] if to is None else to
    _check_target(conn, name, to, lineage)
    undone = tuple(lineage[: lineage.index(to)])
    used = [turn for _, turn in uses_of_versions(conn, undone)]
    retained = turns_used_before(conn, undone, to)
    batches = retraining.outstanding_batches(conn, name)
    if not keep_outstanding:
        for batch in batches:
            used.extend(batch.turns)
    return RollbackPlan(
        name=name,
        head=head,
        to=to,
        undone_versions=undone,
        turns=tuple(turn for turn in dict.fromkeys(used) if turn not in retained),
        cancelled_batches=len(batches),
        keep_outstanding=keep_outstanding,
    )


def _check_target(conn: Connection, name: str, to: int, lineage: Sequence[int]) -> None:
    """Raise `OpenClawError` unless the head of a policy can go back to version `to`. `lineage`: of that head."""
    head = lineage[0]
    if to == head:
        raise OpenClawError(f"version {to} is the head already")
    target = policies.get(conn, to)
    if to not in lineage:
        if target is None:
            expected = _format_versions(lineage[1:])
            raise OpenClawError(
                f"expected an ancestor of version {head}, one of {expected}; got {to}"
            )
        cure = f"`openclaw-rl policies promote {to}` makes it the head"
        raise OpenClawError(f"version {to} is no ancestor of the head, version {head}. {cure}")
    assert target is not None, f"version {to} is an ancestor of the head"
    if policies.is_removed(target) or target.damage is not None:
        raise _unusable_error(conn, name, to, target.damage or policies.REMOVED_REASON)


def check_policy_files(store: Store, name: str, version: int) -> None:
    """Raise `OpenClawError` unless the version's files are complete and match their digests. `name`: of the policy."""
    damage = version_files.examine_files(store, version)
    if damage is None:
        return
    with store.read() as conn:
        raise _unusable_error(conn, name, version, damage)


def _unusable_error(conn: Connection, name: str, version: int, reason: str) -> OpenClawError:
    targets = _format_versions(version_files.rollback_targets(conn, name))
    return OpenClawError(
        f"version {version} cannot be served: {reason}. Versions to roll back to: {targets}"
    )


def _is_current(conn: Connection, plan: RollbackPlan) -> bool:
    """Return whether a plan would be the same if it was made again, without reading the whole lineage again."""
    target = policies.get(conn, plan.to)
    return (
        policies.head(conn, plan.name).version == plan.head
        and retraining.count_batches(conn, plan.name) == plan.cancelled_batches
        and target is not None
        and target.damage is None
        and not policies.is_removed(target)
    )


def apply_rollback(
    conn: Connection,
    agreed: RollbackPlan,
    *,
    learn_again: bool,
    reason: str,
    automatic: bool = False,
) -> int:
    """Execute the plan. Return the number of turns that are dropped, so that they never train again.

    With `learn_again` no turn is dropped. An undo in progress ends, as its batches follow the version that becomes the
    head. A step in progress on a rolled-back version publishes nothing, because `policies.publish` requires the head as
    its parent. Raises `OpenClawError` when the head has moved since planning.
    """
    if not _is_current(conn, agreed):
        # Raises with the reason if there is one for this version.
        plan_rollback(conn, agreed.to, name=agreed.name)
        raise OpenClawError(
            f"version {agreed.head} is no longer the head. Look at the new version, and repeat"
        )
    now = time.time()
    code = ReasonCode.SATISFACTION if automatic else ReasonCode.ROLLED_BACK
    head_moves.roll_back(
        conn, to=agreed.to, reason=reason, code=code, at=now, automatic=automatic, name=agreed.name
    )
    retraining.replace_batches(conn, agreed.name, ())
    if learn_again:
        return 0
    detail = f"the version trained on it was rolled back (to version {agreed.to})"
    removal.take_back(conn, agreed.turns, detail, at=now, code=ReasonCode.ROLLED_BACK)
    return len(agreed.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionPlan:
    """The effect of a promotion of version `to`."""

    name: str  # of the policy
    head: int
    to: int
    left_versions: tuple[int, ...]  # that are no longer on the head's lineage, newest first
    turns: tuple[str, ...]  # ids of the turns that these versions were trained on, and `to` was not


def plan_promotion(conn: Connection, to: int) -> PromotionPlan:
    """Plan to make version `to`, which is not on the lineage of its policy's head, that head.

    Raises `OpenClawError` if it is there already, does not exist, or has no files, and if an undo would be lost.
    """
    policy = policies.require_version(conn, to)
    head_lineage = policies.lineage(conn, policies.head(conn, policy.name).version)
    _check_promotable(policy, head_lineage)
    head = head_lineage[0]
    promoted = set(policies.lineage(conn, to))
    left = [version for version in head_lineage if version not in promoted]
    trained = dict.fromkeys(row.turn for row in turns_of_lineage(conn, to))
    _check_no_undo(conn, policy.name, to, trained)
    lost: dict[str, None] = {}
    for row in turns_of_lineage(conn, head):
        if row.version not in promoted and row.turn not in trained:
            lost[row.turn] = None
    return PromotionPlan(
        name=policy.name, head=head, to=to, left_versions=tuple(left), turns=tuple(lost)
    )


def _check_promotable(policy: Policy, head_lineage: Sequence[int]) -> None:
    """Raise `OpenClawError` for the head, an ancestor of it, and a version without files."""
    version = policy.version
    if version == head_lineage[0]:
        raise OpenClawError(f"version {version} is the head already")
    if version in head_lineage:
        raise OpenClawError(
            f"version {version} is an ancestor of the head. `openclaw-rl rollback {version}` goes back to it"
        )
    if policy.path is None or policies.is_removed(policy):
        raise OpenClawError(f"version {version} cannot be served: its files are not kept")


def _check_no_undo(conn: Connection, name: str, to: int, trained: Collection[str]) -> None:
    """Raise `OpenClawError` if a promotion would end an undo, or bring back what was undone.

    `trained`: the turns that version `to` and its ancestors were trained on.
    """
    left = retraining.count_batches(conn, name)
    if left:
        raise OpenClawError(
            f"an undo is in progress ({left} batches are left). Wait until it has ended"
        )
    undone = turn_states.taken_back(conn, list(trained), [ReasonCode.TAKEN_BACK])
    if undone:
        raise OpenClawError(
            f"version {to} was trained on {len(undone)} turns that were undone since ({undone[0]}, ...): a promotion "
            "would bring back what they taught"
        )


def apply_promotion(
    conn: Connection, agreed: PromotionPlan, *, learn_again: bool, reason: str
) -> int:
    """Execute the plan. Return the number of turns that are dropped, so that they never train again.

    Turns that a rollback dropped, and that the promoted version was trained on, count again: an undo after this trains
    them again, and their lessons come back. A step in progress publishes nothing, because `policies.publish` requires
    the head as its parent. Raises `OpenClawError` when the head has moved since planning.
    """
    if plan_promotion(conn, agreed.to) != agreed:
        raise OpenClawError(
            f"version {agreed.head} is no longer the head. Look at the new version, and repeat"
        )
    now = time.time()
    head_moves.promote(conn, to=agreed.to, reason=reason, at=now)
    removal.give_back(conn, {row.turn for row in turns_of_lineage(conn, agreed.to)}, at=now)
    if learn_again:
        return 0
    detail = f"a version that was not trained on it was promoted (version {agreed.to})"
    removal.take_back(conn, agreed.turns, detail, at=now, code=ReasonCode.PROMOTED)
    return len(agreed.turns)


def _format_versions(versions: Sequence[int], most: int = 12) -> str:
    return ", ".join(map(str, versions[:most])) + (
        f", ... {versions[-1]}" if len(versions) > most else ""
    )
