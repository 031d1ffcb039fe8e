"""The votes on a question are kept: the same question to the same judge is not asked again, also after a restart."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import text
from tests.judge.endpoint import ITEM, Endpoint, completion, serving, vote
from tests.judge.world import World

from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import prompts, worker
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.vote_cache import VoteCache
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.types import JudgeInput, Verdict

SCORES = (-1, 1, -1)


async def differing(request: web.Request, number: int) -> web.StreamResponse:
    return completion(vote(SCORES[(number - 1) % 3], "Be brief."))


class Bench:
    """A store with judged turns, and an endpoint that outlives each judge."""

    def __init__(self, world: World, endpoint: Endpoint) -> None:
        self.world, self.endpoint = world, endpoint

    @property
    def asked(self) -> int:
        return len(self.endpoint.seen)

    async def judge(self, turn: str = "t00", **more: Any) -> Verdict:
        """Return the verdict of a judge that has just been started, on the same words whatever the turn."""
        flat = {
            "base_url": f"http://127.0.0.1:{self.endpoint.port}/v1",
            "model": "m",
            "retries": 0,
        } | more
        config = from_flat({f"judge.{key}": value for key, value in flat.items()})
        judge = LlmJudge(config)
        judge.use_cache(VoteCache(self.world.store, config.judge.cache))
        item = JudgeInput(
            turn=turn, messages=ITEM.messages, reply=ITEM.reply, reaction=ITEM.reaction
        )
        try:
            return await judge.judge(item)
        finally:
            await judge.close()


@contextlib.asynccontextmanager
async def bench(world: World, answer: Any = differing) -> Any:
    for id in ("t00", "t01", "t02"):
        world.close(id, "thanks")
    async with serving(answer) as endpoint:
        yield Bench(world, endpoint)


def kept(store: Store) -> int:
    with store.read() as conn:
        return int(conn.execute(text("SELECT count(*) FROM cached_votes")).scalar_one())


def test_all_votes_on_a_question_are_cached(world: World) -> None:
    async def go() -> None:
        async with bench(world) as at:
            first, again = await at.judge(), await at.judge()
            assert at.asked == 3
            assert sorted(vote.score or 0 for vote in again.votes) == [-1, -1, 1]
            assert (first.score, first.hints, first.votes) == (
                again.score,
                again.hints,
                again.votes,
            )
            assert again.reason == f"{first.reason} (cached)"
            strict = await at.judge(consensus_threshold=0.9)
            assert (at.asked, strict.score) == (3, None)

    asyncio.run(go())


@pytest.mark.parametrize(
    "more", [{"model": "other"}, {"num_judges": 2}, {"temperature": 0.1}, {"max_tokens": 99}]
)
def test_another_judge_is_asked(world: World, more: dict[str, Any]) -> None:
    async def go() -> None:
        async with bench(world) as at:
            await at.judge()
            await at.judge(**more)
            assert at.asked == 3 + more.get("num_judges", 3)

    asyncio.run(go())


def test_another_prompt_version_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with bench(world) as at:
            await at.judge()
            monkeypatch.setattr(
                prompts, "JUDGE_PROMPT", {**prompts.JUDGE_PROMPT, "version": "next"}
            )
            await at.judge()
            assert at.asked == 6

    asyncio.run(go())


def test_votes_beside_a_failed_one_are_not_kept(world: World) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion("nonsense" if number == 2 else vote(1))

    async def go() -> None:
        async with bench(world, answer) as at:
            await at.judge()
            await at.judge()
            assert at.asked == 6
            await at.judge()
            assert at.asked == 6

    asyncio.run(go())


def test_the_newest_questions_are_kept_and_erased_with_their_turn(world: World) -> None:
    async def go() -> None:
        async with bench(world) as at:
            for tokens in (50, 51, 52):
                await at.judge(cache=2, max_tokens=tokens)
            assert (kept(world.store), at.asked) == (2, 9)
            await at.judge(cache=2, max_tokens=52)
            assert at.asked == 9
            await at.judge(cache=2, max_tokens=50)
            assert at.asked == 12
            with world.store.write() as conn:
                conn.execute(text("DELETE FROM exchanges WHERE id = 't00'"))
            assert kept(world.store) == 0
            await at.judge()  # of an erased turn nothing is kept
            assert kept(world.store) == 0

    asyncio.run(go())


def test_damaged_votes_are_asked_for_again(world: World) -> None:
    async def go() -> None:
        async with bench(world) as at:
            await at.judge()
            with world.store.write() as conn:
                conn.execute(text("UPDATE cached_votes SET votes = x'00'"))
            assert (await at.judge()).score == -1
            assert (at.asked, kept(world.store)) == (6, 1)

    asyncio.run(go())


@pytest.mark.parametrize("limit", [10, 0])
def test_the_worker_asks_once_after_a_restart_unless_the_cache_is_off(
    tmp_path: Path, limit: int
) -> None:
    """The verdict of the first start is lost, as if the worker had died before it was stored."""

    async def run_once(port: int) -> None:
        flat = {"home": str(tmp_path), "judge.poll": 0.01, "judge.model": "m", "judge.cache": limit}
        config = from_flat(flat | {"judge.base_url": f"http://127.0.0.1:{port}/v1"})
        stop = asyncio.Event()
        loop = asyncio.create_task(worker.run(config, stop=stop))
        with Store.open(config.store_path) as store:
            async with asyncio.timeout(30):
                while not World(config, store).judged():
                    await asyncio.sleep(0.01)
        stop.set()
        await loop

    async def go() -> int:
        config = from_flat({"home": str(tmp_path)})
        async with serving(differing) as endpoint:
            with Store.open(config.store_path) as store:
                World(config, store).close("t", "thanks")
            await run_once(endpoint.port)
            with Store.open(config.store_path) as store, store.write() as conn:
                conn.execute(text("DELETE FROM verdicts"))
                conn.execute(text("UPDATE turns SET state = 'closed', signal = 0"))
            await run_once(endpoint.port)
            with Store.open(config.store_path) as store, store.read() as conn:
                verdict = turns.current_verdict(conn, "t")
                assert verdict is not None
                assert verdict.score == -1
            votes = [
                body
                for body in endpoint.seen
                if "Grade the REPLY" in body["messages"][-1]["content"]
            ]
            return len(votes)

    assert asyncio.run(go()) == (3 if limit else 6)


def test_a_failed_judge_keeps_nothing(world: World) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return completion("nonsense")

    async def go() -> None:
        async with bench(world, answer) as at:
            with pytest.raises(JudgeError):
                await at.judge()
            assert kept(world.store) == 0

    asyncio.run(go())
