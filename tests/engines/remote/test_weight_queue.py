"""The queue before full weights: whoever waits gets its turn, and nothing runs on weights that are not its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.engines.remote.weight_queue import Shift, Turnstile, read_ahead
from openclaw_rl.errors import EngineError

MOVES = st.lists(
    st.one_of(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["end", "change", "fail"])), max_size=60
)


@given(MOVES)
def test_nobody_runs_on_other_weights_and_nobody_starves(moves: list[str]) -> None:
    shift, running, waiting = Shift(""), [], {}
    overtaken: dict[int, int] = {}

    def settle(done: bool) -> None:
        weights = shift.changing
        assert not running, "weights change under nobody"
        for ticket in shift.changed(done=done):
            assert waiting.pop(ticket) == weights
            if done:
                running.append(weights)
        for ticket in waiting:
            overtaken[ticket] = overtaken.get(ticket, 0) + 1

    for ticket, move in enumerate(moves):
        if move == "end":
            if running:
                running.pop()
                shift.done()
        elif move in ("change", "fail"):
            if shift.changing is not None or shift.due() is not None:
                settle(done=move == "change")
        elif shift.ask(ticket, move):
            running.append(move)
        else:
            waiting[ticket] = move
        assert shift.running == len(running)
        assert set(running) <= {shift.current}
        assert shift.waiting == len(waiting)
    for _ in range(4):  # every one of the four kinds of weights, once at most
        while running:
            running.pop()
            shift.done()
        if shift.due() is not None or shift.changing is not None:
            settle(done=True)
    assert not waiting
    assert all(times <= 4 + moves.count("fail") for times in overtaken.values())


def test_who_comes_while_others_wait_stands_behind_them() -> None:
    shift = Shift("a")
    assert shift.ask(1, "a")
    assert not shift.ask(2, "b")
    assert not shift.ask(3, "a"), "else a busy version would keep the other away for ever"
    assert shift.due() is None
    shift.done()
    assert shift.due() == "b"
    assert not shift.ask(4, "b")
    assert shift.changed(done=True) == [2, 4], "all that wait for the same weights go together"


def test_weights_that_could_not_be_changed_are_nobodys() -> None:
    shift = Shift("a")
    assert not shift.ask(1, "b")
    assert shift.due() == "b"
    assert shift.changed(done=False) == [1]
    assert not shift.ask(2, "a"), "half-changed weights answer nothing"
    assert shift.due() == "a"


async def _changes(log: list[str], weights: str) -> None:
    await asyncio.sleep(0)
    if weights == "broken":
        raise EngineError("these do not load")
    log.append(weights)


def test_the_turnstile_changes_waits_fails_and_forgets_those_who_left() -> None:
    async def body() -> None:
        log: list[str] = []
        turns = Turnstile("", lambda weights: _changes(log, weights))

        async def use(weights: str) -> None:
            await turns.enter(weights)
            log.append(f"uses {weights}")
            await asyncio.sleep(0)
            turns.leave()

        await turns.enter("")
        left = asyncio.create_task(use("gone"))
        broken = asyncio.create_task(use("broken"))
        users = [asyncio.create_task(use(w)) for w in ("a", "", "a")]
        await asyncio.sleep(0.01)
        assert (turns.waiting, log) == (5, [])
        left.cancel()
        await asyncio.sleep(0)
        turns.leave()
        await asyncio.wait_for(asyncio.gather(*users), 5)
        with pytest.raises(EngineError, match="do not load"):
            await broken
        assert log == ["a", "uses a", "uses a", "", "uses "]
        await turns.enter("")
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
