"""What a user says outright outranks every judge: a score given, a correction given. Only what it says. Pure."""

from __future__ import annotations

import time
from dataclasses import replace

from openclaw_rl.judge.voting import distinct
from openclaw_rl.types import JudgeInput, Verdict, Vote

NAME = "explicit"


def verdict(item: JudgeInput, at: float | None = None) -> Verdict | None:
    """The verdict that explicit feedback makes by itself; None when a judge is needed, or there is nothing given.

    Of several scores the latest holds. Corrections become hints; a correction without a score leaves the score to the
    judge (see `corrected`), if there is anything to judge. A comment is evidence for the judge, not a verdict.
    """
    given = sorted(item.reaction.feedback, key=lambda f: f.given_at)
    scores = [f.score for f in given if f.score is not None]
    hints = distinct(f.correction for f in given)
    evidence = bool(item.reaction.messages) or any(f.comment for f in given)
    if not scores and (evidence or not hints):
        return None
    score = scores[-1] if scores else None
    said = "nothing" if score is None else f"{score:+d}"
    return Verdict(
        turn=item.turn,
        revision=item.reaction.revision,
        judge=NAME,
        score=score,
        votes=tuple(Vote(score=f.score, hint=f.correction, reason=f.comment or "") for f in given),
        hints=hints,
        explicit=True,
        reason=f"explicit feedback: score {said}" + (", with a correction" if hints else ""),
        at=time.time() if at is None else at,
    )


def corrected(item: JudgeInput, judged: Verdict) -> Verdict:
    """A judge's verdict with the user's corrections as its hints; the score is the judge's."""
    hints = distinct(f.correction for f in sorted(item.reaction.feedback, key=lambda f: f.given_at))
    if not hints:
        return judged
    return replace(judged, hints=hints, reason=f"{judged.reason}; with the user's correction")
