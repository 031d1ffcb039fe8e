"""Which lessons leave a prompt, by what is known of each set of them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.examination.lesson_choice import (
    FindResult,
    LessonChoice,
    LessonSet,
    choose_lessons,
)
from openclaw_rl.store.lessons.examinations import ExaminationResult, WithdrawalCode

ALONE, BESIDE = WithdrawalCode.ALONE, WithdrawalCode.BESIDE_OTHERS


def result(is_sound: bool) -> ExaminationResult:
    return ExaminationResult(
        asked=4, right_with=4 * is_sound, right_without=4, is_sound=is_sound, at=1.0
    )


def decide(
    order: list[int], is_sound: Callable[[LessonSet], bool]
) -> tuple[LessonChoice, list[LessonSet]]:
    """Examine what is missing until everything is decided. Returns the choice and the sets that were examined."""
    known: dict[LessonSet, ExaminationResult] = {}
    examined: list[LessonSet] = []
    while (choice := choose_lessons(order, known.get)).missing is not None:
        assert choice.missing not in known, "nothing is examined twice"
        known[choice.missing] = result(is_sound(choice.missing))
        examined.append(choice.missing)
    return choice, examined


def reasons(choice: LessonChoice) -> dict[int, WithdrawalCode]:
    return {left_out.place: left_out.code for left_out in choice.left_out}


def test_sound_lessons_are_examined_once() -> None:
    choice, examined = decide([2, 0, 1], lambda places: True)
    assert (choice.chosen, choice.left_out, examined) == ((0, 1, 2), (), [(0, 1, 2)])


def test_a_single_costly_lesson_leaves() -> None:
    choice, _ = decide([0], lambda places: False)
    assert (choice.chosen, reasons(choice)) == ((), {0: ALONE})


def test_the_costly_lesson_is_identified_by_leaving_one_out() -> None:
    """It is not the one that leaves first, but the one without which the others are sound."""
    choice, examined = decide([0, 1, 2], lambda places: 1 not in places)
    assert (choice.chosen, reasons(choice)) == ((0, 2), {1: ALONE})
    assert examined == [(0, 1, 2), (1, 2), (0, 2), (1,)]


def test_the_first_of_two_lessons_that_cost_together_leaves() -> None:
    choice, _ = decide([1, 0], lambda places: len(places) < 2)
    assert (choice.chosen, reasons(choice)) == ((0,), {1: BESIDE})
    assert choice.left_out[0].beside == (0,)


def test_several_costly_lessons_leave() -> None:
    choice, _ = decide([3, 2, 1, 0], lambda places: not {0, 2} & set(places))
    assert (choice.chosen, reasons(choice)) == ((1, 3), {0: ALONE, 2: ALONE})


def test_an_unexamined_set_is_in_the_prompt() -> None:
    assert choose_lessons([0, 1], lambda places: None).chosen == (0, 1)


def test_a_known_sound_part_of_a_costly_set_is_in_the_prompt() -> None:
    known = {(0, 1): result(False)}
    assert choose_lessons([0, 1], known.get).chosen == ()
    known[(0,)] = result(True)
    assert choose_lessons([0, 1], known.get).chosen == (0,)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            st.permutations(range(n)),
            st.sets(st.sets(st.integers(0, n - 1), min_size=1).map(frozenset)),
        )
    )
)
def test_the_choice_is_sound_and_names_a_reason_for_each_other_lesson(
    case: tuple[list[int], set[frozenset[int]]],
) -> None:
    """Whatever costs correctness: a set costs if it has one of the given ones in it."""
    order, costly = case

    def is_sound(places: LessonSet) -> bool:
        return not any(some <= set(places) for some in costly)

    choice, examined = decide(list(order), is_sound)
    assert is_sound(choice.chosen)
    assert sorted((*choice.chosen, *reasons(choice))) == sorted(order)
    for place, code in reasons(choice).items():
        assert (code is ALONE) == (not is_sound((place,)))
    assert len(examined) <= 3 * len(order)
    find: FindResult = {places: result(is_sound(places)) for places in examined}.get
    assert choose_lessons(order, find) == choice, "the same knowledge gives the same choice"
