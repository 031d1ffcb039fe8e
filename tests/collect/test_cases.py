"""Each row of the tables of cases, played to the real store and loop, and to the pure linker in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.collect.cases import FINDING
from tests.collect.cases_again import AGAIN, LAGGED
from tests.collect.cases_kinds import KINDS, STORE_ONLY
from tests.collect.cases_named import NAMED
from tests.collect.cases_traps_clients import CLIENTS
from tests.collect.cases_traps_edits import EDITS
from tests.collect.cases_traps_ids import IDS
from tests.collect.cases_traps_summaries import SUMMARIES
from tests.collect.cases_traps_text import TEXT
from tests.collect.cases_traps_tools import TOOLS
from tests.collect.world import SIDES, Ask, Memory, Player, Step, Stored, message

from openclaw_rl.collect.link import link_request

CASES = FINDING | AGAIN | KINDS | NAMED | EDITS | CLIENTS | TEXT | TOOLS | IDS | SUMMARIES


def check(player: Player, steps: Sequence[Step]) -> None:
    for step in steps:
        player.play(step)
        if not isinstance(step, Ask):
            continue
        seen = player.seen(step.name)
        for what, expected in step.expect.items():
            got = getattr(seen, what)
            if what == "unlinked" and expected is not None:
                assert str(expected) in str(got), (step.name, got)
            else:
                assert got == expected, (step.name, what, got, expected)


def states(player: Player, names: Sequence[str]) -> dict[str, str]:
    out = {}
    for name in names:
        state, cause = player.state(name)
        out[name] = f"{state} {cause}" if cause else str(state)
    return out


@pytest.mark.parametrize("case", [*CASES, *STORE_ONLY])
def test_case_in_the_store(case: str, tmp_path: Path) -> None:
    steps, expected = (CASES | STORE_ONLY)[case]
    world = Stored(tmp_path / "store.db")
    check(world, steps)
    assert states(world, list(expected)) == expected
    before = world.snapshot()
    world.replay()
    assert world.snapshot() == before, "the same events once more change nothing"
    world.store.close()


@pytest.mark.parametrize("case", CASES)
def test_case_in_memory(case: str) -> None:
    steps, expected = CASES[case]
    world = Memory()
    check(world, steps)
    assert states(world, list(expected)) == expected


@pytest.mark.parametrize("case", LAGGED)
def test_case_when_collecting_lags_behind(case: str, tmp_path: Path) -> None:
    steps, expected, states_ = LAGGED[case]
    world = Stored(tmp_path / "store.db")
    for step in steps:
        world.play(step, collect=False)
    world.collect()
    for name, whats in expected.items():
        assert {what: getattr(world.seen(name), what) for what in whats} == whats, name
    assert states(world, list(states_)) == states_
    world.store.close()


def test_several_replies_to_one_call_are_one_session() -> None:
    """Three choices of one answer, and the same words again a moment later: that is another conversation."""
    world = Memory()
    world.play(Ask(name="a", history=["u Hello"]))
    first = world.requests["a"]
    for number in (1, 2):
        again = link_request(replace(first, id=f"a.{number}"), 1 + number, world, SIDES)
        assert (again.session, again.relation) == ("a", "sibling")
    assert link_request(replace(first, id="a.1", session="x"), 2, world, SIDES).session == "x"
    assert (
        link_request(
            replace(first, id="a.1", admitted_at=first.admitted_at + 1), 2, world, SIDES
        ).session
        == "a.1"
    )
    assert link_request(replace(first, id="a.1", scope="another"), 2, world, SIDES).session == "a.1"
    assert link_request(replace(first, id="b"), 2, world, SIDES).session == "b"


def test_a_script_line_is_a_message() -> None:
    assert message("u hello there") == {"role": "user", "content": "hello there"}
