"""Requests with thousands of messages, and with long texts, are read in a short time.

The collector holds the write lock meanwhile, and a finished reply waits for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.collect.cases import BEAT, THANKS, A, Q, S
from tests.collect.world import Ask, Memory, Stored
from tests.cpu_time import bounded_cpu_time

from openclaw_rl.settings.load import SignalsConfig

MESSAGES = 1000
WAKE = "u [OpenClaw heartbeat poll]"


@pytest.mark.parametrize(
    "side",
    [(BEAT, "a HEARTBEAT_OK"), (WAKE, "a "), (f"{BEAT} {{}}", "a HEARTBEAT_OK {}")],
    ids=["beat", "wake", "all"],
)
def test_a_reaction_is_found_behind_a_thousand_side_calls(side: tuple[str, str]) -> None:
    calls = [line.replace("{}", str(n)) for n in range(MESSAGES // 2) for line in side]
    world = Memory()
    world.play(Ask(name="1", history=[S, Q], reply=A[2:]))
    ask = Ask(name="2", history=[S, Q, A, *calls, THANKS])
    with bounded_cpu_time(0.5):
        world.play(ask)
    assert world.seen("2").answers == {"1": ("exact", (THANKS[2:],))}


def test_a_thousand_client_prompts_before_a_summary_are_not_all_compared() -> None:
    world = Memory()
    with bounded_cpu_time(0.5):
        world.play(Ask(name="1", history=[f"{BEAT} {n}" for n in range(MESSAGES)]))


@pytest.mark.parametrize("unit", ["a", "ab", "The same line of text again. "])
def test_copied_lines_are_searched_in_linear_time(tmp_path: Path, unit: str) -> None:
    """Sixteen earlier replies with lines that almost stand in a message of 65 kB."""
    world = Stored(tmp_path / "store.db", signals=SignalsConfig())
    begin = (unit * 16)[:24]
    reply = "a " + "\n".join(f"{begin}{n:04}" for n in range(2000))
    for n in range(16):
        world.play(Ask(name=str(n), history=[f"u Question {n}"], reply=reply))
    ask = Ask(name="last", history=["u " + unit * (65_000 // len(unit))])
    world.play(ask, collect=False)
    with bounded_cpu_time(0.5):
        world.collect()
    with world.store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM observations").scalar_one() == 0
