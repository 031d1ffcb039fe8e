"""The tasks score what is there: right replies solve them, wrong ones do not, and the starter gets what it deserves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.external.recipes.running import script

from openclaw_rl.errors import ConfigError
from openclaw_rl.evals import code_runner, task_scores, tasks
from openclaw_rl.settings.load import from_flat

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


def said(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": words}


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"function": {"name": name, "arguments": json.dumps(arguments)}}]}


def test_right_code_solves_and_wrong_code_does_not() -> None:
    for task in tasks.coding_tasks():
        body = SOLUTIONS[task.name]
        assert task.check(said(f"Here it is:\n```python\ndef {task.name}:\n    {body}\n```\nDone.")) is None
        assert task.check(said(f"def {task.name}:\n    return None")) is not None
    assert tasks.coding_tasks()[1].check(said("def is_even(n): return int(n % 2 == 0)")) is not None, "1 is not True"


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
def test_code_that_misbehaves_is_wrong_and_says_why(code: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_runner, "CPU_LIMIT_SECONDS", 2.0)
    found = code_runner.failure_reason(code, "f", [((1,), 2)])
    assert found is not None
    assert re.search(why, found)


def test_a_call_is_right_only_with_its_name_and_arguments() -> None:
    task = tasks.tool_tasks()[2]
    assert task.check(called("add", {"a": 417, "b": 58})) is None
    for wrong in (called("add", {"a": 417}), called("read_file", {"path": "417"}), said("475")):
        assert task.check(wrong) is not None


def test_a_conversation_wants_the_fact_and_the_style() -> None:
    (task,) = (t for t in tasks.conversation_tasks()[:1])
    assert task.name.startswith("short: ")
    assert "not right" in str(task.check(said("I do not know.")))
    assert len({t.name for t in tasks.conversation_tasks()}) == tasks.CONVERSATION_COUNT


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="conversation, coding, tool-use"):
        task_scores.evaluate_model(from_flat({}), ["poetry"])


def test_the_script_scores_the_starter(tmp_path: Path) -> None:
    """It knows the world and follows a style; nobody taught it to program."""
    kinds = "conversation,coding,tool-use"
    words = ["--model-path", "starter", "--eval-tasks", kinds, "--num", "5", "--out", "out/scores.json"]
    shown = script("openclaw-test/run_eval.sh", *words, folder=tmp_path)
    told = json.loads((tmp_path / "out/scores.json").read_text())
    assert told["scores"]["conversation"]["solved"] >= 4
    assert told["scores"]["coding"] == {"solved": 0, "of": 5}
    assert all(one["wrong"] or one["reply"] for one in told["tasks"])
    assert "| conversation |" in shown
    assert not (tmp_path / ".openclaw-rl").exists()
