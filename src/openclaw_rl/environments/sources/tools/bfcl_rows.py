"""Converts rows of the Berkeley Function-Calling Leaderboard (BFCL, versions 3 and 4) to tasks of `tools`.

A row of `BFCL_v4_CATEGORY.json` has `question` and `function`; the row of the same id in `possible_answer/` has
`ground_truth`. The calls of the first reply are checked, and not executed. Rows of `irrelevance` have no ground truth:
right is an answer without a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.common.printable import echo_error
from openclaw_rl.environments.sources.tools.bfcl_matching import PYTHON_TYPES
from openclaw_rl.environments.task_file import split_by_digest, task_digest
from openclaw_rl.environments.types import EnvironmentTask
from openclaw_rl.errors import ConfigError

_ANSWERS = "possible_answer"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_CATEGORY = re.compile(r"BFCL_v[0-9]+_(.+)\.jsonl?")
_CHECKED = re.compile(
    r"(live_)?(simple|multiple|parallel|parallel_multiple|simple_python|irrelevance)"
)
_WHY = {
    "simple_java": "its calls are in Java",
    "simple_javascript": "its calls are in JavaScript",
    "java": "its calls are in Java",
    "javascript": "its calls are in JavaScript",
    "rest": "its calls need services on the internet",
    "web_search": "its calls need the internet",
    "relevance": "it has no calls to compare with",
    "format_sensitivity": "it names rows of other categories",
}
# Keywords of a schema whose values mean the same in both.
_COPIED_KEYWORDS = frozenset(
    {"description", "enum", "default", "title", "format", "minimum", "maximum"}
)
_NO_CALL: Mapping[str, Any] = {
    "check": [
        {"kind": "calls", "value": []},
        {"kind": "pattern", "value": r"\S", "name": "answered"},
    ],
    "answer": "None of these functions is for that.",
}
"""Check and solution of a row whose functions do not help. An empty reply, which BFCL accepts, is wrong here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedRows:
    """`tasks`: lines of a task file. `refused`: id of a row -> why it cannot be checked here."""

    tasks: Sequence[Mapping[str, Any]]
    refused: Mapping[str, str]


def convert_rows(questions: Path) -> ConvertedRows:
    """Return the tasks of a file of BFCL, with its answers from `possible_answer/` beside it.

    Raises `ConfigError` for a file that cannot be read, and for a category whose calls cannot be compared.
    """
    category = _category_of(questions)
    reason = _why_refused(category)
    if reason:
        raise ConfigError(
            f"{questions.name}: the category {category} is not supported: {reason}. Supported are simple, multiple, "
            "parallel and parallel_multiple, of Python, and irrelevance; also live"
        )
    reader = _RowReader(category=category)
    if not category.endswith("irrelevance"):
        answers = questions.parent / _ANSWERS / questions.name
        reader.answers = {row["id"]: row for row in _read_rows(answers)}
    tasks = []
    refused = {}
    for row in _read_rows(questions):
        try:
            tasks.append(reader.convert(row))
        except ValueError as error:
            refused[str(row.get("id"))] = str(error)
        except KeyError as error:
            refused[str(row.get("id"))] = f"it has no {error}"
    return ConvertedRows(tasks=tasks, refused=refused)


def is_bfcl_path(path: Path) -> bool:
    """Return whether a file has the name of a category of BFCL, or a folder has such files."""
    return bool(_list_files(path)) if path.is_dir() else _CATEGORY.fullmatch(path.name) is not None


def read_bfcl_tasks(path: Path, held_out_share: float) -> list[EnvironmentTask]:
    """Return the tasks of a file of BFCL, or of all files of a folder. What cannot be checked is left out, with a note.

    Raises `ConfigError`.
    """
    files = [path]
    if path.is_dir():
        files = _checkable_files(path)
    tasks: dict[str, EnvironmentTask] = {}
    for file in files:
        for data in _convert_with_note(file):
            digest = task_digest(data)
            if data["id"] in tasks:
                raise ConfigError(
                    f"{file}: the id {data['id']} is also in another file. Name one version of BFCL"
                )
            split = split_by_digest(digest, held_out_share)
            tasks[data["id"]] = EnvironmentTask(
                id=data["id"], digest=digest, split=split, data=data
            )
    if not tasks:
        raise ConfigError(f"{path}: no row can be checked")
    return list(tasks.values())


def _checkable_files(folder: Path) -> list[Path]:
    """Return the files of the categories that can be checked. The others are named in a note."""
    files = []
    left_out = []
    for file in _list_files(folder):
        category = _category_of(file)
        if _why_refused(category):
            left_out.append(category)
        else:
            files.append(file)
    if left_out:
        echo_error(f"note: categories that cannot be checked are left out: {', '.join(left_out)}")
    return files


def _convert_with_note(file: Path) -> Sequence[Mapping[str, Any]]:
    converted = convert_rows(file)
    if converted.refused:
        first, reason = next(iter(converted.refused.items()))
        echo_error(
            f"note: {len(converted.refused)} rows of {file.name} cannot be checked: {first} ({reason})"
        )
    return converted.tasks


def _list_files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if _CATEGORY.fullmatch(path.name) and path.is_file()
    ]


def _category_of(file: Path) -> str:
    named = _CATEGORY.fullmatch(file.name)
    return named.group(1) if named else file.stem


def _why_refused(category: str) -> str | None:
    if _CHECKED.fullmatch(category):
        return None
    return _WHY.get(
        category.removeprefix("live_"),
        "it needs the tools of BFCL, over several turns or with a memory",
    )


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        for line in text.split("\n"):
            if line.strip():
                yield json.loads(line)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(
            f"{path}: the rows cannot be read ({error}). Expected a data folder of BFCL"
        ) from None


@dataclass(slots=True, kw_only=True)
class _RowReader:
    """Converts the rows of a category. `answers`: id -> row with the ground truth."""

    category: str
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `ValueError` for a row that cannot be checked."""
        turns = row["question"]
        functions = {function["name"]: function for function in row["function"]}
        plain_names = {_plain_name(name) for name in functions}
        if len(turns) != 1:
            raise ValueError(
                f"it has {len(turns)} turns, and its calls can be compared in one only"
            )
        if not functions:
            raise ValueError("it has no functions")
        if len(plain_names) < len(row["function"]):
            raise ValueError("two of its functions have the same name")
        tools = [_convert_function(function) for function in row["function"]]
        return {
            "id": f"bfcl/{row['id']}",
            "messages": turns[0],
            "tools": tools,
            "only_calls": True,
            **self._read_answer(row["id"], functions),
            "category": self.category,
        }

    def _read_answer(
        self, row_id: str, functions: Mapping[str, Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Return the check and the solution."""
        if self.category.endswith("irrelevance"):
            return _NO_CALL
        if row_id not in self.answers:
            raise ValueError("it has no ground truth")
        ground_truth = self.answers[row_id]["ground_truth"]
        expected = [_expected_call(call, functions) for call in ground_truth]
        solution = [_solve_call(call) for call in expected]
        return {
            "check": {"kind": "bfcl", "value": expected},
            "calls": solution,
        }


def _plain_name(name: str) -> str:
    """Return a name without dots, which the chat completions API does not allow."""
    return name.replace(".", "_")[:64]


def _convert_function(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": _plain_name(function["name"]),
        "description": function.get("description", ""),
        "parameters": _convert_schema(function["parameters"]),
        "result": None,
    }


def _convert_schema(schema: Any) -> Any:
    """Return a JSON schema. BFCL names types as Python does."""
    if isinstance(schema, list):
        return [_convert_schema(one) for one in schema]
    if isinstance(schema, dict):
        return _convert_object(schema)
    return schema


def _convert_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for name, value in schema.items():
        match name, value:
            case "type", str():
                converted |= _convert_type(value)
            case "properties", dict():
                converted[name] = {key: _convert_schema(one) for key, one in value.items()}
            case "items" | "additionalProperties", _:
                converted[name] = _convert_schema(value)
            case "required", list():
                converted[name] = value
            case _ if name in _COPIED_KEYWORDS:
                converted[name] = value
    return converted


def _convert_type(name: str) -> dict[str, str]:
    """Return the keyword for a type of Python; none if any type is allowed."""
    python_type = name.lower()
    return {} if python_type == "any" else {"type": _TYPES.get(python_type, python_type)}


def _expected_call(
    call: Mapping[str, Any], functions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    (name, parameters), *more = call.items()
    if more or name not in functions:
        raise ValueError(f"its ground truth calls {name}, which is not among its functions")
    schema = functions[name]["parameters"]
    properties = schema.get("properties", {})
    types = {key: _type_names(key, one) for key, one in properties.items()}
    alternatives = {key: _as_list(values) for key, values in parameters.items()}
    return {
        "tool": _plain_name(name),
        "types": types,
        "required": _required_names(schema),
        "alternatives": alternatives,
    }


def _type_names(name: str, schema: Mapping[str, Any]) -> list[str]:
    """Return the name of a parameter's type, and of that of its items if it is a list."""
    names = [schema.get("type")]
    if names[0] in ("array", "tuple"):
        names.append(schema.get("items", {}).get("type"))
    unknown = [one for one in names if one not in PYTHON_TYPES]
    if unknown:
        raise ValueError(
            f"its parameter {name} has the type {unknown[0]}, which BFCL does not compare"
        )
    return [str(one) for one in names]


def _as_list(values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ValueError("its ground truth has no list of values")
    return values


def _required_names(schema: Mapping[str, Any]) -> Sequence[str]:
    names = schema.get("required", [])
    return names if isinstance(names, list) else []


def _solve_call(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call that matches: the first value of each parameter that is required or may not be left out."""
    arguments = {}
    for name, values in expected["alternatives"].items():
        candidates = [value for value in values if value != ""]
        if "" not in values or name in expected["required"]:
            arguments[name] = _solve_value(candidates[0] if candidates else "")
    return {"tool": expected["tool"], "arguments": arguments}


def _solve_value(value: Any) -> Any:
    """Return one value. The fields of an object are lists of alternatives."""
    if isinstance(value, list):
        return [_solve_value(one) for one in value]
    if isinstance(value, dict):
        return _solve_object(value)
    return value


def _solve_object(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the first alternative of each field, without those that may be left out only."""
    chosen = {}
    for name, values in fields.items():
        alternatives = [one for one in _as_list(values) if one != ""]
        if alternatives:
            chosen[name] = _solve_value(alternatives[0])
    return chosen
