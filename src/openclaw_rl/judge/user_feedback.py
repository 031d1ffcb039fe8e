"""Verdicts from explicit user feedback (scores, corrections), which outrank every judge. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.judge.voting import distinct_hints, make_verdict
from openclaw_rl.types import JudgeInput, Verdict, Vote

JUDGE_NAME = "explicit"


def explicit_verdict(item: JudgeInput, at: float | None = None) -> Verdict | None:
    """Return the verdict that explicit feedback determines alone; None if a judge is needed or there is no feedback.

    The latest of several scores counts. Corrections become hints. With a correction but no score, the judge gives the
    score (see `apply_corrections`) if there is anything to judge. A comment is evidence for the judge, not a verdict.
    """
    given = sorted(item.reaction.feedback, key=lambda f: f.given_at)
    scores = [f.score for f in given if f.score is not None]
    hints = distinct_hints(f.correction for f in given)
    evidence = bool(item.reaction.messages) or any(f.comment for f in given)
    if not scores and (evidence or not hints):
        return None
    score = scores[-1] if scores else None
    reason = f"explicit feedback: score {'nothing' if score is None else f'{score:+d}'}"
    votes = (Vote(score=f.score, hint=f.correction, reason=f.comment or "") for f in given)
    reason += ", with a correction" if hints else ""
    return make_verdict(
        item, JUDGE_NAME, score, reason, votes=votes, hints=hints, explicit=True, at=at
    )


def apply_corrections(item: JudgeInput, judged: Verdict) -> Verdict:
    """Return the judge's verdict with the user's corrections as hints; the score stays the judge's."""
    hints = distinct_hints(
        f.correction for f in sorted(item.reaction.feedback, key=lambda f: f.given_at)
    )
    if not hints:
        return judged
    return replace(judged, hints=hints, reason=f"{judged.reason}; with the user's correction")
