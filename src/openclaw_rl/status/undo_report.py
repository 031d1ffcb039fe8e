"""The sentences on an undo, in the terminal and on the page: what it takes out, what it costs, and how far it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.common.printable import cut_text
from openclaw_rl.store import heartbeats
from openclaw_rl.store.lineage import policy_marks, retraining
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, SHARED_NAME
from openclaw_rl.train.undo import SHOWN_CHARS, MatchedHint, UndoPlan

_TRAINER = "train"


def count_text(number: int, one: str, several: str | None = None) -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def format_versions(versions: Sequence[int], most: int = 8) -> str:
    named = ", ".join(map(str, versions[:most]))
    return named if len(versions) <= most else f"{named}, ... {versions[-1]}"


def format_seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def policy_label(name: str) -> str:
    """Return a prefix for text on a policy; none for the default policy."""
    if name == DEFAULT_NAME:
        return ""
    return "the start of new policies: " if name == SHARED_NAME else f"{name}: "


def describe_hints(hints: Sequence[MatchedHint]) -> list[str]:
    """Return a line for each hint that `--lesson` means."""
    lines = [
        f"{hint.id}  {cut_text(hint.text, SHOWN_CHARS)} ({count_text(len(hint.turns), 'turn')})"
        for hint in hints
    ]
    return ["hints and lessons that match:", *(f"  {line}" for line in lines)] if lines else []


def count_taken_out(plan: UndoPlan, chosen: Collection[str]) -> str:
    """Return how many of the chosen replies a plan takes out, and how many of practice that were made from them."""
    own = len(set(plan.turns).intersection(chosen))
    practice = len(plan.turns) - own
    text = count_text(own, "reply", "replies")
    if not practice:
        return text
    practised = f"{count_text(practice, 'reply', 'replies')} of practice"
    return f"{text} and {practised}" if own else practised


def describe_plan(plan: UndoPlan, chosen: Collection[str] | None = None) -> list[str]:
    """Return what the undo does and what it costs, a line each.

    `chosen`: the turns that were selected, for a text that counts practice apart.
    """
    turns = count_text(len(plan.turns), "turn")
    count = turns if chosen is None else count_taken_out(plan, chosen)
    undone = plan.undone_versions[::-1]
    label = policy_label(plan.name)
    if not plan.used_by:
        return [f"{label}{count} taken out of the training queue; no version was trained on them"]
    lines = [
        f"{label}{count} taken out; versions trained on them: {format_versions(plan.used_by)}",
        f"{count_text(len(undone), 'version')} rolled back: {format_versions(undone)}; "
        f"version {plan.safe} answers meanwhile",
    ]
    if not plan.is_exact:
        lines.append(
            f"version {plan.safe} no longer has its optimizer state: the result is not the same to the bit"
        )
    if plan.work.sizes:
        batches = count_text(len(plan.work.sizes), "batch", "batches")
        turns = count_text(plan.work.turns, "turn")
        low = format_seconds(plan.seconds[0])
        high = format_seconds(plan.seconds[1])
        lines.append(
            f"{batches} of {turns} trained on again: about {low} to {high}, "
            f"at most {plan.disk_bytes / 1e6:.3g} MB on disk"
        )
    return lines


def describe_outcome(model: str, plans: Sequence[UndoPlan], selected: int) -> str:
    """Return what an undo has done. `selected`: number of the turns that were chosen."""
    safe = ", ".join(f"{policy_label(plan.name)}version {plan.safe}" for plan in plans)
    return f"{model} is {safe} now; {count_text(selected, 'turn')} never trained on again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainingState:
    """How many batches of an undo are left, and whether anything trains on them."""

    left: int
    is_trainer_alive: bool
    is_frozen: bool


def retraining_state(
    conn: Connection, now: float, names: Collection[str] | None = None
) -> RetrainingState:
    """Return how far the undo in progress is. `names`: only of these policies."""
    if names is None:
        left = retraining.count_batches(conn)
    else:
        left = sum(retraining.count_batches(conn, name) for name in names)
    beats = heartbeats.read_heartbeats(conn)
    return RetrainingState(
        left=left,
        is_trainer_alive=any(beat.name == _TRAINER and beat.is_alive(now) for beat in beats),
        is_frozen=policy_marks.frozen_since(conn) is not None,
    )


def frozen_text(left: int) -> str:
    return f"training is frozen: {left} batches wait for `openclaw-rl policies unfreeze`"


def no_trainer_text(left: int) -> str:
    rest = count_text(left, "batch is", "batches are")
    return (
        f"no trainer runs, and {rest} left to train on again: start the system\n"
        "(`openclaw-rl up`), or train now (`openclaw-rl undo --now`)"
    )


def blocked_text(state: RetrainingState) -> str:
    """Return why nothing trains on the batches that are left, and what to do; "" if a trainer works on them."""
    if not state.left:
        return ""
    if state.is_frozen:
        return frozen_text(state.left)
    return "" if state.is_trainer_alive else no_trainer_text(state.left)
