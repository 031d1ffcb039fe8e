"""Tools in boxes: the shipped tasks, limits, what a model's code reaches, and tools that break."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.environments.agents.chat_agent import AgentCall, open_agent_session
from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.sources.tools.call_matching import CallMade
from openclaw_rl.environments.sources.tools.tool_box import ToolBroken
from openclaw_rl.environments.sources.tools.tool_config import ToolConfig
from openclaw_rl.environments.sources.tools.tool_session import ToolSession, ToolWorld
from openclaw_rl.environments.sources.tools.tool_task import parse_task
from openclaw_rl.environments.types import EnvironmentTask, PlayLimits, TaskFitness
from openclaw_rl.settings.schema_sandbox import SandboxConfig

SHIPPED = Path(__file__).parents[2] / "tasks" / "tools" / "tools.json"
SANDBOX = SandboxConfig(memory=256, processes=64, disk=16)
Steps = list[tuple[str, dict[str, Any]]]


def request_of(config: Path, tasks: Path | None = None) -> SourceRequest:
    return SourceRequest(
        source="tools",
        argument=str(config),
        tasks=tasks,
        sandbox=SANDBOX,
        search_path="/usr/bin:/bin",
    )


def check_all(
    request: SourceRequest, change: Callable[[dict[str, Any]], None] = lambda data: None
) -> list[TaskFitness]:
    """Check the tasks of a source, with the data of each changed."""
    source = find_source(request).make_source(request)

    async def check_each() -> list[TaskFitness]:
        found = []
        for task in source.load_tasks():
            data = dict(task.data)
            change(data)
            folder = new_scratch_folder("check")
            changed = EnvironmentTask(id=task.id, digest=task.digest, split=task.split, data=data)
            found.append(await source.check_task(changed, folder, PlayLimits(seconds=300)))
            shutil.rmtree(folder)
        return found

    return asyncio.run(check_each())


def test_each_shipped_task_is_fit() -> None:
    found = check_all(request_of(SHIPPED))
    assert len(found) == 10
    assert [(fitness.task, fitness.reason) for fitness in found if not fitness.fit] == []


def test_no_shipped_task_is_solved_without_its_calls() -> None:
    """An answer alone is enough only where the answer is all that is asked for."""
    found = check_all(request_of(SHIPPED), lambda data: data.update(calls=[], step_reward=None))
    by_answer = {fitness.task for fitness in found if fitness.oracle == 1.0}
    assert by_answer == {"bill-with-tip", "two-units", "digits-of-power", "words-of-log", "cheapest-flight",
                         "value-of-stock", "sorted-report"}  # fmt: skip


def use_tools(
    config: dict[str, Any], task: dict[str, Any], steps: Steps
) -> tuple[list[CallMade], dict[str, float]]:
    """Make calls in one episode and return their results and the checks with the last result as the answer."""
    made = ToolConfig.model_validate(config)
    data = {"prompt": "p", "check": {"kind": "pattern", "value": "."}} | task
    parsed = parse_task(EnvironmentTask(id="t", digest="0", split="train", data=data), made, Path())
    folder = new_scratch_folder("tools")
    Path(folder).mkdir()

    async def run() -> tuple[list[CallMade], dict[str, float]]:
        async with open_agent_session() as http:
            world = ToolWorld(config=made, folder=Path(), sandbox=SANDBOX, http=http, bridge=None)
            session = ToolSession(world, parsed, "e", folder)
            try:
                results = [
                    await session.answer_call(
                        AgentCall(id=str(n), name=name, arguments=json.dumps(arguments))
                    )
                    for n, (name, arguments) in enumerate(steps)
                ]
                return results, await session.score_checks(results[-1].result if results else "")
            finally:
                await session.close()

    try:
        return asyncio.run(run())
    finally:
        shutil.rmtree(folder)


ANY = {"type": "object"}
INTERPRETER = {"name": "python", "interpreter": True}
COUNTER = """
import json
count = 0
def add(by):
    global count
    count += by
    with open("/work/count.json", "w") as file:
        json.dump({"count": count, "secret": "s"}, file)
    print("not part of the result")
    return {"count": count}
def fail():
    raise ValueError("no such thing")
def end():
    import os
    os._exit(3)
def spin():
    while True:
        pass
def flood():
    return "x" * 10_000_000
def noise():
    import os, subprocess, sys
    os.write(1, b"noise\\n")
    subprocess.run(["echo", "noise"])
    print("noise", file=sys.__stdout__, flush=True)
    return sys.stdin.read()
"""
TOOLS = {
    "seconds": 1,
    "characters": 1000,
    "tools": [
        {"name": name, "parameters": ANY, "python": COUNTER}
        for name in ("add", "fail", "end", "spin", "flood", "noise")
    ]
    + [INTERPRETER],
}


def run_code(*codes: str) -> list[CallMade]:
    return use_tools(TOOLS, {}, [("python", {"code": code}) for code in codes])[0]


def test_state_stays_between_calls_and_is_checked_in_a_fresh_box() -> None:
    check = [
        {"kind": "json_file", "path": "count.json", "value": {"count": 5}, "ignore": ["secret"]},
        {"kind": "python", "code": "import json\ndef check(answer, calls, files):\n"
         "    return json.load(open(files + '/count.json'))['count'] == 5 and len(calls) == 2 and 'count' in answer"},
    ]  # fmt: skip
    results, scores = use_tools(TOOLS, {"check": check}, [("add", {"by": 2}), ("add", {"by": 3})])
    assert [r.result for r in results] == ['{"count": 2}', '{"count": 5}']
    assert scores == {"json_file": 1.0, "python": 1.0}


def test_an_exception_and_a_time_limit_are_answered() -> None:
    results, _ = use_tools(
        TOOLS,
        {},
        [("add", {"by": 1}), ("fail", {}), ("spin", {}), ("flood", {}), ("add", {"by": 1})],
    )
    assert [r.is_error for r in results] == [False, True, True, False, False]
    assert results[1].result == "ValueError: no such thing"
    assert "took too long" in results[2].result
    assert 1000 < len(results[3].result) < 1100
    assert results[4].result == '{"count": 2}', "the state is still there"


def test_output_that_a_tool_or_its_programs_print_is_no_answer() -> None:
    results, _ = use_tools(TOOLS, {}, [("noise", {}), ("add", {"by": 2})])
    assert [r.result for r in results] == ["", '{"count": 2}']


def test_a_tool_whose_process_ends_is_void() -> None:
    with pytest.raises(ToolBroken, match="tool end: its process ended"):
        use_tools(TOOLS, {}, [("end", {})])
    broken = {"tools": [{"name": "f", "python": "import no_such_module"}]}
    with pytest.raises(ToolBroken, match="No module named 'no_such_module'"):
        use_tools(broken, {}, [("f", {})])


def test_a_checker_that_fails_is_void() -> None:
    for code in (
        "def check(a, c, f): raise OSError",
        "def check(a, c, f): return 2",
        "while True: pass",
    ):
        with pytest.raises(ToolBroken, match="checker"):
            use_tools(TOOLS, {"check": {"kind": "python", "code": code, "seconds": 1}}, [])


def test_calls_of_an_episode_share_an_interpreter() -> None:
    found = run_code("x = 20\nprint('hello')\nx + 1", "x * 2", "1 / 0", "def f(", "exit()", "x")
    assert [r.result for r in found[:2]] == ["hello\n21\n", "40\n"]
    assert [r.is_error for r in found] == [False, False, True, True, True, False]
    assert "ZeroDivisionError: division by zero" in found[2].result
    assert "SyntaxError" in found[3].result
    assert found[5].result == "20\n"


def test_code_that_hangs_or_kills_its_interpreter_gets_a_new_one() -> None:
    catches = (
        "x = 1\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass"
    )
    for code in (
        catches,
        "import os\nos.kill(os.getpid(), 9)",
        "x = 'x' * (1 << 34)\nx",
        "import os\nos._exit(0)",
    ):
        found = run_code("y = 1", code, "print('again')", "y")
        assert found[1].is_error, found
        assert found[2].result == "again\n"
    assert "started again" in found[1].result
    assert "NameError" in found[3].result


def test_the_models_code_reaches_neither_the_tools_nor_the_network() -> None:
    """Tools and their state are in another box, and the box of the model has no network."""
    look = (
        "import glob, socket\nfound = [open(f).read() for f in glob.glob('/work/*') + glob.glob('/tmp/tools/*.json')]\n"
        "print('secret' in ''.join(found), 'def add' in ''.join(found))\n"
        "try:\n    socket.create_connection(('127.0.0.1', 22), 1)\nexcept OSError as e:\n    print(type(e).__name__)"
    )
    results, scores = use_tools(
        TOOLS,
        {"check": {"kind": "json_file", "path": "count.json", "value": {"count": 1}, "ignore": ["secret"]}},
        [("add", {"by": 1}), ("python", {"code": look}),
         ("python", {"code": "open('/work/count.json', 'w').write('{\"count\": 9}')"})],
    )  # fmt: skip
    assert results[1].result == "False False\nConnectionRefusedError\n"
    assert scores == {"json_file": 1.0}


def test_a_file_that_is_a_link_or_no_database_is_not_done() -> None:
    code = "import os\nos.symlink('/etc/hostname', '/work/a.json')\nopen('/work/b.db', 'w').write('no database')"
    checks = [
        {"kind": "json_file", "path": "a.json", "value": "box"},
        {"kind": "sqlite", "path": "b.db", "query": "SELECT 1", "rows": [[2]]},
        {"kind": "sqlite", "name": "gone", "path": "gone.db", "query": "SELECT 1", "rows": [[1]]},
    ]
    only = {"tools": [INTERPRETER]}
    _, scores = use_tools(only, {"check": checks}, [("python", {"code": code})])
    assert scores == {"json_file": 0.0, "sqlite": 0.0, "gone": 0.0}


def test_a_solution_that_does_not_fit_the_tools_is_unfit(tmp_path: Path) -> None:
    config, tasks = tmp_path / "tools.json", tmp_path / "tasks.jsonl"
    config.write_text(
        json.dumps(
            {
                "tools": [
                    {
                        "name": "f",
                        "parameters": {"type": "object", "required": ["a"]},
                        "python": "def f(a): return a // a",
                    }
                ]
            }
        )
    )
    lines = [
        {"calls": [{"tool": "f"}], "answer": "1"},
        {"calls": [{"tool": "f", "arguments": {"a": 1}}], "answer": "2"},
        {"calls": [], "answer": "1", "check": {"kind": "pattern", "value": ".*"}},
        {"calls": [{"tool": "f", "arguments": {"a": 0}}], "answer": "1"},
    ]
    tasks.write_text("".join(json.dumps({"prompt": str(n), "check": {"kind": "exact", "value": "1"}} | line) + "\n"
                             for n, line in enumerate(lines)))  # fmt: skip
    reasons = [fitness.reason for fitness in check_all(request_of(config, tasks))]
    assert "call 0, f: error: arguments: 'a' is a required property" in reasons[0]
    assert "the recorded solution got 0, not 1" in reasons[1]
    assert "doing nothing got 1" in reasons[2]
    assert "oracle: call 0, f: ZeroDivisionError" in reasons[3]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f() return 1", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("def g(): return 1", "KeyError: 'f'"),
        ("while True: pass", "did not load in 4 s"),
        ("import os; os._exit(3)", "the code of the tools ended"),
    ],
)
def test_tools_that_do_not_load_are_unfit_also_if_no_call_is_recorded(
    tmp_path: Path, code: str, reason: str
) -> None:
    config, tasks = tmp_path / "tools.json", tmp_path / "tasks.jsonl"
    config.write_text(json.dumps({"tools": [{"name": "f", "python": code}], "seconds": 1}))
    tasks.write_text(
        json.dumps({"prompt": "p", "answer": "1", "check": {"kind": "exact", "value": "1"}})
    )
    (fitness,) = check_all(request_of(config, tasks))
    assert not fitness.fit
    assert reason in fitness.reason
