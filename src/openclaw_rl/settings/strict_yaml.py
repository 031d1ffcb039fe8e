"""Strict YAML and JSON parsing, and the base class of settings sections.

Duplicate keys, recursive YAML aliases, true in place of a number, and an empty path are errors.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

_MAX_DEPTH = 50
# An error may show all of them.
_MAX_VALUES = 100_000
_TOO_DEEP = f"nested too deeply; expected at most {_MAX_DEPTH} levels"


class _Loader(yaml.SafeLoader):
    """Loader that rejects duplicate keys and names their line. Keys from a merge (`<<`) may be overridden."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            _check_keys([key for key, _ in node.value])
        return super().construct_mapping(node, deep)


def _check_keys(keys: Sequence[yaml.Node]) -> None:
    """Raise `ValueError` for a key that a mapping has twice."""
    seen: set[str] = set()
    for key in keys:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.value in seen:
            raise ValueError(
                f"line {key.start_mark.line + 1}: {key.value!r} is given twice. Keep one of them"
            )
        seen.add(key.value)


def read_yaml(text: str) -> Any:
    """Parse YAML. Raises `ValueError`, one line with the position."""
    try:
        # A SafeLoader.
        return _check_size(yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        raise ValueError(_marked_message(error)) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (yaml.YAMLError, ValueError) as error:
        # `ValueError`: an invalid date, or a number that is too long.
        raise ValueError(_one_line(error)) from None


def _marked_message(error: yaml.MarkedYAMLError) -> str:
    """Return the problem in one line, with its position if YAML names one."""
    mark = error.problem_mark or error.context_mark
    problem = _one_line(error.problem or error.context or error)
    if mark is None:
        return problem
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def read_json(text: str) -> Any:
    """Parse JSON; empty text gives None. Raises `ValueError`, one line with the position."""
    try:
        return (
            _check_size(json.loads(text, object_pairs_hook=reject_duplicate_keys))
            if text.strip()
            else None
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


class DuplicateKey(ValueError):
    """A JSON object has the same key twice."""


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict for `json.loads` (`object_pairs_hook`). Raises `DuplicateKey`."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise DuplicateKey(f"{twice[:60]!r} is given twice in one object. Keep one of them")
    return unique


def _check_size(value: Any) -> Any:
    """Return `value`. Raises `ValueError` if it contains itself, is nested too deeply, or has too many values."""
    if _measure(value, (), {})[0] > _MAX_VALUES:
        raise ValueError(
            f"its aliases (*) stand for more than {_MAX_VALUES} values. Write them out"
        )
    return value


def _measure(
    value: Any, above: tuple[int, ...], known: dict[int, tuple[int, int]]
) -> tuple[int, int]:
    """Return how many values there are and how deeply they are nested; those of an alias count each time.

    `known`: the results of containers, by `id`.
    """
    if id(value) in above:
        raise ValueError("an alias (*) contains itself. Write the value out")
    if not isinstance(value, dict | list):
        return 1, 0
    if id(value) not in known:
        if len(above) > _MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        known[id(value)] = _measure_parts(value, (*above, id(value)), known)
    count, depth = known[id(value)]
    if len(above) + depth > _MAX_DEPTH + 1:
        raise ValueError(_TOO_DEEP)
    return count, depth


def _measure_parts(
    value: dict[Any, Any] | list[Any],
    above: tuple[int, ...],
    known: dict[int, tuple[int, int]],
) -> tuple[int, int]:
    count = 1
    depth = 0
    for part in value.values() if isinstance(value, dict) else value:
        part_count, part_depth = _measure(part, above, known)
        count += part_count
        depth = max(depth, part_depth)
    return count, depth + 1


class Section(BaseModel):
    """Base class of all settings sections: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> Any:
        return _strict_value(value, cls.model_fields[info.field_name or ""].annotation)


def _strict_value(value: Any, kind: Any) -> Any:
    """Reject values that pydantic would convert silently. An empty text means None for an optional setting.

    YAML reads `off` without quotes as False.
    """
    kinds = (kind, *typing.get_args(kind))
    if isinstance(value, bool):
        return _strict_bool(value, kinds)
    if isinstance(value, str):
        is_one_text = str in kinds and typing.get_origin(kind) is not tuple
        return _strict_text(value, kinds, is_one_text=is_one_text)
    # Device ids may be written as numbers.
    if isinstance(value, list) and kind == tuple[str, ...]:
        return list(map(_number_text, value))
    return value


def _number_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _strict_bool(value: bool, kinds: Collection[Any]) -> Any:
    if not value and "off" in kinds:
        return "off"
    if bool not in kinds and (int in kinds or float in kinds):
        raise ValueError("expected a number")
    return value


def _strict_text(value: str, kinds: Collection[Any], *, is_one_text: bool) -> str | None:
    """Return the text; None for an empty one. `is_one_text`: the setting is a text, and no list of texts."""
    if "\0" in value:
        raise ValueError("expected text without a null character")
    if value or not is_one_text:
        return value
    if type(None) not in kinds:
        raise ValueError("expected text, got nothing")
    return None


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
