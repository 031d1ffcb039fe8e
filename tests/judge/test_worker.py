"""The loop over a real store: every closed turn gets one durable verdict, whatever the judge does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from tests.judge.world import World

from openclaw_rl.common import worker_loop
from openclaw_rl.errors import ConfigError, JudgeError, UnreadableAnswer
from openclaw_rl.judge import worker as judge_loop
from openclaw_rl.protocols import Judge
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage.version_stats import judge_user_agreement
from openclaw_rl.testing import ScriptedJudge
from openclaw_rl.types import JudgeInput, TurnState, Verdict, Vote

Ids = Callable[[int], list[str]]
WITHIN = 240.0  # seconds


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(judge_loop, "LONGEST_PROBE", 0.05)
    monkeypatch.setattr(judge_loop, "READ_EVERY", 0.05)
    monkeypatch.setattr(worker_loop, "HEARTBEAT_SECONDS", 0.02)


@contextlib.asynccontextmanager
async def working(world: World, judge: Judge | None = None) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    task = asyncio.create_task(judge_loop.run(world.config, stop=stop, judge=judge))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, WITHIN)


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, "the loop did not get there in time"
        await asyncio.sleep(0.01)


def note(world: World) -> str:
    with world.store.read() as conn:
        return next(
            (beat.note for beat in heartbeats.read_heartbeats(conn) if beat.name == "judge"), ""
        )


def problems(world: World) -> list[str]:
    with world.store.read() as conn:
        return heartbeats.reported_problems(conn, time.time())


def test_every_closed_turn_is_judged_with_the_rules_by_default(
    world: World, ids: Ids, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="openclaw_rl.judge")

    async def go() -> None:
        world.close("t-before", "Perfect, thanks!")
        async with working(world):
            await until(lambda: world.judged() == 1)
            for id in ids(20):
                world.close(id, "too long, keep it short")
            await until(lambda: world.judged() == 21)

    asyncio.run(go())
    assert world.verdict("t-before").score == 1
    assert world.verdict("t07").score == -1
    assert world.verdict("t07").hints == ("Keep answers short.",)
    assert "t07: score -1 by rules@" in caplog.text


def test_turns_are_judged_side_by_side_but_not_more_than_workers(world: World, ids: Ids) -> None:
    world.config = from_flat({"home": world.config.home, "judge.poll": 0.01, "judge.workers": 3})
    together: list[int] = []
    now = 0

    class Slow(ScriptedJudge):
        async def judge(self, item: JudgeInput) -> Verdict:
            nonlocal now
            now += 1
            together.append(now)
            await asyncio.sleep(0.03)
            now -= 1
            return await super().judge(item)

    async def go() -> None:
        for id in ids(8):
            world.close(id, "ok")
        async with working(world, Slow(lambda item: 1)):
            await until(lambda: world.judged() == 8)

    asyncio.run(go())
    assert max(together) == 3


def test_a_turn_on_which_the_judge_fails_waits_and_does_not_hold_up_the_others(
    world: World, ids: Ids
) -> None:
    tries = 0

    def opinion(item: JudgeInput) -> int | JudgeError:
        nonlocal tries
        if item.turn != "t00":
            return 1
        tries += 1
        return JudgeError("hiccup") if tries < 4 else -1

    async def go() -> None:
        for id in ids(20):
            world.close(id, "ok")
        async with working(world, ScriptedJudge(opinion)):
            await until(lambda: world.judged() == 19)
            assert world.state("t00") is TurnState.CLOSED
            await until(lambda: world.judged() == 20)

    asyncio.run(go())
    assert tries == 4
    assert world.verdict("t00").score == -1


def test_answers_that_cannot_be_read_are_paid_for_a_few_times_only(
    world: World, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts on other turns do not make the judge try again at once."""
    monkeypatch.setattr(judge_loop, "MAX_UNREADABLE", 3)
    calls: Counter[str] = Counter()

    def answer(item: JudgeInput) -> int:
        calls[item.turn] += 1
        if item.turn == "odd":
            raise UnreadableAnswer("expected a JSON object with score; got 12 characters")
        return 1

    async def go() -> None:
        world.close("odd", "hm")
        async with working(world, ScriptedJudge(answer)):
            for id in ids(20):
                world.close(id, "fine")
                await until(lambda id=id: world.state(id) is TurnState.JUDGED)  # type: ignore[misc]
            await until(lambda: world.state("odd") is TurnState.JUDGED)
            assert problems(world) == [], "the judge is not down"

    asyncio.run(go())
    assert calls["odd"] == 3
    verdict = world.verdict("odd")
    assert (verdict.score, verdict.reason_code) == (None, ReasonCode.UNREADABLE)
    assert "given up after 3 answers" in verdict.reason


def test_a_judge_that_is_down_is_logged_once_and_the_loop_continues(
    world: World, ids: Ids, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("openclaw_rl"), "propagate", True)
    down = True
    judge = ScriptedJudge(lambda item: JudgeError("got '<html>'") if down else 1)

    async def go() -> None:
        nonlocal down
        for id in ids(30):
            world.close(id, "ok")
        async with working(world, judge):
            await until(lambda: len(judge.seen) >= 8)
            await until(lambda: "got '<html>'" in note(world))
            assert problems(world)[0].startswith("judge: parked, tries again")
            world.give("t29", score=-1)  # explicit feedback needs no judge
            await until(lambda: world.judged() == 1)
            assert world.verdict("t00") is None
            down = False
            await until(lambda: world.judged() == 30)
            await until(lambda: note(world).startswith("30 judged") and ";" not in note(world))
            assert not problems(world)

    with caplog.at_level(logging.INFO, "openclaw_rl.judge"):
        asyncio.run(go())
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert len(warnings) == 1
    assert "got '<html>'" in warnings[0]
    assert "Expected a usable answer" in warnings[0]
    assert "judge.*" in warnings[0]
    assert world.verdict("t29").explicit
    assert world.verdict("t03").score == 1


def test_a_plug_in_that_raises_anything_is_a_failure_of_its_turn_only(
    world: World, ids: Ids
) -> None:
    class Broken(ScriptedJudge):
        async def judge(self, item: JudgeInput) -> Verdict:
            if item.turn == "t00":
                raise ZeroDivisionError("oops")
            return await super().judge(item)

    async def go() -> None:
        for id in ids(3):
            world.close(id, "ok")
        async with working(world, Broken(lambda item: 0)):
            await until(lambda: world.judged() == 2)
            await until(lambda: "1 wait" in note(world))

    asyncio.run(go())
    assert world.state("t00") is TurnState.CLOSED


def test_lone_surrogates_in_an_answer_are_replaced(world: World, ids: Ids) -> None:
    half = "x \ud800"

    class Odd(ScriptedJudge):
        async def judge(self, item: JudgeInput) -> Verdict:
            if item.turn == "t00":
                raise JudgeError(half)
            made = await super().judge(item)
            vote = Vote(score=-1, hint=half, reason=half, error=half)
            return replace(made, votes=(vote,), hints=(half,), reason=half)

    async def go() -> None:
        for id in ids(2):
            world.close(id, "no")
        async with working(world, Odd(lambda item: -1)):
            await until(lambda: world.judged() == 1)
            await until(lambda: "x ?" in note(world))

    asyncio.run(go())
    verdict = world.verdict("t01")
    assert (verdict.hints, verdict.reason) == (("x ?",), "x ?")
    assert verdict.votes == (Vote(score=-1, hint="x ?", reason="x ?", error="x ?", words="no"),)


def test_explicit_feedback_outranks_and_agreement_is_measured(world: World) -> None:
    async def go() -> None:
        for id in ("a", "b", "c", "d"):
            world.close(id, "ok")
        async with working(world, ScriptedJudge(lambda item: None if item.turn == "c" else 1)):
            await until(lambda: world.judged() == 4)
            world.give("a", score=1)
            world.give("b", score=-1, correction="Be brief.")
            world.give("c", score=1)
            await until(lambda: all(world.verdict(id).explicit for id in ("a", "b", "c")))
            world.close(
                "b", "ok", "and more"
            )  # a later reaction does not undo what the user said outright
            await until(lambda: world.state("b") is TurnState.JUDGED)

    asyncio.run(go())
    assert (world.verdict("b").score, world.verdict("b").hints) == (-1, ("Be brief.",))
    with world.store.read() as conn:
        assert judge_user_agreement(conn) == (1, 2)


def test_a_correction_keeps_the_judges_score(world: World) -> None:
    async def go() -> None:
        world.close("a", "no, wrong")
        async with working(world, ScriptedJudge(lambda item: -1)):
            await until(lambda: world.judged() == 1)
            world.give("a", correction="Be brief.")
            await until(lambda: world.verdict("a").hints == ("Be brief.",))

    asyncio.run(go())
    assert (world.verdict("a").score, world.verdict("a").explicit) == (-1, False)


def test_a_comment_reaches_the_judge(world: World) -> None:
    judge = ScriptedJudge(lambda item: -1 if item.reaction.feedback else 1)

    async def go() -> None:
        world.close("a", "ok")
        async with working(world, judge):
            await until(lambda: world.judged() == 1)
            world.give("a", comment="rather long")
            await until(lambda: (v := world.verdict("a")) is not None and v.score == -1)

    asyncio.run(go())
    assert not world.verdict("a").explicit
    assert judge.seen[-1].reaction.feedback[0].comment == "rather long"


def test_a_reaction_that_moves_on_while_it_is_judged_is_judged_again(world: World) -> None:
    class Late(ScriptedJudge):
        async def judge(self, item: JudgeInput) -> Verdict:
            if len(item.reaction.messages) == 1:
                world.close("a", "ok", "no, wrong")
            return await super().judge(item)

    async def go() -> None:
        world.close("a", "ok")
        async with working(world, Late(lambda item: 1 if len(item.reaction.messages) == 1 else -1)):
            await until(lambda: world.judged() == 1)

    asyncio.run(go())
    assert world.verdict("a").score == -1
    assert world.verdict("a").revision == 2


def test_unfinished_turns_are_judged_after_the_next_start(world: World) -> None:
    class Stuck(ScriptedJudge):
        async def judge(self, item: JudgeInput) -> Verdict:
            self.seen.append(item)
            await asyncio.sleep(60)
            raise AssertionError

    stuck = Stuck(lambda item: 1)

    async def go() -> None:
        world.close("a", "ok")
        async with working(world, stuck):
            await until(lambda: bool(stuck.seen))
        assert world.state("a") is TurnState.CLOSED
        async with working(world, ScriptedJudge(lambda item: 1)):
            await until(lambda: world.judged() == 1)

    asyncio.run(go())


def test_random_answers_of_an_endpoint_do_not_end_the_loop(world: World) -> None:
    async def go() -> None:
        async def nonsense(request: web.Request) -> web.Response:
            return web.Response(body=b"\x00\xff not json")

        app = web.Application()
        app.router.add_post("/v1/chat/completions", nonsense)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        llm = {"judge.kind": "llm", "judge.base_url": url, "judge.model": "m", "judge.poll": 0.01}
        world.config = from_flat({"home": world.config.home} | llm)
        world.close("a", "ok")
        async with working(world) as task:
            await until(lambda: "expected a chat completion" in note(world))
            assert not task.done()
        await runner.cleanup()
        assert world.state("a") is TurnState.CLOSED

    asyncio.run(go())


def test_a_judge_that_cannot_be_made_ends_the_loop(world: World) -> None:
    world.config = from_flat({"home": world.config.home, "judge.rules_path": "none.yaml"})
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        asyncio.run(judge_loop.run(world.config, stop=asyncio.Event()))


_CHILD = """
import asyncio, sys
from openclaw_rl.settings.load import from_flat
from openclaw_rl.judge import worker as loop
asyncio.run(loop.run(from_flat({"home": sys.argv[1], "judge.poll": 0.01, "judge.workers": 1}), stop=asyncio.Event()))
"""


def test_a_killed_loop_loses_no_committed_verdict(world: World, ids: Ids) -> None:
    for id in ids(60):
        world.close(id, "Perfect, thanks!")
    child = subprocess.Popen([sys.executable, "-c", _CHILD, world.config.home])
    while world.judged() < 5:
        assert child.poll() is None
        time.sleep(0.001)
    seen = world.judged()
    child.send_signal(signal.SIGKILL)
    child.wait()
    store = Store.open(world.config.store_path, create=False)
    with store.read() as conn:
        for id in ids(60):
            turn, verdict = turns.get(conn, id), turns.current_verdict(conn, id)
            assert turn is not None
            assert (turn.state is TurnState.JUDGED) == (verdict is not None and verdict.score == 1)
        assert turns.count_by_state(conn)[TurnState.JUDGED] >= seen
    store.close()

    async def go() -> None:
        async with working(world):
            await until(lambda: world.judged() == 60)

    asyncio.run(go())


HANGING_MODEL = """
import pathlib, time

class Mine:
    def score(self, prompt, response, next_state):
        pathlib.Path({file!r}).touch()
        time.sleep({seconds})
        return 1.0

def get_reward_model(config):
    return Mine()
"""


def test_the_work_of_a_reward_model_that_hangs_does_not_advance(
    world: World, tmp_path: Path
) -> None:
    """From this, the supervisor sees that it hangs (`run.heartbeat_timeout`)."""
    plugin, begun = tmp_path / "rm.py", tmp_path / "begun"
    plugin.write_text(HANGING_MODEL.format(file=str(begun), seconds=1.5))
    world.config = from_flat(
        {
            "home": world.config.home,
            "judge.kind": "plugin",
            "judge.plugin_path": str(plugin),
            "judge.poll": 0.01,
        }
    )

    def last_beat() -> heartbeats.Heartbeat:
        with world.store.read() as conn:
            return next(beat for beat in heartbeats.read_heartbeats(conn) if beat.name == "judge")

    async def main() -> None:
        async with working(world):
            await until(begun.exists)
            await until(lambda: last_beat().activity is not None)
            await asyncio.sleep(0.2)
            hung = await asyncio.to_thread(last_beat)
            await until(lambda: last_beat().at > hung.at)
            assert (await asyncio.to_thread(last_beat)).advanced_at == hung.advanced_at
            await until(lambda: last_beat().advanced_at > hung.advanced_at)  # it was only slow
            assert (await asyncio.to_thread(last_beat)).activity is None

    world.close("t-1", "Perfect, thanks!")
    asyncio.run(main())
