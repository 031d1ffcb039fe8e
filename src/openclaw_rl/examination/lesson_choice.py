"""Choose the lessons of a prompt by the examinations of their sets. Pure.

A set of lessons is known to be sound, known to cost correctness, or not examined yet. Of a set that costs correctness,
the lesson without which the others are sound leaves. If there is no such lesson, the set is built again, one lesson at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.store.lessons.examinations import ExaminationResult, WithdrawalCode

LessonSet = tuple[int, ...]
"""Places of lessons in the prompt, ascending."""
FindResult = Callable[[LessonSet], ExaminationResult | None]
"""Returns the result of a set; None if it was not examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A lesson that leaves the prompt. `result`: of a set that is not sound with it; `beside`: the rest of that set."""

    place: int
    code: WithdrawalCode
    result: ExaminationResult
    beside: LessonSet = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonChoice:
    """`chosen`: the lessons in the prompt now; `missing`: the set to examine next, None if everything is decided."""

    chosen: LessonSet
    left_out: tuple[LeftOut, ...] = ()
    missing: LessonSet | None = None


def choose_lessons(leaving_order: Sequence[int], find_result: FindResult) -> LessonChoice:
    """Return the choice among the lessons at these places, given in the order in which they leave the prompt.

    A set that was not examined is in the prompt. Of a set that is known to cost correctness, only a part that is known
    to be sound is in the prompt.
    """
    everything: LessonSet = tuple(sorted(leaving_order))
    if not everything:
        return LessonChoice(chosen=())
    whole = find_result(everything)
    if whole is None:
        return LessonChoice(chosen=everything, missing=everything)
    if whole.is_sound:
        return LessonChoice(chosen=everything)
    if len(everything) == 1:
        alone = LeftOut(place=everything[0], code=WithdrawalCode.ALONE, result=whole)
        return LessonChoice(chosen=(), left_out=(alone,))
    for place in leaving_order:
        others = _without(everything, place)
        result = find_result(others)
        if result is None:
            known_part = _known_part(leaving_order, find_result)
            return LessonChoice(chosen=known_part, missing=others)
        if result.is_sound:
            return _explain(others, [(place, whole, others)], find_result)
    return _build(leaving_order, find_result)


def _build(leaving_order: Sequence[int], find_result: FindResult) -> LessonChoice:
    """Add one lesson after the other, the last one to leave first."""
    chosen: LessonSet = ()
    refused: list[tuple[int, ExaminationResult, LessonSet]] = []
    for place in reversed(leaving_order):
        together = tuple(sorted((*chosen, place)))
        result = find_result(together)
        if result is None:
            return LessonChoice(chosen=chosen, missing=together)
        if result.is_sound:
            chosen = together
        else:
            refused.append((place, result, chosen))
    return _explain(chosen, refused, find_result)


def _explain(
    chosen: LessonSet,
    refused: Sequence[tuple[int, ExaminationResult, LessonSet]],
    find_result: FindResult,
) -> LessonChoice:
    """Return the choice with the reason for each refused lesson.

    `refused`: (place, result of the set, the others in it) of each. Whether a lesson costs correctness alone may have
    to be examined first.
    """
    left_out = []
    for place, result, others in refused:
        alone = find_result((place,)) if others else result
        if alone is None:
            return LessonChoice(chosen=chosen, missing=(place,))
        if alone.is_sound:
            left_out.append(
                LeftOut(
                    place=place, code=WithdrawalCode.BESIDE_OTHERS, result=result, beside=others
                )
            )
        else:
            left_out.append(LeftOut(place=place, code=WithdrawalCode.ALONE, result=alone))
    return LessonChoice(chosen=chosen, left_out=tuple(left_out))


def _known_part(leaving_order: Sequence[int], find_result: FindResult) -> LessonSet:
    """Return a set that is known to be sound, to which the lessons that leave last are added first."""
    chosen: LessonSet = ()
    for place in reversed(leaving_order):
        together = tuple(sorted((*chosen, place)))
        result = find_result(together)
        if result is not None and result.is_sound:
            chosen = together
    return chosen


def _without(places: LessonSet, place: int) -> LessonSet:
    return tuple(other for other in places if other != place)
