"""One process for many episodes: answers in any order, and what happens if it dies, hangs or prints."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile

import pytest

from openclaw_rl.environments import foreign_process
from openclaw_rl.environments.foreign_process import ForeignProcess, ForeignRunner
from openclaw_rl.environments.leftovers import find_processes
from openclaw_rl.environments.types import EnvironmentTask, EpisodeTicket, PlayLimits, PlayOutcome

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
    answer = {"error": "no display"} if what == "refuse" else {"outcome": {"reward": float(what), "parts": {"a": 1}}}
    time.sleep(0.3 if what == 1 else 0)
    print("a library prints")
    print(json.dumps({"id": number, **answer}), flush=True)

for line in sys.stdin:
    asked = json.loads(line)
    if "play" in asked:
        threading.Thread(target=play, args=(asked["id"], asked["play"]), daemon=True).start()
"""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_process, "_GRACE_SECONDS", 0.5)


def play_all(*what: object) -> list[PlayOutcome]:
    """Play episodes at once, then one more; the process and its children are gone afterwards."""

    async def play(runner: ForeignRunner, one: object) -> PlayOutcome:
        task = EnvironmentTask(id="t", digest="0", split="train", data={"what": one})
        ticket = EpisodeTicket(episode="e", base_url="u", api_key="k", model="m")
        return await runner.play_episode(task, ticket, "/none", PlayLimits(seconds=2))

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


@pytest.mark.parametrize(
    ("what", "reason"), [("refuse", "no display"), ("die", "the browser is gone"), ("hang", "hung and was killed")]
)
def test_a_failure_is_void_and_the_process_goes_on_or_is_started_again(what: str, reason: str) -> None:
    failed, after = play_all(what)
    assert failed.status == "void"
    assert reason in (failed.reason or "")
    assert after.reward == 0.0
