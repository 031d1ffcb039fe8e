"""The queue before full weights: whoever waits gets its turn, and nothing runs on weights that are not its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.engines.remote.weight_queue import WeightLock, WeightQueue, read_ahead
from openclaw_rl.errors import EngineError

MOVES = st.lists(
    st.one_of(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["end", "change", "fail"])), max_size=60
)


@given(MOVES)
def test_nobody_runs_on_other_weights_and_nobody_starves(moves: list[str]) -> None:
    shift, running, waiting = WeightQueue(""), [], {}
    overtaken: dict[int, int] = {}

    def settle(done: bool) -> None:
        weights = shift.changing_to
        assert not running, "weights change under nobody"
        for ticket in shift.finish_change(done=done):
            assert waiting.pop(ticket) == weights
            if done:
                running.append(weights)
        for ticket in waiting:
            overtaken[ticket] = overtaken.get(ticket, 0) + 1

    for ticket, move in enumerate(moves):
        if move == "end":
            if running:
                running.pop()
                shift.end_run()
        elif move in ("change", "fail"):
            if shift.changing_to is not None or shift.start_due_change() is not None:
                settle(done=move == "change")
        elif shift.try_enter(ticket, move):
            running.append(move)
        else:
            waiting[ticket] = move
        assert shift.running_count == len(running)
        assert set(running) <= {shift.current_weights}
        assert shift.waiting_count == len(waiting)
    for _ in range(4):  # every one of the four kinds of weights, once at most
        while running:
            running.pop()
            shift.end_run()
        if shift.start_due_change() is not None or shift.changing_to is not None:
            settle(done=True)
    assert not waiting
    assert all(times <= 4 + moves.count("fail") for times in overtaken.values())


def test_who_comes_while_others_wait_stands_behind_them() -> None:
    shift = WeightQueue("a")
    assert shift.try_enter(1, "a")
    assert not shift.try_enter(2, "b")
    assert not shift.try_enter(3, "a"), "else a busy version would keep the other away for ever"
    assert shift.start_due_change() is None
    shift.end_run()
    assert shift.start_due_change() == "b"
    assert not shift.try_enter(4, "b")
    assert shift.finish_change(done=True) == [2, 4], "all that wait for the same weights go together"


def test_weights_that_could_not_be_changed_are_nobodys() -> None:
    shift = WeightQueue("a")
    assert not shift.try_enter(1, "b")
    assert shift.start_due_change() == "b"
    assert shift.finish_change(done=False) == [1]
    assert not shift.try_enter(2, "a"), "half-changed weights answer nothing"
    assert shift.start_due_change() == "a"


async def _changes(log: list[str], weights: str) -> None:
    await asyncio.sleep(0)
    if weights == "broken":
        raise EngineError("these do not load")
    log.append(weights)


def test_the_turnstile_changes_waits_fails_and_forgets_those_who_left() -> None:
    async def body() -> None:
        log: list[str] = []
        turns = WeightLock("", lambda weights: _changes(log, weights))

        async def use(weights: str) -> None:
            await turns.acquire_weights(weights)
            log.append(f"uses {weights}")
            await asyncio.sleep(0)
            turns.release_weights()

        await turns.acquire_weights("")
        left = asyncio.create_task(use("gone"))
        broken = asyncio.create_task(use("broken"))
        users = [asyncio.create_task(use(w)) for w in ("a", "", "a")]
        await asyncio.sleep(0.01)
        assert (turns.waiting_count, log) == (5, [])
        left.cancel()
        await asyncio.sleep(0)
        turns.release_weights()
        await asyncio.wait_for(asyncio.gather(*users), 5)
        with pytest.raises(EngineError, match="do not load"):
            await broken
        assert log == ["a", "uses a", "uses a", "", "uses "]
        await turns.acquire_weights("")
        stuck = asyncio.create_task(use("a"))
        await asyncio.sleep(0)
        turns.close(EngineError("closed"))
        with pytest.raises(EngineError, match="closed"):
            await stuck

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
