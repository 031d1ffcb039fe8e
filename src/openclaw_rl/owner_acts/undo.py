"""Take turns out of what was learned: for `openclaw-rl undo` and for the page."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.status.undo_report import describe_outcome
from openclaw_rl.store.acts import ActKind
from openclaw_rl.store.db import Store
from openclaw_rl.train.undo import UndoPlan, apply_undo

DEFAULT_REASON = "undone by hand"
PLAN_CHANGED = (
    "the plan has changed meanwhile, so nothing was taken back. Close this and look again"
)
_TARGET_TURNS = 3


def take_back(
    store: Store,
    agreed: Sequence[UndoPlan],
    selected: Sequence[str],
    *,
    model: str,
    reason: str = DEFAULT_REASON,
    origin: ActOrigin,
    is_exact: bool = False,
) -> str:
    """Carry out the plans of `check_safe_files`, and record the act with what a receipt shows. Return the outcome.

    `selected`: the turns that were chosen; `model`: its name; `is_exact`: versions that were published since planning
    do not go, too. Raises `OpenClawError` if another version than an agreed one would answer, or with `is_exact` if
    anything would differ from the plans.
    """
    with store.write() as conn:
        done = apply_undo(conn, agreed, reason=reason)
        if is_exact and list(map(plan_key, done)) != list(map(plan_key, agreed)):
            raise OpenClawError(PLAN_CHANGED)
        outcome = describe_outcome(model, done, len(selected))
        details = {"turns": list(selected), "plans": [_plan_details(plan) for plan in done]}
        origin.record(conn, ActKind.UNDO, _target_text(selected), outcome, details)
    return outcome


def plan_key(plan: UndoPlan) -> tuple[str, int | None, tuple[int, ...], int]:
    """Return what a person agrees to in a plan; where no version is undone, it does not matter which one answers."""
    safe = plan.safe if plan.undone_versions else None
    return plan.name, safe, plan.undone_versions, len(plan.turns)


def _plan_details(plan: UndoPlan) -> dict[str, object]:
    return {
        "name": plan.name,
        "safe": plan.safe,
        "taken_out": len(plan.turns),
        "undone": plan.undone_versions,
        "batches": len(plan.work.sizes),
        "repeated_turns": plan.work.turns,
    }


def _target_text(selected: Sequence[str]) -> str:
    named = ", ".join(selected[:_TARGET_TURNS])
    rest = len(selected) - _TARGET_TURNS
    return named if rest <= 0 else f"{named} and {rest} more turns"
