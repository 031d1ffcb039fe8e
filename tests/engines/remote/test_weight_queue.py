"""The lock on full weights: each waiting reply gets its turn, and no reply runs on other weights than its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.engines.remote.weight_queue import WeightLock, read_ahead
from openclaw_rl.errors import EngineError

MOVES = st.lists(
    st.one_of(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["end", "change", "fail"])),
    max_size=60,
)
# Changes that a reply waits for: one to each other set of weights, and one that was running.
MAX_WAITED = 4


class LockRun:
    """A lock, the weights that its server holds, and replies that end and changes that finish on command."""

    def __init__(self, current: str) -> None:
        self.loaded: str | None = current
        self.lock = WeightLock(current, self._change)
        self.running: list[asyncio.Event] = []
        # The running change; its result: whether it succeeds.
        self.change: asyncio.Future[bool] | None = None
        self.changes: list[str] = []
        self.failures = 0
        self.replies: list[asyncio.Task[None]] = []

    async def _change(self, weights: str) -> None:
        assert not self.running, "weights change under no reply"
        self.change, self.loaded = asyncio.get_running_loop().create_future(), None
        done = await self.change
        self.change = None
        self.changes.append(weights)
        if not done:
            self.failures += 1
            raise EngineError("these do not load")
        self.loaded = weights

    async def _reply(self, weights: str) -> None:
        before, end = len(self.changes) - self.failures, asyncio.Event()
        async with self.lock.hold_weights(weights):
            assert self.loaded == weights
            assert len(self.changes) - self.failures - before <= MAX_WAITED
            self.running.append(end)
            await end.wait()
            self.running.remove(end)
            assert self.loaded == weights

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def start(self, weights: str) -> asyncio.Task[None]:
        self.replies.append(asyncio.get_running_loop().create_task(self._reply(weights)))
        await self.settle()
        return self.replies[-1]

    async def end_one(self) -> None:
        if self.running:
            self.running[-1].set()
        await self.settle()

    async def finish_change(self, *, done: bool) -> None:
        if self.change is not None:
            self.change.set_result(done)
        await self.settle()


@settings(max_examples=60)
@given(MOVES)
def test_no_reply_runs_on_other_weights_and_none_starves(moves: list[str]) -> None:
    async def body() -> None:
        run = LockRun("")
        for move in moves:
            if move == "end":
                await run.end_one()
            elif move in ("change", "fail"):
                await run.finish_change(done=move == "change")
            else:
                await run.start(move)
            left = [reply for reply in run.replies if not reply.done()]
            assert len(left) == len(run.running) + run.lock.waiting_count
        while run.running or run.change is not None:
            await run.end_one()
            await run.finish_change(done=True)
        results = await asyncio.gather(*run.replies, return_exceptions=True)
        assert run.lock.waiting_count == 0
        assert all(error is None or isinstance(error, EngineError) for error in results), results

    asyncio.run(body())


def test_a_reply_that_arrives_while_others_wait_queues_behind_them() -> None:
    async def body() -> None:
        run = LockRun("a")
        for weights in ("a", "b", "a"):
            await run.start(weights)
        assert (len(run.running), run.lock.waiting_count) == (1, 2), (
            "else a busy version would keep the other out"
        )
        assert run.change is None
        await run.end_one()
        await run.start("b")
        assert (run.running, run.lock.waiting_count) == ([], 3)
        await run.finish_change(done=True)
        assert (run.changes, len(run.running)) == (["b"], 2), (
            "all that wait for the same weights start together"
        )
        for task in run.replies:
            task.cancel()

    asyncio.run(body())


def test_a_failed_change_leaves_no_usable_weights() -> None:
    async def body() -> None:
        run = LockRun("a")
        broken = await run.start("b")
        await run.finish_change(done=False)
        with pytest.raises(EngineError, match="do not load"):
            await broken
        again = await run.start("a")
        assert (run.running, run.lock.waiting_count) == ([], 1), (
            "weights that were half changed serve nothing"
        )
        await run.finish_change(done=True)
        assert (run.changes, len(run.running)) == (["b", "a"], 1)
        again.cancel()

    asyncio.run(body())


def test_a_closed_lock_changes_no_weights() -> None:
    async def body() -> None:
        run = LockRun("a")
        await run.start("a")
        waiting = await run.start("b")
        run.lock.close(EngineError("closed"))
        with pytest.raises(EngineError, match="closed"):
            await waiting
        await run.end_one()
        assert (run.change, run.changes) == (None, [])

    asyncio.run(body())


async def _changes(log: list[str], weights: str) -> None:
    await asyncio.sleep(0)
    if weights == "broken":
        raise EngineError("these do not load")
    log.append(weights)


def test_the_lock_changes_weights_and_forgets_a_cancelled_reply() -> None:
    async def body() -> None:
        log: list[str] = []
        lock = WeightLock("", lambda weights: _changes(log, weights))

        async def use(weights: str) -> None:
            async with lock.hold_weights(weights):
                log.append(f"uses {weights}")
                await asyncio.sleep(0)

        async with lock.hold_weights(""):
            left = asyncio.create_task(use("gone"))
            broken = asyncio.create_task(use("broken"))
            users = [asyncio.create_task(use(w)) for w in ("a", "", "a")]
            await asyncio.sleep(0.01)
            assert (lock.waiting_count, log) == (5, [])
            left.cancel()
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*users), 300)
        with pytest.raises(EngineError, match="do not load"):
            await broken
        assert log == ["a", "uses a", "uses a", "", "uses "]

    asyncio.run(body())


def test_reading_ahead_does_not_wait_for_the_reader_and_keeps_order_and_errors() -> None:
    async def body() -> None:
        given: list[int] = []
        closed: list[bool] = []

        async def source() -> AsyncGenerator[int]:
            try:
                for n in range(1, 4):
                    given.append(n)
                    yield n
                    await asyncio.sleep(0)
                raise EngineError("over")
            finally:
                closed.append(True)

        taken: list[int] = []

        async def take() -> None:
            async for n in read_ahead(source()):
                taken.append(n)
                await asyncio.sleep(0.01)
                assert given == [1, 2, 3]

        with pytest.raises(EngineError, match="over"):
            await take()
        assert (taken, closed) == ([1, 2, 3], [True])
        early = read_ahead(source())
        assert await early.__anext__() == 1
        await early.aclose()
        assert closed == [True, True]

    asyncio.run(body())
