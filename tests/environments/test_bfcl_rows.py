"""Rows in the format of BFCL as tasks: what is converted, compared, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.sources.tools.bfcl_rows import convert_rows
from openclaw_rl.environments.sources.tools.call_matching import CallMade
from openclaw_rl.environments.sources.tools.tool_config import ToolConfig
from openclaw_rl.environments.sources.tools.tool_task import parse_task
from openclaw_rl.errors import ConfigError

FUNCTION = {
    "name": "hotel.book",
    "description": "Book.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string"},
            "price": {"type": "float"},
            "guests": {"type": "array", "items": {"type": "dict", "properties": {"name": {"type": "any"}}}},
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
        questions.append(json.dumps({"id": f"r{number}", "question": asked, "function": [function]}))
        answers.append(json.dumps({"id": f"r{number}", "ground_truth": truth}))
    (folder / name).write_text("\n".join(questions))
    (folder / "possible_answer" / name).write_text("\n".join(answers))
    return folder / name


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        ({"city": "san-marino"}, True),
        ({"city": "S Marino", "price": 80.0, "guests": [{"name": "ann"}], "breakfast": True}, True),
        ({"city": "San Marino", "guests": [{"name": "Bob"}]}, False),
        ({"city": "San Marino", "breakfast": False}, False),
        ({"price": 80}, False),
    ],
)
def test_calls_are_compared_with_the_alternatives(tmp_path: Path, arguments: dict[str, Any], is_right: bool) -> None:
    file = write(tmp_path, (FUNCTION, [TRUTH]))
    source = find_source(SourceRequest(source="tools", tasks=file, search_path="/usr/bin")).make_source(
        SourceRequest(source="tools", tasks=file, search_path="/usr/bin")
    )
    (task,) = source.load_tasks()
    parsed: Any = parse_task(task, ToolConfig(), tmp_path)
    assert parsed.only_calls
    assert parsed.tools[0].name == "hotel_book"
    assert parsed.tools[0].parameters["properties"]["guests"]["items"]["type"] == "object"
    assert parsed.checks[0].score_calls([CallMade(tool="hotel_book", arguments=arguments)]) == float(is_right)
    assert parsed.checks[0].score_calls([]) == 0.0
    solved = [CallMade(tool=call.tool, arguments=call.arguments) for call in parsed.calls]
    assert parsed.checks[0].score_calls(solved) == 1.0


def test_what_cannot_be_checked_is_refused_with_the_reason(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], Any]] = [
        (FUNCTION, [TRUTH]), (FUNCTION, [{"other": {}}]), (FUNCTION, [{"hotel.book": {"city": []}}])
    ]  # fmt: skip
    found = convert_rows(write(tmp_path, *rows))
    assert [task["id"] for task in found.tasks] == ["bfcl/r0"]
    assert "calls other, which is not among its functions" in found.refused["r1"]
    assert "no list of values" in found.refused["r2"]
    refused = {"simple_java": "in Java", "multi_turn_base": "several turns", "irrelevance": "no calls"}
    for category, words in refused.items():
        with pytest.raises(ConfigError, match=words):
            convert_rows(write(tmp_path, category=category))
    (tmp_path / "possible_answer" / "BFCL_v4_simple_python.json").unlink()
    with pytest.raises(ConfigError, match="possible_answer"):
        convert_rows(tmp_path / "BFCL_v4_simple_python.json")
