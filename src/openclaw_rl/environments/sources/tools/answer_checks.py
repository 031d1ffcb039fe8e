"""Checks of the result of an episode: its last answer, its calls, and the files that its tools left.

The checks of answers and calls are pure. `python` and `sqlite` run in a fresh box (`state_checks`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import re2
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from openclaw_rl.environments.sources.tools.bfcl_matching import BfclCall, match_bfcl_calls
from openclaw_rl.environments.sources.tools.call_matching import (
    CallMade,
    ExpectedCall,
    equal_numbers,
    match_calls,
)
from openclaw_rl.environments.sources.tools.schema_check import compile_pattern
from openclaw_rl.environments.sources.tools.tool_config import describe_error
from openclaw_rl.errors import ConfigError

_NUMBER = re2.compile(
    r"[-+]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
)
_LIST_MARK = re2.compile(r"^\s*(?:[-*+]|[0-9]+[.)])\s+")
_FENCE = re2.compile(r"(?s)```(?:json)?\s*(.*?)```")


class _CheckEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str | None = None


class ExactCheck(_CheckEntry):
    """The answer is this text, without spaces around it."""

    kind: Literal["exact"]
    value: str
    ignore_case: bool = False

    def score_answer(self, answer: str) -> float:
        text = answer.strip()
        expected = self.value.strip()
        return float(
            text.casefold() == expected.casefold() if self.ignore_case else text == expected
        )


class NumberCheck(_CheckEntry):
    """The last number of the answer is this one. `tolerance`: absolute."""

    kind: Literal["number"]
    value: float
    tolerance: float = Field(1e-9, ge=0)

    def score_answer(self, answer: str) -> float:
        numbers = _NUMBER.findall(answer)
        return float(
            bool(numbers)
            and abs(float(numbers[-1].replace(",", "")) - self.value) <= self.tolerance
        )


class SetCheck(_CheckEntry):
    """The answer lists exactly these items, in any order: a JSON list, or items between commas or line ends."""

    kind: Literal["set"]
    value: tuple[str | int | float, ...]
    ignore_case: bool = True

    def score_answer(self, answer: str) -> float:
        return float(self._as_set(_read_items(answer)) == self._as_set(self.value))

    def _as_set(self, items: Sequence[Any]) -> set[str]:
        texts = [str(item).strip() for item in items]
        return {text.casefold() if self.ignore_case else text for text in texts if text}


class JsonCheck(_CheckEntry):
    """The answer is JSON, by itself or in a code block, and equals the value."""

    kind: Literal["json"]
    value: Any

    def score_answer(self, answer: str) -> float:
        fenced = _FENCE.search(answer)
        try:
            return float(equal_json(json.loads(fenced.group(1) if fenced else answer), self.value))
        except (ValueError, RecursionError):
            return 0.0


class PatternCheck(_CheckEntry):
    """The regular expression (RE2) is found in the answer."""

    kind: Literal["pattern"]
    value: str

    @model_validator(mode="after")
    def _compile(self) -> PatternCheck:
        compile_pattern(self.value)
        return self

    def score_answer(self, answer: str) -> float:
        return float(re2.search(self.value, answer) is not None)


class CallsCheck(_CheckEntry):
    """The calls of the episode match these, in any order, or in this order with `ordered`.

    `extra`: whether further calls are allowed. `loose_text`: whether case, spaces and `,./-_*^` do not count.
    """

    kind: Literal["calls"]
    value: tuple[ExpectedCall, ...]
    ordered: bool = False
    extra: bool = False
    loose_text: bool = False

    def score_calls(self, calls: Sequence[CallMade]) -> float:
        options = {"ordered": self.ordered, "extra": self.extra, "loose_text": self.loose_text}
        return float(match_calls(calls, self.value, **options))


class BfclCheck(_CheckEntry):
    """The calls of the episode match the ground truth of a row of BFCL, as the leaderboard compares them."""

    kind: Literal["bfcl"]
    value: tuple[BfclCall, ...]

    def score_calls(self, calls: Sequence[CallMade]) -> float:
        return float(match_bfcl_calls(calls, self.value))


class FileCheck(_CheckEntry):
    """A JSON file that the tools left equals the value. `ignore`: fields of it, at the top, that do not count."""

    kind: Literal["json_file"]
    path: str = Field(pattern=r"^[^\x00]+$")
    value: Any
    ignore: tuple[str, ...] = ()


class DatabaseCheck(_CheckEntry):
    """A query on an SQLite file that the tools left gives these rows. `ordered`: whether their order counts."""

    kind: Literal["sqlite"]
    path: str
    query: str
    rows: tuple[tuple[Any, ...], ...]
    ordered: bool = False


class PythonCheck(_CheckEntry):
    """Python code with `check(answer, calls, files)`, which returns a bool or a share from 0 to 1. It runs in a box.

    `calls`: list of `{"tool", "arguments", "result", "error"}`. `files`: the work folder that the tools left. Code in
    it is the policy's: `run_code(command, seconds, folder=...)`, which the check can call, runs it in a process that
    cannot reach this one, and returns its exit status, output and errors.
    """

    kind: Literal["python"]
    code: str | None = None
    file: str | None = None
    seconds: float = Field(60.0, gt=0, le=3600)

    @model_validator(mode="after")
    def _check_code(self) -> PythonCheck:
        if (self.code is None) == (self.file is None):
            raise ValueError("expected either code or file")
        return self


AnswerCheck = ExactCheck | NumberCheck | SetCheck | JsonCheck | PatternCheck
CallCheck = CallsCheck | BfclCheck
StateCheck = FileCheck | DatabaseCheck | PythonCheck
Check = AnswerCheck | CallCheck | StateCheck
_ADAPTER: TypeAdapter[Check] = TypeAdapter(Annotated[Check, Field(discriminator="kind")])


def parse_checks(
    entries: Sequence[Mapping[str, Any]], where: str, folder: Path
) -> tuple[Check, ...]:
    """Return the checks of a task. `folder`: of the files that they name. Raises `ConfigError`."""
    checks = tuple(_parse_check(entry, where, folder) for entry in entries)
    if not checks:
        raise ConfigError(f"{where}: check: expected at least one")
    return checks


def _parse_check(entry: Mapping[str, Any], where: str, folder: Path) -> Check:
    try:
        check = _ADAPTER.validate_python(dict(entry))
    except ValidationError as error:
        raise ConfigError(f"{where}: check: {describe_error(error)}") from None
    if isinstance(check, PythonCheck) and check.file is not None:
        code = _read_checker(folder / check.file, where)
        check = check.model_copy(update={"code": code, "file": None})
    return check


def _read_checker(file: Path, where: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: check: {file} cannot be read ({error})") from None


def equal_json(value: Any, expected: Any) -> bool:
    """Return whether two JSON values are equal. 1 equals 1.0, and true equals only true."""
    match value, expected:
        case (bool(), _) | (_, bool()):
            return value is expected
        case (int() | float(), int() | float()):
            return equal_numbers(value, expected)
        case (dict(), dict()):
            return _equal_objects(value, expected)
        case (list() | tuple(), list() | tuple()):
            return len(value) == len(expected) and all(map(equal_json, value, expected))
        case _:
            return type(value) is type(expected) and bool(value == expected)


def _equal_objects(value: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    if value.keys() != expected.keys():
        return False
    return all(equal_json(value[name], expected[name]) for name in value)


def _read_items(answer: str) -> list[Any]:
    try:
        items = json.loads(answer)
        if isinstance(items, list):
            return items
    except (ValueError, RecursionError):
        pass
    lines = [_LIST_MARK.sub("", line) for line in answer.splitlines()]
    return [item for line in lines for item in line.split(",")]
