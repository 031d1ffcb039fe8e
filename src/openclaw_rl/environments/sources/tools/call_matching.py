"""Compares the calls of an episode with those that are expected. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

_LOOSE = str.maketrans("", "", " ,./-_*^")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMade:
    """A call of a reply. `arguments`: None if they were no JSON object. `result`: what the model got.

    `images`: of the result, as data URLs.
    """

    tool: str
    arguments: Mapping[str, Any] | None
    result: str = ""
    is_error: bool = False
    images: Sequence[str] = ()


class ExpectedCall(BaseModel):
    """A call that is expected. `alternatives`: parameter -> values that are right; "" among them: may be left out.

    `arguments`: the same with one value each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    tool: str
    arguments: Mapping[str, Any] = {}
    alternatives: Mapping[str, tuple[Any, ...]] = {}


def match_calls(
    calls: Sequence[CallMade],
    expected: Sequence[ExpectedCall],
    *,
    ordered: bool,
    extra: bool,
    loose_text: bool,
) -> bool:
    """Return whether each expected call was made, by a call of its own. `extra`: further calls are allowed."""
    further = len(calls) - len(expected)
    if further < 0 or (further > 0 and not extra):
        return False
    fits = []
    for one in expected:
        fits.append([is_match(call, one, loose_text=loose_text) for call in calls])
    return _match_in_order(fits, len(calls)) if ordered else assign_calls(fits, len(calls))


def is_match(call: CallMade, expected: ExpectedCall, *, loose_text: bool = False) -> bool:
    """Return whether a call is the expected one."""
    if call.tool != expected.tool or call.arguments is None:
        return False
    right_values = {name: (value,) for name, value in expected.arguments.items()}
    right_values |= expected.alternatives
    if not call.arguments.keys() <= right_values.keys():
        return False
    return all(
        _is_right(call.arguments, name, values, loose_text) for name, values in right_values.items()
    )


def _is_right(
    arguments: Mapping[str, Any], name: str, values: Sequence[Any], loose_text: bool
) -> bool:
    """Return whether an argument has one of the values. "" among them: it may be left out."""
    if name not in arguments:
        return any(value == "" for value in values)
    return any(_is_equal(arguments[name], value, loose_text) for value in values)


def _is_equal(argument: Any, value: Any, loose_text: bool) -> bool:
    match argument, value:
        case (str(), str()):
            return _equal_texts(argument, value, loose_text)
        case (bool(), _) | (_, bool()):
            return argument is value
        case (int() | float(), int() | float()):
            return equal_numbers(argument, value)
        case (dict(), Mapping()):
            return _equal_objects(argument, value, loose_text)
        case (list(), list() | tuple()):
            return _equal_lists(argument, value, loose_text)
        case _:
            return type(argument) is type(value) and bool(argument == value)


def _equal_texts(argument: str, value: str, loose_text: bool) -> bool:
    if loose_text:
        return plain_text(argument) == plain_text(value)
    return argument == value


def _equal_objects(argument: Mapping[str, Any], value: Mapping[str, Any], loose_text: bool) -> bool:
    if argument.keys() != value.keys():
        return False
    return all(_is_equal(argument[name], value[name], loose_text) for name in argument)


def _equal_lists(argument: Sequence[Any], value: Sequence[Any], loose_text: bool) -> bool:
    if len(argument) != len(value):
        return False
    pairs = zip(argument, value, strict=True)
    return all(_is_equal(item, expected, loose_text) for item, expected in pairs)


def equal_numbers(value: float, expected: float) -> bool:
    """Return whether two numbers are equal up to rounding. An integer may be larger than any float."""
    try:
        return math.isclose(value, expected, rel_tol=1e-9)
    except OverflowError:
        return value == expected


def plain_text(text: str) -> str:
    """Return a text without what does not count in a loose comparison: case, spaces and `,./-_*^`."""
    return text.translate(_LOOSE).lower().replace("'", '"')


def _match_in_order(fits: Sequence[Sequence[bool]], count: int) -> bool:
    at = 0
    for row in fits:
        while at < count and not row[at]:
            at += 1
        if at == count:
            return False
        at += 1
    return True


def assign_calls(fits: Sequence[Sequence[bool]], count: int) -> bool:
    """Return whether each expected call gets a call of its own (augmenting paths).

    `fits`: for each expected call, which of the `count` calls match it.
    """
    owner: list[int | None] = [None] * count

    def find_column(row: int, seen: set[int]) -> bool:
        for column in range(count):
            if not fits[row][column] or column in seen:
                continue
            seen.add(column)
            holder = owner[column]
            if holder is None or find_column(holder, seen):
                owner[column] = row
                return True
        return False

    rows = range(len(fits))
    return all(find_column(row, set()) for row in rows)
