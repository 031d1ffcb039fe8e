"""`openclaw-rl evaluate` on the starter policy, with and without a judge behind a real endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.judge.endpoint import Answer, completion, serving, vote
from tests.system.test_damaged_weights import rows, teach, trained_turns
from tests.system.test_parked import readiness, wait_for

from openclaw_rl.common.sockets import free_port
from openclaw_rl.settings.load import Config, foreign_environment
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

pytestmark = pytest.mark.system

Outcome = tuple[int, str, str]  # exit code, stdout, stderr


async def evaluate(*arguments: str, terminal: int | None = None) -> Outcome:
    """Run the command. `terminal`: file descriptor that becomes its stderr and is closed here."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "openclaw_rl", "evaluate", "--model-path", "starter", *arguments),
        env=foreign_environment({"COLUMNS": "80", "TERM": "xterm"}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if terminal is None else terminal,
    )
    if terminal is not None:
        os.close(terminal)
    out, err = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode is not None
    return process.returncode, out.decode(), (err or b"").decode()


def judge_flags(port: int) -> list[str]:
    values = {
        "kind": "llm",
        "base_url": f"http://127.0.0.1:{port}/v1",
        "model": "grader",
        "retries": 0,
    }
    return [part for key, value in values.items() for part in ("--set", f"judge.{key}={value}")]


def with_judge(answer: Answer, run: Callable[[list[str]], Awaitable[Outcome]]) -> Outcome:
    async def serve_and_run() -> Outcome:
        async with serving(answer) as endpoint:
            return await run(judge_flags(endpoint.port))

    return asyncio.run(serve_and_run())


async def by_reference(request: web.Request, number: int) -> web.StreamResponse:
    """Grade as a judge would that looks only for the reference answer in the reply."""
    record = (await request.json())["messages"][-1]["content"]
    _, reply, rest = re.split(r"<<\w+ (?:REPLY under judgement|REFERENCE[^>]*)>>\n", record)
    references = rest.partition("\n<<")[0].splitlines()
    return completion(vote(1 if any(answer in reply for answer in references) else -1))


def test_the_judge_scores_the_conversations_and_the_rest_is_checked() -> None:
    status, out, err = with_judge(
        by_reference, lambda flags: evaluate("--num", "5", "--json", *flags)
    )
    assert (status, err) == (0, "")
    content: dict[str, Any] = json.loads(out)
    assert content["scores"]["conversation"]["scored_by"] == "llm:grader@evaluation-2"
    assert (
        content["scores"]["conversation"]["solved"]
        == content["properties"]["reference_answer"]["held"]
        >= 4
    )
    assert {content["scores"][kind]["scored_by"] for kind in ("coding", "tool-use")} == {
        "properties"
    }


def read_terminal(master: int) -> str:
    """Return what was written to a terminal until its last writer closed it."""
    shown = b""
    with contextlib.suppress(OSError):  # Linux reports the end as EIO
        while part := os.read(master, 1 << 16):
            shown += part
    return shown.decode(errors="replace")


def test_progress_is_shown_on_a_terminal() -> None:
    async def run_on_terminal() -> tuple[Outcome, str]:
        master, slave = pty.openpty()
        reader = asyncio.create_task(asyncio.to_thread(read_terminal, master))
        done = await evaluate("--eval-tasks", "conversation", "--num", "2", terminal=slave)
        shown = await reader
        os.close(master)
        return done, shown

    (status, out, _), shown = asyncio.run(run_on_terminal())
    assert status == 0
    assert "starting the model" in shown
    assert "2/2" in shown
    assert "scored by measurable properties" in " ".join(out.split())


def test_a_judge_that_does_not_answer_ends_the_evaluation() -> None:
    status, out, err = asyncio.run(evaluate(*judge_flags(free_port())))
    assert (status, out) == (1, "")
    assert "connection failed" in err
    assert "judge.kind=rules" in err
    assert "Traceback" not in err


def test_a_judge_that_stops_leaves_tasks_without_a_score(tmp_path: Path) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion(vote(1)) if number <= 6 else web.Response(status=500)

    flags = ["--eval-tasks", "conversation", "--num", "4", "--out", str(tmp_path / "scores.json")]
    status, out, err = with_judge(answer, lambda judge: evaluate(*flags, *judge))
    counts = json.loads((tmp_path / "scores.json").read_text())["scores"]["conversation"]
    assert status == 1
    assert counts["errors"] >= 2
    assert counts["solved"] + counts["errors"] == 4
    assert "HTTP 500" in err
    assert "| conversation |" in out


def test_a_model_at_judge_path_is_served_and_asked() -> None:
    """The starter policy is too small to judge, so it answers without a vote."""
    status, _, err = asyncio.run(evaluate("--set", "judge.kind=llm", "--set", "judge.path=starter"))
    assert status == 1
    assert re.search(
        r"judge starter at http://127\.0\.0\.1:\d+/v1/chat/completions: no usable vote: expected a JSON",
        err,
    )


def test_a_judge_of_reactions_is_named_as_unsuitable() -> None:
    flags = [
        "--set",
        "judge.kind=classifier",
        "--set",
        "judge.reward_path=/no/such",
        "--eval-tasks",
        "poetry",
    ]
    status, _, err = asyncio.run(evaluate(*flags))
    assert status == 1
    assert "note: judge.kind is classifier, which scores reactions" in err
    assert "expected some of conversation, coding, tool-use" in err


def turn_reasons(config: Config) -> list[str | None]:
    with Store.open(config.store_path, create=False) as store, store.read() as conn:
        return [
            row[0] for row in conn.exec_driver_sql("SELECT reason FROM turns ORDER BY rowid").all()
        ]


def test_versions_of_a_home_are_compared_whether_or_not_a_system_runs(tmp_path: Path) -> None:
    config = scratch_config(
        tmp_path / "home", {"train.method": "binary", "train.batch.min_turns": 1}
    )
    flags = [
        "--home",
        config.home,
        "--tasks",
        "conversation,personal",
        "--num",
        "2",
        "--seeds",
        "2",
    ]
    compared = [*flags, "--policy", "head", "--against", "base"]
    with SubprocessSystem(config) as system:
        teach(system, 1)
        wait_for(lambda: readiness(system)["version"] == 1)
        used, turns = trained_turns(config), len(turn_reasons(config))
        running = asyncio.run(evaluate(*compared, "--report", str(tmp_path / "report")))
        wait_for(lambda: turn_reasons(config)[turns:].count(None) == 0)
        assert len(turn_reasons(config)) > turns + 2 * 2 * 2 * 4 - 1
        assert {"side traffic" in str(reason) for reason in turn_reasons(config)[turns:]} == {True}
        assert trained_turns(config) == used
    started = asyncio.run(evaluate(*compared, "--json"))
    assert (running[0], started[0]) == (0, 0), running[2] + started[2]
    assert "| personal:student | 2 |" in running[1]
    content = json.loads(started[1])
    assert (content["policy"], content["against"]) == ("openclaw@1", "openclaw@0")
    assert (
        content["differences"]
        == json.loads((tmp_path / "report" / "comparison.json").read_text())["differences"]
    )
    assert max(rows(config)) == 1, "the evaluation published nothing"
    status, _, err = asyncio.run(evaluate(*flags, "--policy", "7"))
    assert status == 1
    assert "version 7 does not exist; the newest is 1" in err
