"""Explicit feedback outranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openclaw_rl.judge.user_feedback import apply_corrections, explicit_verdict
from openclaw_rl.types import Feedback, JudgeInput, Reaction, Verdict


def give(
    at: float, score: int | None = None, comment: str | None = None, correction: str | None = None
) -> Feedback:
    return Feedback(
        id=str(at),
        scope="s",
        target="t",
        score=score,
        comment=comment,
        correction=correction,
        given_at=at,
    )


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
        (
            (give(1, score=-1, correction="Be brief."), give(2, correction="be brief")),
            (-1, ("Be brief.",)),
        ),
    ],
)
def test_the_latest_score_and_the_corrections(
    given: tuple[Feedback, ...], expected: tuple[int | None, tuple[str, ...]] | None
) -> None:
    reaction = Reaction(
        turn="t", revision=2, messages=(), feedback=given, source=None, how="feedback", at=1.0
    )
    found = explicit_verdict(JudgeInput(turn="t", messages=(), reply={}, reaction=reaction))
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found.explicit
    assert (found.score, found.hints, found.revision) == (*expected, 2)


def test_a_correction_alone_leaves_the_score_to_the_judge() -> None:
    given = (give(1, correction="Be brief."),)
    said = ({"role": "user", "content": "no"},)
    reaction = Reaction(
        turn="t", revision=2, messages=said, feedback=given, source="u", how="exact", at=1.0
    )
    item = JudgeInput(turn="t", messages=(), reply={}, reaction=reaction)
    assert explicit_verdict(item) is None
    judged = Verdict(
        turn="t", revision=2, judge="j", score=-1, votes=(), hints=("Be kind.",), reason="r", at=1.0
    )
    assert (apply_corrections(item, judged).score, apply_corrections(item, judged).hints) == (
        -1,
        ("Be brief.",),
    )
    bare = replace(item, reaction=replace(reaction, feedback=()))
    assert apply_corrections(bare, judged) == judged


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([("ann", 1), ("bob", -1), ("cem", 1)], 1),
        ([("ann", 1), ("bob", -1)], 0),
        ([("ann", 1), ("bob", -1), ("ann", -1)], -1),
        ([("ann", 0), ("bob", 1)], 1),
        ([(None, 1), (None, -1)], -1),
    ],
)
def test_people_are_counted_once_each(scores: list[tuple[str | None, int]], expected: int) -> None:
    given = tuple(
        replace(give(at, score=score), given_by=by) for at, (by, score) in enumerate(scores)
    )
    reaction = Reaction(
        turn="t", revision=1, messages=(), feedback=given, source=None, how="feedback", at=1.0
    )
    verdict = explicit_verdict(JudgeInput(turn="t", messages=(), reply={}, reaction=reaction))
    assert verdict is not None
    assert verdict.score == expected
