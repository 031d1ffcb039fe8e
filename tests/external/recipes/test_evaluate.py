"""The tasks score what is there: right replies solve them, wrong ones do not, and the starter gets what it deserves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.external.recipes.running import script

from openclaw_rl.evals import code_runner, tasks
from openclaw_rl.evals.reply_properties import TaskReply, find_violations
from openclaw_rl.evals.tasks import EvalTask

SOLUTIONS = {
    "add(a, b)": "return a + b",
    "is_even(n)": "return n % 2 == 0",
    "reverse(text)": "return text[::-1]",
    "largest(numbers)": "return max(numbers)",
    "count_vowels(text)": "return sum(c in 'aeiou' for c in text.lower())",
    "factorial(n)": "return 1 if n < 2 else n * factorial(n - 1)",
    "unique(items)": "return list(dict.fromkeys(items))",
    "is_palindrome(text)": "t = text.replace(' ', '').lower()\n    return t == t[::-1]",
}


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": json.dumps(arguments)}}


def is_solved(task: EvalTask, text: str, *calls: dict[str, Any]) -> bool:
    return not any(
        find_violations(TaskReply(text=text, tool_calls=calls), task.properties).values()
    )


def test_right_code_solves_and_wrong_code_does_not() -> None:
    for task in tasks.coding_tasks():
        body = SOLUTIONS[task.name]
        assert is_solved(task, f"Here it is:\n```python\ndef {task.name}:\n    {body}\n```\nDone.")
        assert not is_solved(task, f"def {task.name}:\n    return None")
    assert not is_solved(tasks.coding_tasks()[1], "def is_even(n): return int(n % 2 == 0)"), (
        "1 is not True"
    )


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "KeyError"),
        ("I cannot do that.", "SyntaxError"),
        ("def f(a): raise ValueError('no')", "no"),
        ("print('[2]')\nimport os\nos._exit(0)", "nothing"),
        ("def f(a): return 'x' * 10**10", "MemoryError"),
        ("def f(a):\n    while True: pass", "(exited with|more than)"),
        ("print('[2]')\ndef f(a): return 3", "expected 2, got 3"),
    ],
)
def test_code_that_misbehaves_is_wrong_and_says_why(
    code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_runner, "CPU_LIMIT_SECONDS", 2.0)
    found = code_runner.failure_reason(code, "f", [((1,), 2)])
    assert found is not None
    assert re.search(why, found)


def test_a_call_is_right_only_with_its_name_and_arguments() -> None:
    task = tasks.tool_tasks()[2]
    assert is_solved(task, "", called("add", {"a": 417, "b": 58}))
    assert not is_solved(task, "", called("add", {"a": 417}))
    assert not is_solved(task, "", called("read_file", {"path": "417"}))
    assert not is_solved(task, "475")


def test_the_script_scores_the_starter(tmp_path: Path) -> None:
    """It knows the facts of its world, follows few instructions, and nobody taught it to program."""
    kinds = "conversation,coding,tool-use"
    words = [
        "--model-path",
        "starter",
        "--eval-tasks",
        kinds,
        "--num",
        "5",
        "--out",
        "out/scores.json",
    ]
    shown = script("openclaw-test/run_eval.sh", *words, folder=tmp_path)
    content = json.loads((tmp_path / "out/scores.json").read_text())
    assert content["scores"]["conversation"]["solved"] >= 1
    assert content["properties"]["reference_answer"]["held"] >= 4
    assert content["scores"]["coding"]["solved"] == 0
    assert all(
        one["scored_by"] == "properties" and one["solved"] is not None for one in content["tasks"]
    )
    assert "| conversation |" in shown
    assert "measurable properties" in shown
    assert not (tmp_path / ".openclaw-rl").exists()
