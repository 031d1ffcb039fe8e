"""Converts rows of the Berkeley Function-Calling Leaderboard (BFCL, versions 3 and 4) to tasks of `tools`.

A row of `BFCL_v4_CATEGORY.json` has `question` and `function`; the row of the same id in `possible_answer/` has
`ground_truth`. The calls of the first reply are checked, and not executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.common.printable import echo_error
from openclaw_rl.environments.task_file import split_by_digest, task_digest
from openclaw_rl.environments.types import EnvironmentTask
from openclaw_rl.errors import ConfigError

_ANSWERS = "possible_answer"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_CATEGORY = re.compile(r"BFCL_v[0-9]+_(.+)\.jsonl?")
_CHECKED = re.compile(r"(live_)?(simple|multiple|parallel|parallel_multiple|simple_python)")
_WHY = {
    "simple_java": "its calls are in Java",
    "simple_javascript": "its calls are in JavaScript",
    "java": "its calls are in Java",
    "javascript": "its calls are in JavaScript",
    "rest": "its calls need services on the internet",
    "web_search": "its calls need the internet",
    "irrelevance": "it has no calls to compare with",
    "relevance": "it has no calls to compare with",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedRows:
    """`tasks`: lines of a task file. `refused`: id of a row -> why it cannot be checked here."""

    tasks: Sequence[Mapping[str, Any]]
    refused: Mapping[str, str]


def convert_rows(questions: Path) -> ConvertedRows:
    """Return the tasks of a file of BFCL, with its answers from `possible_answer/` beside it.

    Raises `ConfigError` for a file that cannot be read, and for a category whose calls cannot be compared.
    """
    named = _CATEGORY.fullmatch(questions.name)
    category = named.group(1) if named else questions.stem
    if not _CHECKED.fullmatch(category):
        why = _WHY.get(
            category.removeprefix("live_"), "it needs the tools of BFCL, over several turns or with a memory"
        )
        raise ConfigError(
            f"{questions.name}: the category {category} is not supported: {why}. Supported are simple, multiple, "
            "parallel and parallel_multiple, of Python, also live"
        )
    answers = {row["id"]: row for row in _read_rows(questions.parent / _ANSWERS / questions.name)}
    tasks, refused = [], {}
    for row in _read_rows(questions):
        try:
            tasks.append(_convert_row(row, answers, category))
        except ValueError as error:
            refused[str(row.get("id"))] = str(error)
    return ConvertedRows(tasks=tasks, refused=refused)


def is_bfcl_file(path: Path) -> bool:
    """Return whether a file has the name of a category of BFCL."""
    return _CATEGORY.fullmatch(path.name) is not None


def read_bfcl_tasks(path: Path, held_out_share: float) -> list[EnvironmentTask]:
    """Return the tasks of a file of BFCL. Rows that cannot be checked are left out, with a note.

    Raises `ConfigError`.
    """
    found = convert_rows(path)
    if found.refused:
        first, why = next(iter(found.refused.items()))
        echo_error(f"note: {len(found.refused)} rows of {path.name} cannot be checked: {first} ({why})")
    tasks = []
    for data in found.tasks:
        digest = task_digest(data)
        split = split_by_digest(digest, held_out_share)
        tasks.append(EnvironmentTask(id=data["id"], digest=digest, split=split, data=data))
    if not tasks:
        raise ConfigError(f"{path}: no row can be checked")
    return tasks


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        for line in text.splitlines():
            if line.strip():
                yield json.loads(line)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: the rows cannot be read ({error}). Expected a data folder of BFCL") from None


def _convert_row(row: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]], category: str) -> dict[str, Any]:
    """Raises `ValueError` for a row that cannot be checked."""
    if row["id"] not in answers:
        raise ValueError("it has no ground truth")
    turns = row["question"]
    if len(turns) != 1:
        raise ValueError(f"it has {len(turns)} turns, and its calls can be compared in one only")
    names = {function["name"]: _plain_name(function["name"]) for function in row["function"]}
    if len(set(names.values())) < len(row["function"]):
        raise ValueError("two of its functions have the same name")
    truth = answers[row["id"]]["ground_truth"]
    expected = [_expected_call(call, names) for call in truth]
    required = {names[f["name"]]: _required_names(f["parameters"]) for f in row["function"]}
    solution = [_solve_call(call, required[call["tool"]]) for call in expected]
    return {
        "id": f"bfcl/{row['id']}",
        "messages": turns[0],
        "tools": [_convert_function(function, names) for function in row["function"]],
        "only_calls": True,
        "check": {"kind": "calls", "value": expected, "loose_text": True},
        "calls": solution,
        "category": category,
    }


def _plain_name(name: str) -> str:
    """Return a name without dots, which the chat completions API does not allow."""
    return name.replace(".", "_")[:64]


def _convert_function(function: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": names[function["name"]],
        "description": function.get("description", ""),
        "parameters": _convert_schema(function["parameters"]),
        "result": None,
    }


def _convert_schema(schema: Any) -> Any:
    """Return a JSON schema. BFCL names types as Python does."""
    if isinstance(schema, list):
        return [_convert_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            if value.lower() != "any":
                made[name] = _TYPES.get(value.lower(), value.lower())
        elif name == "properties" and isinstance(value, dict):
            made[name] = {key: _convert_schema(one) for key, one in value.items()}
        elif name == "required" and not isinstance(value, list):
            continue
        elif name in ("items", "additionalProperties"):
            made[name] = _convert_schema(value)
        elif name in ("description", "enum", "required", "default", "title", "format", "minimum", "maximum"):
            made[name] = value
    return made


def _expected_call(call: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    (name, parameters), *more = call.items()
    if more or name not in names:
        raise ValueError(f"its ground truth calls {name}, which is not among its functions")
    return {"tool": names[name], "alternatives": {key: _as_list(values) for key, values in parameters.items()}}


def _as_list(values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ValueError("its ground truth has no list of values")
    return values


def _required_names(schema: Mapping[str, Any]) -> Sequence[str]:
    found = schema.get("required", [])
    return found if isinstance(found, list) else []


def _solve_call(expected: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """Return a call that matches: the first value of each parameter that is required or may not be left out."""
    arguments = {}
    for name, values in expected["alternatives"].items():
        given = [value for value in values if value != ""]
        if "" not in values or name in required:
            arguments[name] = _solve_value(given[0] if given else "")
    return {"tool": expected["tool"], "arguments": arguments}


def _solve_value(value: Any) -> Any:
    """Return one value. The fields of an object are lists of alternatives."""
    if isinstance(value, list):
        return [_solve_value(one) for one in value]
    if isinstance(value, dict):
        chosen = {name: [one for one in _as_list(values) if one != ""] for name, values in value.items()}
        return {name: _solve_value(values[0]) for name, values in chosen.items() if values}
    return value
