"""Rows in the format of BFCL as tasks: what is converted, compared, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from examples.tools.bfcl_tasks import convert_path, convert_rows

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.sources.tools.answer_checks import (
    BfclCheck,
    CallsCheck,
    PatternCheck,
    parse_checks,
)
from openclaw_rl.environments.sources.tools.call_matching import CallMade
from openclaw_rl.environments.sources.tools.tool_config import ToolConfig
from openclaw_rl.environments.sources.tools.tool_task import parse_task
from openclaw_rl.environments.types import EnvironmentTask
from openclaw_rl.errors import ConfigError

FUNCTION = {
    "name": "hotel.book",
    "description": "Book.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string"},
            "price": {"type": "float"},
            "guests": {
                "type": "array",
                "items": {"type": "dict", "properties": {"name": {"type": "any"}}},
            },
            "breakfast": {"type": "boolean", "default": True},
        },
        "required": ["city"],
    },
}
TRUTH = {
    "hotel.book": {
        "city": ["San Marino", "S. Marino"],
        "price": [80, ""],
        "guests": [[{"name": ["Ann"]}], ""],
        "breakfast": ["", True],
    }
}


def write(folder: Path, *rows: tuple[dict[str, Any], Any], category: str = "simple_python") -> Path:
    (folder / "possible_answer").mkdir(exist_ok=True)
    name = f"BFCL_v4_{category}.json"
    questions, answers = [], []
    for number, (function, truth) in enumerate(rows):
        asked = [[{"role": "user", "content": f"Book {number}"}]]
        questions.append(
            json.dumps({"id": f"r{number}", "question": asked, "function": [function]})
        )
        answers.append(json.dumps({"id": f"r{number}", "ground_truth": truth}))
    (folder / name).write_text("\n".join(questions))
    (folder / "possible_answer" / name).write_text("\n".join(answers))
    return folder / name


def load_folder(path: Path) -> list[EnvironmentTask]:
    tasks = (path if path.is_dir() else path.parent) / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in convert_path(path)))
    request = SourceRequest(source="tools", tasks=tasks, search_path="/usr/bin")
    return list(find_source(request).make_source(request).load_tasks())


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        ({"city": "san-marino"}, True),
        ({"city": "S Marino", "price": 80.0, "guests": [{"name": "ann"}], "breakfast": True}, True),
        ({"city": "San Marino", "guests": [{"name": "Bob"}]}, False),
        ({"city": "San Marino", "breakfast": False}, False),
        ({"price": 80}, False),
        ({"city": "", "price": ""}, False),
        ({"city": "San Marino", "price": "80"}, False),
        ({"city": "San Marino", "price": True}, False),
        ({"city": "San Marino", "price": 10**400}, False),
        ({"city": "San Marino", "guests": [{"name": "Ann", "age": 3}]}, False),
        ({"city": "San Marino", "guests": {"name": "Ann"}}, False),
        ({"city": ["San Marino"]}, False),
        ({"city": "San Marino", "hotel": "Ritz"}, False),
    ],
)
def test_calls_are_compared_with_the_alternatives(
    tmp_path: Path, arguments: dict[str, Any], is_right: bool
) -> None:
    (task,) = load_folder(write(tmp_path, (FUNCTION, [TRUTH])))
    parsed: Any = parse_task(task, ToolConfig(), tmp_path)
    assert parsed.only_calls
    assert parsed.tools[0].name == "hotel_book"
    assert parsed.tools[0].parameters["properties"]["guests"]["items"]["type"] == "object"
    assert parsed.checks[0].score_calls(
        [CallMade(tool="hotel_book", arguments=arguments)]
    ) == float(is_right)
    assert parsed.checks[0].score_calls([]) == 0.0
    solved = [CallMade(tool=call.tool, arguments=call.arguments) for call in parsed.calls]
    assert parsed.checks[0].score_calls(solved) == 1.0


def test_values_have_the_declared_type_or_that_of_the_answer(tmp_path: Path) -> None:
    schema = {"nights": {"type": "integer"}, "dates": {"type": "array", "items": {"type": "float"}}}
    function = {
        "name": "stay",
        "parameters": {"type": "dict", "properties": schema, "required": ["nights"]},
    }
    (data,) = convert_rows(
        write(tmp_path, (function, [{"stay": {"nights": [3, "n", ""], "dates": [[1, 2.5], ""]}}]))
    ).tasks
    (check,) = parse_checks([data["check"]], "t", tmp_path)
    assert isinstance(check, BfclCheck)

    def is_right(**arguments: Any) -> bool:
        return bool(check.score_calls([CallMade(tool="stay", arguments=arguments)]))

    assert is_right(nights=3)
    assert not is_right(nights=3.0), "an integer is no float"
    assert not is_right(nights="n"), "the type of the answer is that of its first value"
    assert not is_right(), "required, even if an answer may leave it out"
    assert is_right(nights=3, dates=[1, 2.5])
    assert not is_right(nights=3, dates=[2.5, 1])
    assert not is_right(nights=3, dates=["1", 2.5])


def test_the_order_of_parallel_calls_does_not_count(tmp_path: Path) -> None:
    truth = [{"hotel.book": {"city": ["A", "B"]}}, {"hotel.book": {"city": ["A"]}}]
    (data,) = convert_rows(write(tmp_path, (FUNCTION, truth), category="parallel")).tasks
    (check,) = parse_checks([data["check"]], "t", tmp_path)
    assert isinstance(check, BfclCheck)
    a, b = (CallMade(tool="hotel_book", arguments={"city": city}) for city in "AB")
    assert [check.score_calls(calls) for calls in ([a, b], [b, a], [b, b], [a], [a, b, a])] == [
        1,
        1,
        0,
        0,
        0,
    ]


def test_an_answer_without_a_call_is_right_where_no_function_helps(tmp_path: Path) -> None:
    file = write(tmp_path, (FUNCTION, None), ({}, None), category="live_irrelevance")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("\n".join(json.dumps(row) for row in [rows[0], {**rows[1], "function": []}]))
    found = convert_rows(file)
    assert found.refused == {"r1": "it has no functions"}
    calls, answered = parse_checks(found.tasks[0]["check"], "t", tmp_path)
    assert isinstance(calls, CallsCheck)
    assert isinstance(answered, PatternCheck)
    assert calls.score_calls([]) == 1.0
    assert calls.score_calls([CallMade(tool="hotel_book", arguments=None)]) == 0.0
    assert [answered.score_answer(text) for text in (found.tasks[0]["answer"], " \n")] == [1.0, 0.0]


def test_a_folder_is_all_its_categories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, (FUNCTION, [TRUTH]), category="simple_java")
    with pytest.raises(ConfigError, match="no row can be checked"):
        load_folder(tmp_path)
    for category in ("simple", "live_irrelevance"):
        write(tmp_path, (FUNCTION, [TRUTH]), category=category)
    with pytest.raises(ConfigError, match="the id bfcl/r0 is also in another file"):
        load_folder(tmp_path)
    rows = (tmp_path / "BFCL_v4_simple.json").read_text().replace("r0", "s0")
    (tmp_path / "BFCL_v4_live_irrelevance.json").write_text(rows)
    assert [(task.id, task.data["category"]) for task in load_folder(tmp_path)] == [
        ("bfcl/s0", "live_irrelevance"), ("bfcl/r0", "simple")
    ]  # fmt: skip
    assert "left out: simple_java" in capsys.readouterr().err


def test_rows_that_cannot_be_checked_are_refused_with_the_reason(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], Any]] = [
        (FUNCTION, [TRUTH]), (FUNCTION, [{"other": {}}]), (FUNCTION, [{"hotel.book": {"city": []}}])
    ]  # fmt: skip
    found = convert_rows(write(tmp_path, *rows))
    assert [task["id"] for task in found.tasks] == ["bfcl/r0"]
    assert "calls other, which is not among its functions" in found.refused["r1"]
    assert "no list of values" in found.refused["r2"]
    refused = {
        "simple_java": "in Java",
        "multi_turn_base": "several turns",
        "live_relevance": "no calls",
    }
    for category, words in refused.items():
        with pytest.raises(ConfigError, match=words):
            convert_rows(write(tmp_path, category=category))
    (tmp_path / "possible_answer" / "BFCL_v4_simple_python.json").unlink()
    with pytest.raises(ConfigError, match="possible_answer"):
        convert_rows(tmp_path / "BFCL_v4_simple_python.json")
