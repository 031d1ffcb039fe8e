"""What a user says outright outranks every judge: a score given, a correction given. Pure."""

from __future__ import annotations

import time

from openclaw_rl.judge.votes import distinct
from openclaw_rl.types import JudgeInput, Verdict, Vote

NAME = "explicit"


def verdict(item: JudgeInput, at: float | None = None) -> Verdict | None:
    """The verdict that explicit feedback makes by itself; None when there is none, or only a comment.

    Of several scores the latest holds. Corrections become hints. A comment is evidence for the judge, not a verdict.
    """
    given = sorted(item.reaction.feedback, key=lambda f: f.given_at)
    scores = [f.score for f in given if f.score is not None]
    hints = distinct(f.correction for f in given)
    if not scores and not hints:
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
