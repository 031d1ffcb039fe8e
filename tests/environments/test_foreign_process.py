"""One process for many episodes: answers in any order, and what happens if it dies, hangs or prints."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.environments import foreign_process
from openclaw_rl.environments.foreign_process import ForeignError, ForeignProcess, ForeignRunner
from openclaw_rl.environments.leftovers import find_processes
from openclaw_rl.environments.types import EnvironmentTask, EpisodeTicket, PlayLimits, PlayOutcome

FOREIGN = Path(foreign_process.__file__).parent / "foreign"
WORKER = """
import json, os, sys, threading, time

def play(number, asked):
    what = asked["data"]["what"]
    if what == "die":
        sys.stderr.write("the browser is gone\\n")
        sys.stderr.flush()
        os._exit(3)
    if what == "hang":
        time.sleep(60)
    what = asked["replies"] if what == "replies" else what
    answer = {"error": "no display"} if what == "refuse" else {"outcome": {"reward": float(what), "parts": {"a": 1}}}
    time.sleep(0.3 if what == 1 else 0)
    print("a library prints")
    print(json.dumps({"id": number, **answer}), flush=True)

for line in sys.stdin:
    asked = json.loads(line)
    if "play" in asked:
        threading.Thread(target=play, args=(asked["id"], asked["play"]), daemon=True).start()
"""


CALLER = """
import asyncio, sys, threading
sys.path.insert(0, sys.argv[1])
from request_loop import OwnerRefusal, call_owner, serve_requests

meeting = threading.Barrier(40)

async def play(asked):
    reward = 0
    if asked["what"] == "meet":
        await asyncio.to_thread(meeting.wait, 4)
    if asked["what"] == "late":
        asyncio.get_running_loop().call_later(0.2, asyncio.ensure_future, call_owner({"number": 1}))
    for number in asked["numbers"]:
        try:
            reward += (await call_owner({"number": number}))["value"]
        except OwnerRefusal as error:
            return {"error": str(error)}
    return {"outcome": {"reward": reward}}

serve_requests({"play": play})
"""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_process, "_GRACE_SECONDS", 0.5)


def play_all(*what: object) -> list[PlayOutcome]:
    """Play episodes at once, then one more; the process and its children are gone afterwards."""

    async def play(runner: ForeignRunner, one: object) -> PlayOutcome:
        task = EnvironmentTask(id="t", digest="0", split="train", data={"what": one})
        ticket = EpisodeTicket(episode="e", base_url="u", api_key="k", model="m")
        return await runner.play_episode(task, ticket, "/none", PlayLimits(seconds=2, replies=7))

    async def run(folder: str) -> list[PlayOutcome]:
        runner = ForeignRunner(ForeignProcess((sys.executable, "-c", WORKER), os.defpath, {}))
        runner.open_runner(folder)
        try:
            first = await asyncio.gather(*(play(runner, one) for one in what))
            return [*first, await play(runner, 0)]
        finally:
            await runner.close_runner()

    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(folder))
        assert find_processes(folder) == []
    return found


def test_answers_come_in_any_order() -> None:
    assert [outcome.reward for outcome in play_all(1, 2, 3)] == [1.0, 2.0, 3.0, 0.0]


def test_a_process_knows_the_limit_of_replies() -> None:
    assert play_all("replies")[0].reward == 7.0


@pytest.mark.parametrize(
    ("what", "reason"),
    [("refuse", "no display"), ("die", "the browser is gone"), ("hang", "hung and was killed")],
)
def test_after_a_failure_the_process_continues_or_is_restarted(what: str, reason: str) -> None:
    failed, after = play_all(what)
    assert failed.status == "void"
    assert reason in (failed.reason or "")
    assert after.reward == 0.0


def call_all(*asked: dict[str, Any]) -> list[Any]:
    """Send requests at once to a process that asks us; return the answers or errors, and the numbers it asked about."""
    heard = []

    async def answer(call: Mapping[str, Any]) -> dict[str, Any]:
        heard.append(call["number"])
        await asyncio.sleep(0.01 * call["number"])
        if call["number"] > 90:
            raise ForeignError("too many")
        return {"value": 2 * call["number"]}

    async def run(folder: str) -> list[Any]:
        process = ForeignProcess((sys.executable, "-c", CALLER, str(FOREIGN)), os.defpath, {})
        process.use_folder(folder)
        try:
            sent = (process.send_request("play", {"what": "", **body}, 5, answer) for body in asked)
            found = await asyncio.gather(*sent, return_exceptions=True)
            await asyncio.sleep(0.5)
            return [*found, heard]
        finally:
            await process.close()

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(folder))


def test_all_requests_wait_at_the_same_time_whatever_the_number_of_processors() -> None:
    *answers, _ = call_all(*[{"what": "meet", "numbers": []}] * 40)
    assert answers == [{"id": number, "outcome": {"reward": 0}} for number in range(1, 41)]


def test_a_process_asks_its_owner_within_a_request() -> None:
    first, second, _ = call_all({"numbers": [1, 2]}, {"numbers": [3]})
    assert first["outcome"]["reward"] == 6
    assert second["outcome"]["reward"] == 6


def test_a_refusal_of_the_owner_has_its_reason() -> None:
    refused, heard = call_all({"numbers": [91]})
    assert "too many" in str(refused)
    assert heard == [91]


def test_a_call_after_the_request_reaches_nobody() -> None:
    done, heard = call_all({"numbers": [5], "what": "late"})
    assert done["outcome"]["reward"] == 10
    assert heard == [5]
