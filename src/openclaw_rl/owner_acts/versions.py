"""Acts on policy versions, by a command or on the page. Each is one transaction with its row of the audit."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.store.acts import ActKind
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks, retraining
from openclaw_rl.train.rollback import (
    PromotionPlan,
    RollbackPlan,
    apply_promotion,
    apply_rollback,
)

TRAINING_TARGET = "training"
"""Target of a freeze in the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTraining:
    """Result of a freeze. `waiting_batches`: of an undo in progress, which waits, too."""

    head: int
    waiting_batches: int


def pin_version(store: Store, version: int, origin: ActOrigin) -> None:
    """Keep the files of a version. Raises `OpenClawError` if it has none."""
    with store.write() as conn:
        policy = policies.require_version(conn, version)
        if policy.path is None or policies.is_removed(policy):
            raise OpenClawError(
                f"version {version} has no files to keep; `openclaw-rl policies list` shows which have"
            )
        policy_marks.pin_version(conn, version)
        origin.record(conn, ActKind.PIN_VERSION, str(version), f"version {version} is pinned")


def unpin_version(store: Store, version: int, origin: ActOrigin) -> None:
    """Let the files of a version be removed as the settings say. Raises `OpenClawError` if it is not pinned."""
    with store.write() as conn:
        policies.require_version(conn, version)
        if version not in policy_marks.pinned_versions(conn):
            raise OpenClawError(
                f"version {version} is not pinned; `openclaw-rl policies list` shows those that are"
            )
        policy_marks.unpin_version(conn, version)
        outcome = f"version {version} is no longer pinned"
        origin.record(conn, ActKind.UNPIN_VERSION, str(version), outcome)


def freeze_training(store: Store, origin: ActOrigin) -> FrozenTraining:
    """Take no training step and no automatic rollback until `unfreeze_training`."""
    with store.write() as conn:
        head = policies.head(conn).version
        batches = retraining.count_batches(conn)
        policy_marks.freeze_training(conn, origin.at)
        outcome = f"training is frozen at version {head}"
        origin.record(conn, ActKind.FREEZE, TRAINING_TARGET, outcome)
    return FrozenTraining(head=head, waiting_batches=batches)


def unfreeze_training(store: Store, origin: ActOrigin) -> None:
    """Continue training. Raises `OpenClawError` if it is not frozen."""
    with store.write() as conn:
        if policy_marks.frozen_since(conn) is None:
            raise OpenClawError("training is not frozen; there is nothing to do")
        policy_marks.unfreeze_training(conn)
        origin.record(conn, ActKind.UNFREEZE, TRAINING_TARGET, "training continues")


def roll_back(
    store: Store, agreed: RollbackPlan, *, learn_again: bool, reason: str, origin: ActOrigin
) -> int:
    """Execute the plan. Return the number of turns that are removed from training.

    The caller has checked the files of the version (`train.rollback.check_policy_files`). Raises `OpenClawError` if the
    head has moved since planning.
    """
    with store.write() as conn:
        removed = apply_rollback(conn, agreed, learn_again=learn_again, reason=reason)
        outcome = f"rolled back to version {agreed.to}, {removed} turns removed from training"
        origin.record(conn, ActKind.ROLL_BACK, str(agreed.to), outcome)
    return removed


def promote_version(
    store: Store, agreed: PromotionPlan, *, learn_again: bool, reason: str, origin: ActOrigin
) -> int:
    """Execute the plan. Return the number of turns that are removed from training. Otherwise like `roll_back`."""
    with store.write() as conn:
        removed = apply_promotion(conn, agreed, learn_again=learn_again, reason=reason)
        outcome = f"version {agreed.to} was promoted, {removed} turns removed from training"
        origin.record(conn, ActKind.PROMOTE, str(agreed.to), outcome)
    return removed
