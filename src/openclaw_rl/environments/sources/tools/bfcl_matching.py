"""Compares calls with the ground truth of BFCL, with the verdicts of its own checker (`ast_checker`, for Python). Pure.

A value must have the type that the function declares, or that of its alternatives. Case, spaces and punctuation of
texts do not count: in a text, in the items of a list, and in the fields of an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from openclaw_rl.environments.sources.tools.call_matching import CallMade, assign_calls, plain_text

PYTHON_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
"""Names of types in BFCL, and what a value from JSON must be."""
# Among the alternatives of a parameter that may be left out.
_LEFT_OUT = ""


class BfclCall(BaseModel):
    """A call of the ground truth.

    `types`: parameter -> name of its type, and of that of its items for a list. `alternatives`: parameter -> values
    that are right; "" among them: it may be left out, unless it is `required`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    tool: str
    types: Mapping[str, tuple[str, ...]]
    required: tuple[str, ...]
    alternatives: Mapping[str, tuple[Any, ...]]


def match_bfcl_calls(calls: Sequence[CallMade], expected: Sequence[BfclCall]) -> bool:
    """Return whether the calls are the expected ones, in any order."""
    if len(calls) != len(expected):
        return False
    return assign_calls([[_is_match(call, one) for call in calls] for one in expected], len(calls))


def _is_match(call: CallMade, expected: BfclCall) -> bool:
    if call.tool != expected.tool or call.arguments is None:
        return False
    if not call.arguments.keys() >= set(expected.required):
        return False
    are_right = all(
        _is_right_argument(expected, name, value) for name, value in call.arguments.items()
    )
    return are_right and _may_leave_out(expected.alternatives, call.arguments)


def _is_right_argument(expected: BfclCall, name: str, value: Any) -> bool:
    if name not in expected.types or name not in expected.alternatives:
        return False
    return _is_right(value, expected.alternatives[name], expected.types[name])


def _may_leave_out(alternatives: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether all that has alternatives and no value may be left out."""
    missing = alternatives.keys() - values.keys()
    return all(_LEFT_OUT in alternatives[name] for name in missing)


def _is_right(value: Any, alternatives: Sequence[Any], types: Sequence[str]) -> bool:
    """Return whether a value is right. `types`: the declared one, and that of the items of a list."""
    declared = PYTHON_TYPES[types[0]]
    items = PYTHON_TYPES[types[1]] if len(types) > 1 else None
    if declared is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return False
    answered = _answered_type(alternatives)
    if type(value) is not declared:
        return type(value) is answered and value in alternatives
    if items is not None and not any(_has_items(value, one, items) for one in alternatives):
        return False
    if answered not in (declared, None):
        return value in alternatives
    return _is_equal(value, alternatives, items)


def _answered_type(alternatives: Sequence[Any]) -> type | None:
    return next((type(one) for one in alternatives if one != _LEFT_OUT), None)


def _has_items(value: Any, alternative: Any, items: type) -> bool:
    """Return whether the items have the declared type, or that of the items of the alternative."""
    if not isinstance(alternative, list):
        return True
    return all(type(one) in (items, _answered_type(alternative)) for one in value)


def _is_equal(value: Any, alternatives: Sequence[Any], items: type | None) -> bool:
    """Compare a value that has the declared type."""
    if isinstance(value, dict):
        return any(_is_equal_object(value, one) for one in alternatives)
    if isinstance(value, list):
        return _is_equal_list(value, alternatives, items)
    if isinstance(value, str):
        return _is_equal_text(value, alternatives)
    return value in alternatives


def _is_equal_text(value: str, alternatives: Sequence[Any]) -> bool:
    texts = [plain_text(one) for one in alternatives if isinstance(one, str)]
    return plain_text(value) in texts


def _is_equal_list(value: list[Any], alternatives: Sequence[Any], items: type | None) -> bool:
    if items is dict:
        return any(_are_equal_objects(value, one) for one in alternatives)
    return _plain_items(value) in [_plain_items(one) for one in alternatives]


def _are_equal_objects(value: list[Any], alternative: Any) -> bool:
    return len(value) == len(alternative) and all(map(_is_equal_object, value, alternative))


def _is_equal_object(value: Any, alternative: Any) -> bool:
    """Compare an object with one whose fields are lists of alternatives."""
    if not isinstance(value, dict) or not isinstance(alternative, Mapping):
        return False
    for name, item in value.items():
        if name not in alternative or _plain_item(item) not in _plain_items(alternative[name]):
            return False
    return _may_leave_out(alternative, value)


def _plain_items(values: Sequence[Any]) -> list[Any]:
    """Return the items, texts among them as plain texts. The alternative "" (left out) has no items."""
    return [_plain_item(one) for one in values]


def _plain_item(value: Any) -> Any:
    return plain_text(value) if isinstance(value, str) else value
