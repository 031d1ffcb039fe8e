"""Explicit feedback outranks."""

from __future__ import annotations

import pytest

from openclaw_rl.judge.explicit import verdict
from openclaw_rl.types import Feedback, JudgeInput, Reaction


def give(at: float, score: int | None = None, comment: str | None = None, correction: str | None = None) -> Feedback:
    return Feedback(id=str(at), scope="s", target="t", score=score, comment=comment, correction=correction, given_at=at)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), None),
        ((give(1, comment="so so"),), None),
        ((give(1, score=1),), (1, ())),
        ((give(1, score=0),), (0, ())),
        ((give(1, score=1), give(2, score=-1)), (-1, ())),
        ((give(2, score=-1), give(1, score=1)), (-1, ())),
        ((give(1, score=-1), give(2, comment="late words")), (-1, ())),
        ((give(1, correction="Say it in Spanish."),), (None, ("Say it in Spanish.",))),
        ((give(1, score=-1, correction="Be brief."), give(2, correction="be brief")), (-1, ("Be brief.",))),
    ],
)
def test_the_latest_score_and_the_corrections(
    given: tuple[Feedback, ...], expected: tuple[int | None, tuple[str, ...]] | None
) -> None:
    reaction = Reaction(turn="t", revision=2, messages=(), feedback=given, source=None, how="feedback", at=1.0)
    found = verdict(JudgeInput(turn="t", messages=(), reply={}, reaction=reaction))
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found.explicit
    assert (found.score, found.hints, found.revision) == (*expected, 2)
