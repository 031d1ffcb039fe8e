"""Verdicts from explicit user feedback (scores, corrections), which outrank every judge. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openclaw_rl.judge.voting import distinct_hints, make_verdict
from openclaw_rl.types import Feedback, JudgeInput, Verdict, Vote

JUDGE_NAME = "explicit"


def explicit_verdict(item: JudgeInput, at: float | None = None) -> Verdict | None:
    """Return the verdict that explicit feedback determines alone; None if a judge is needed or there is no feedback.

    The latest of several scores of one person counts, and the majority of several people; with as many for as against
    it is 0. Corrections become hints. With a correction but no score, the judge gives the score (see
    `apply_corrections`) if there is anything to judge. A comment is evidence for the judge, not a verdict.
    """
    feedback = sorted(item.reaction.feedback, key=lambda one: one.given_at)
    has_evidence = bool(item.reaction.messages)
    votes = []
    for one in feedback:
        votes.append(Vote(score=one.score, hint=one.correction, reason=one.comment or ""))
        if one.comment:
            has_evidence = True
    hints = distinct_hints(one.correction for one in feedback)
    score = _combine_scores(feedback)
    reason = "explicit feedback: score nothing"
    if score is not None:
        reason = f"explicit feedback: score {score:+d}"
    elif has_evidence or not hints:
        return None
    if hints:
        reason += ", with a correction"
    return make_verdict(
        item, JUDGE_NAME, score, reason, votes=votes, hints=hints, explicit=True, at=at
    )


def _combine_scores(feedback: Sequence[Feedback]) -> int | None:
    """Return the score of all people. `feedback`: in the order in which it was given."""
    scores = {one.given_by: one.score for one in feedback if one.score is not None}
    if not scores:
        return None
    total = sum(scores.values())
    return (total > 0) - (total < 0)


def apply_corrections(item: JudgeInput, judged: Verdict) -> Verdict:
    """Return the judge's verdict with the user's corrections as hints; the score stays the judge's."""
    feedback = sorted(item.reaction.feedback, key=lambda one: one.given_at)
    hints = distinct_hints(one.correction for one in feedback)
    if not hints:
        return judged
    return replace(judged, hints=hints, reason=f"{judged.reason}; with the user's correction")
