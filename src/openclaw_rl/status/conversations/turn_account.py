"""Sentences on one turn: the verdict on it, and whether it was learned from, and if not, why and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.status.report import CURES
from openclaw_rl.status.sentences import score_word
from openclaw_rl.store.behaviour.observations import BEHAVIOUR_JUDGE, is_signal
from openclaw_rl.types import Turn, TurnState, Verdict

_CODE_WORDS = {
    ReasonCode.SIDE: "side traffic, such as titles and summaries",
    ReasonCode.REDACTED: "stored without its text",
    ReasonCode.SESSION_DONE: "the conversation ended without a reaction",
    ReasonCode.TIMEOUT: "nobody reacted in time",
    ReasonCode.GREEDY: "greedy sampling (temperature 0)",
    ReasonCode.STATED: "stated by its source",
}


def code_words(code: ReasonCode) -> str:
    """Return a short name of a group of reasons."""
    return _CODE_WORDS.get(code, code.value.replace("_", " "))


def judge_words(verdict: Verdict) -> str:
    """Return who gave a verdict."""
    if verdict.explicit:
        return "the person"
    if is_signal(verdict.judge):
        return f"what the person did ({verdict.judge.removeprefix(BEHAVIOUR_JUDGE)})"
    return f"judge {verdict.judge.partition('@')[0]}"


def verdict_account(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict in words, as plain JSON."""
    return {
        "word": score_word(verdict.score),
        "score": verdict.score,
        "by": judge_words(verdict),
        "judge": verdict.judge,
        "reason": verdict.reason,
        "hints": list(verdict.hints),
        "votes": [
            {"word": score_word(vote.score), "reason": vote.error or vote.reason}
            for vote in verdict.votes
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAccount:
    """Whether a turn was learned from. `cure`: what makes the next ones trainable; "": nothing does."""

    text: str
    cure: str = ""
    code: ReasonCode | None = None


def training_account(
    turn: Turn, verdict: Verdict | None, versions: Sequence[int]
) -> TrainingAccount:
    """Return whether a turn was learned from, or why not. `versions`: those that used it."""
    if versions:
        listed = ", ".join(str(version) for version in versions)
        text = f"Learned from in version {listed}."
        if turn.state is TurnState.DROPPED and turn.reason:
            text += f" It is not used again: {turn.reason}."
        return TrainingAccount(text=text, code=turn.cause)
    if turn.untrainable_code is not None:
        return TrainingAccount(
            text=f"Not learned from: {turn.untrainable}.",
            cure=CURES.get(turn.untrainable_code, ""),
            code=turn.untrainable_code,
        )
    if turn.state is TurnState.DROPPED:
        return TrainingAccount(
            text=f"Not learned from: {turn.reason or 'it was dropped'}.", code=turn.cause
        )
    return TrainingAccount(text=_waiting_text(turn.state, verdict))


def _waiting_text(state: TurnState, verdict: Verdict | None) -> str:
    if state is TurnState.SERVED:
        return "Not learned from yet: nobody has reacted to it."
    if state is TurnState.CLOSED or verdict is None:
        return "Not learned from yet: the reaction waits for its verdict."
    if verdict.score or verdict.hints:
        return "Not learned from yet: it waits for the next training step."
    if verdict.score is None:
        return "Not learned from: the reaction was not understood. A score of yours would say it."
    return "Not learned from: the reaction says nothing about the reply."
