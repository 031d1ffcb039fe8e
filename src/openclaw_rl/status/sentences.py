"""Sentences that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.common.progress import Wait

SENDERS = {"person": "messages of people", "tool": "results of tools"}
"""Who reacted, by the kind of the reaction."""
WAITS = {
    Wait.TURNS: "more reactions, because a step needs a batch of them",
    Wait.TRAINER: "the program that takes the steps",
    Wait.LEASE: "another trainer that works on this home",
    Wait.MAX_STEPS: "nothing: train.max_steps is reached",
    Wait.FROZEN: "the owner, who has frozen the training",
    Wait.SETTLING: "new scores, after a version was rolled back",
    Wait.GATE: "evidence on a candidate version",
}
"""What a worker waits for."""
WORKERS = {
    "gateway": "takes requests",
    "engine": "writes the replies",
    "collect": "links reactions to replies",
    "judge": "reads the reactions",
    "train": "learns from the verdicts",
    "supervisor": "keeps the others running",
    "page": "shows this page",
}
"""Part of the work that a worker does."""
_SCORES = {1: "good", -1: "not good", 0: "neither", None: "no opinion"}


def score_word(score: int | None) -> str:
    """Return a score for people: good, not good, neither, or no opinion."""
    return _SCORES.get(score, str(score))


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 turn` or `2 turns`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def health_sentence(
    problems: Sequence[str], rows: Sequence[Mapping[str, Any]], heads: Mapping[str, int]
) -> str:
    """Return in one sentence whether all is well.

    `problems`: names of diagnoses; `rows`: of the workers; `heads`: versions in use by policy.
    """
    if problems:
        verb = "needs" if len(problems) == 1 else "need"
        return f"{count_of(len(problems), 'thing')} {verb} your attention: {', '.join(problems)}."
    silent = [row["name"] for row in rows if not row["alive"]]
    if silent:
        return f"These workers do not respond: {', '.join(silent)}."
    if not rows:
        return "No worker has started yet."
    if len(heads) > 1:
        return f"All is well: {len(heads)} policies answer, each with its own version."
    return f"All is well: version {next(iter(heads.values()))} answers."


def understood_sentence(kind: str, row: Mapping[str, Any]) -> str:
    """Return what share of the newest reactions of a kind was understood."""
    return f"{row['understood']} of {row['judged']} {SENDERS.get(kind, kind)}"
