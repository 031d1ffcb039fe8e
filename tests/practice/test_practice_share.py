"""Practice where people leave no pause: its share of the time, and how it runs beside their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.practice.conftest import SHORT, MakeLoop, ScriptedReplies, add_lesson

from openclaw_rl.gates.reply_source import GateReply, ReplyOrder
from openclaw_rl.practice.share import PAUSE_SECONDS, PracticeShare
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies

Fill = Callable[..., list[str]]
TICK = 4.0  # seconds between two calls of the loop


@given(share=st.floats(0.01, 0.99), seconds=st.floats(0.1, 60.0), hour=st.just(3600.0))
def test_practice_takes_its_share_of_the_time(share: float, seconds: float, hour: float) -> None:
    """Replies of `seconds` each, in an hour in which people's replies always run."""
    decides = PracticeShare(share)
    now = practised = 0.0
    while now < hour:
        if decides.may_run_beside(now):
            decides.record_beside(now, now + seconds)
            practised += seconds
            now += seconds
        else:
            decides.record_refusal(now)
            now += TICK
    expected = share * (hour - PAUSE_SECONDS)
    assert practised <= expected + seconds
    # A call of the loop comes at most a tick too late.
    assert practised >= expected * seconds / (seconds + share * TICK) - seconds


def test_practice_waits_for_a_pause_before_it_takes_its_share() -> None:
    decides = PracticeShare(0.5)
    assert not decides.may_run_beside(0.0)
    decides.record_refusal(100.0)
    assert not decides.may_run_beside(100.0 + PAUSE_SECONDS - 1)
    assert decides.may_run_beside(100.0 + PAUSE_SECONDS)
    decides.record_pause()
    assert not decides.may_run_beside(1e9), "a pause was long enough"


class SlowReplies(ScriptedReplies):
    """Each reply takes seconds of the given clock, and people's replies run all the time."""

    now = 1000.0
    seconds = 8.0

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        """See `ReplySource.generate`."""
        generated = super().generate(orders)
        self.now += self.seconds
        return generated


@pytest.mark.parametrize(("share", "least", "most"), [(0.5, 14, 24), (0.25, 8, 12), (0.0, 0, 0)])
def test_practice_gets_its_share_without_pauses(
    store: Store,
    make_loop: MakeLoop,
    fill: Fill,
    replies: ScriptedReplies,
    share: float,
    least: int,
    most: int,
) -> None:
    """In six minutes and a half: replies one at a time, of which versions are made; without a share none."""
    slow = SlowReplies(replies.stop, busy=True)
    replies.generate = slow.generate  # type: ignore[method-assign]
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    loop = make_loop(clock=lambda: slow.now, busy_share=share, step_limit=1000, max_divergence=1e-9)
    while slow.now < 1000.0 + 400:
        loop._next_check = 0.0
        if not loop.run_once():
            slow.now += TICK
    assert least <= len(slow.orders) <= most
    assert all(order.beside for order in slow.orders)
    with store.read() as conn:
        assert (policies.head(conn).version > 0) == (share > 0)
    if not share:
        assert "replies to people are running" in loop.note


def test_several_replies_are_generated_in_one_call_in_a_pause(
    store: Store, make_loop: MakeLoop, fill: Fill, replies: ScriptedReplies
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    loop = make_loop(step_limit=1)
    assert loop.run_once()
    assert [order.beside for order in replies.orders] == [False, False]
