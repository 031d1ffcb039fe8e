"""Withdrawn lessons in the store, and the turns that they misled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.train.conftest import fill, judged, renderer, store

from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import examinations, lessons, removal, withdrawals
from openclaw_rl.store.lessons.examinations import ExaminationResult, Withdrawal, WithdrawalCode
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage.live_scores import newest_scores

__all__ = ["fill", "judged", "renderer", "store"]
SHORT = Lesson(id="aa", key="key", text="Keep answers short.", made_at=1.0, reinforced_at=1.0)
COSTS = Withdrawal(
    code=WithdrawalCode.BESIDE_OTHERS,
    asked=4,
    right_with=1,
    right_without=4,
    beside=("bb",),
    at=2.0,
)
SOUND = ExaminationResult(asked=20, right_with=20, right_without=20, is_sound=True, at=3.0)


@pytest.fixture
def lesson(store: Store) -> Lesson:
    with store.write() as conn:
        lessons.add_lesson(conn, SHORT)
    return SHORT


def find(store: Store) -> Lesson:
    with store.read() as conn:
        found = lessons.get(conn, "aa")
    assert found is not None
    return found


def test_a_withdrawal_is_stored_with_its_figures(store: Store, lesson: Lesson) -> None:
    with store.write() as conn:
        assert withdrawals.withdraw(conn, "aa", SHORT.text, COSTS)
        assert not withdrawals.withdraw(conn, "aa", SHORT.text, replace(COSTS, at=3.0)), (
            "it has left already"
        )
    assert (find(store).state, find(store).withdrawal) == (
        LessonState.WITHDRAWN,
        replace(COSTS, at=3.0),
    )
    with store.write() as conn:
        lessons.set_weight(conn, "aa", 2.0, at=4.0)
        assert withdrawals.withdraw(conn, "aa", SHORT.text, replace(COSTS, at=5.0)), (
            "it was said again since"
        )
        assert withdrawals.restore(conn, "aa", SHORT.text, at=6.0)
    assert (find(store).state, find(store).withdrawal) == (LessonState.ACTIVE, None)
    with store.read() as conn:
        kinds = [event.kind.removeprefix("lesson.") for event in events.read_after(conn, 0, 10)]
    assert kinds == ["withdrawn", "withdrawn", "restored"]


def test_an_edited_or_superseded_lesson_is_not_withdrawn(store: Store, lesson: Lesson) -> None:
    with store.write() as conn:
        removal.replace_text(conn, "aa", "Be brief.", at=2.0)
        assert not withdrawals.withdraw(conn, "aa", SHORT.text, COSTS)
        lessons.add_lesson(conn, replace(SHORT, id="bb"))
        lessons.supersede(conn, "aa", "bb")
        assert not withdrawals.withdraw(conn, "aa", "Be brief.", COSTS)


def test_forgetting_a_lesson_deletes_the_texts_that_wait_for_examination(
    store: Store, lesson: Lesson
) -> None:
    with store.write() as conn:
        examinations.request_examination(conn, [SHORT.text], "identity", store.secret)
        assert examinations.waiting_texts(conn, 9) == [(SHORT.text,)]
        removal.forget(conn, "aa", at=2.0)
        assert examinations.waiting_texts(conn, 9) == []


def test_an_examination_result_depends_on_the_base_model_and_the_order_of_texts(
    store: Store,
) -> None:
    def known(*texts: str, identity: str = "identity") -> bool:
        with store.read() as conn:
            digest = examinations.lessons_digest(texts, identity, store.secret)
            return examinations.find_result(conn, digest) is not None

    with store.write() as conn:
        digest = examinations.lessons_digest(["a", "b"], "identity", store.secret)
        examinations.record_result(conn, digest, 0, SOUND)
    assert [known("a", "b"), known("b", "a"), known("a"), known("a", "b", identity="other")] == [
        True
    ] + [False] * 3


def test_turns_with_a_withdrawn_lesson_do_not_count_against_a_version(
    store: Store, lesson: Lesson, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    (misled,) = fill(store, 1, score=-1, request={"lessons": {"aa": SHORT.text}})
    (other,) = fill(store, 1, score=-1)

    def scored() -> list[str]:
        with store.read() as conn:
            return [score.turn for score in newest_scores(conn, 0, after=0, limit=9)]

    assert scored() == [misled, other]
    with store.write() as conn:
        withdrawals.withdraw(conn, "aa", SHORT.text, COSTS)
    assert scored() == [other]
