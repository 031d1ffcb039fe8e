"""Take turns out of what was learned: for `openclaw-rl undo` and for the page."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.status.undo_report import describe_outcome
from openclaw_rl.store.acts import ActKind
from openclaw_rl.store.db import Store
from openclaw_rl.train.undo import UndoPlan, apply_undo

DEFAULT_REASON = "undone by hand"
_TARGET_TURNS = 3


def take_back(
    store: Store,
    agreed: Sequence[UndoPlan],
    selected: Sequence[str],
    *,
    model: str,
    reason: str = DEFAULT_REASON,
    origin: ActOrigin,
) -> str:
    """Carry out the plans of `check_safe_files`, and record the act with what a receipt shows. Return the outcome.

    `selected`: the turns that were chosen; `model`: its name. Raises `OpenClawError` if another version than an agreed
    one would answer.
    """
    with store.write() as conn:
        done = apply_undo(conn, agreed, reason=reason)
        outcome = describe_outcome(model, done, len(selected))
        details = {"turns": list(selected), "plans": [_plan_details(plan) for plan in done]}
        origin.record(conn, ActKind.UNDO, _target_text(selected), outcome, details)
    return outcome


def _plan_details(plan: UndoPlan) -> dict[str, object]:
    return {
        "name": plan.name,
        "safe": plan.safe,
        "taken_out": len(plan.turns),
        "undone": plan.undone_versions,
        "batches": len(plan.batches),
        "repeated_turns": plan.repeated_turns,
    }


def _target_text(selected: Sequence[str]) -> str:
    named = ", ".join(selected[:_TARGET_TURNS])
    rest = len(selected) - _TARGET_TURNS
    return named if rest <= 0 else f"{named} and {rest} more turns"
