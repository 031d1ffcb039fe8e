"""Requests with thousands of messages, and with long texts, are read in a short time.

The collector holds the write lock meanwhile, and a finished reply waits for it.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.collect.cases import BEAT, THANKS, A, Q, S
from tests.collect.world import Ask, Memory, Stored
from tests.growth import check_linear_growth

from openclaw_rl.settings.load import SignalsConfig

MESSAGES = 1000
WAKE = "u [OpenClaw heartbeat poll]"


@pytest.mark.parametrize(
    "side",
    [(BEAT, "a HEARTBEAT_OK"), (WAKE, "a "), (f"{BEAT} {{}}", "a HEARTBEAT_OK {}")],
    ids=["beat", "wake", "all"],
)
def test_a_reaction_is_found_behind_a_thousand_side_calls(side: tuple[str, str]) -> None:
    def prepare(messages: int) -> tuple[Memory, Ask]:
        calls = [line.replace("{}", str(n)) for n in range(messages // 2) for line in side]
        world = Memory()
        world.play(Ask(name="1", history=[S, Q], reply=A[2:]))
        return world, Ask(name="2", history=[S, Q, A, *calls, THANKS])

    def play(prepared: tuple[Memory, Ask]) -> None:
        world, ask = prepared
        world.play(ask)
        assert world.seen("2").answers == {"1": ("exact", (THANKS[2:],))}

    check_linear_growth(play, prepare, MESSAGES)


def test_a_thousand_client_prompts_before_a_summary_are_not_all_compared() -> None:
    def ask(messages: int) -> Ask:
        return Ask(name="1", history=[f"{BEAT} {n}" for n in range(messages)])

    check_linear_growth(lambda asked: Memory().play(asked), ask, MESSAGES)


@pytest.mark.parametrize("unit", ["a", "ab", "The same line of text again. "])
def test_copied_lines_are_searched_in_linear_time(tmp_path: Path, unit: str) -> None:
    """Sixteen earlier replies with lines that almost stand in a message of 65 kB."""
    begin = (unit * 16)[:24]
    numbers = itertools.count()

    def prepare(size: int) -> Stored:
        world = Stored(tmp_path / f"{next(numbers)}.db", signals=SignalsConfig())
        reply = "a " + "\n".join(f"{begin}{n:04}" for n in range(2000))
        for n in range(16):
            world.play(Ask(name=str(n), history=[f"u Question {n}"], reply=reply))
        ask = Ask(name="last", history=["u " + unit * (size // len(unit))])
        world.play(ask, collect=False)
        return world

    def collect(world: Stored) -> None:
        world.collect()
        with world.store.read() as conn:
            assert conn.exec_driver_sql("SELECT count(*) FROM observations").scalar_one() == 0
        world.store.close()

    check_linear_growth(collect, prepare, 65_000)
