"""The training loop on a home with many policies: whose batch comes first, and what is asked about the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from tests.train.conftest import IDENTITY, put

from openclaw_rl.common.progress import Wait
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks, policy_names
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import ASKED_AT_ONCE, TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import JudgedTurn

Make = Callable[..., JudgedTurn]
FULL = 4


@pytest.fixture
def loop(store: Store, builder: SampleBuilder, tmp_path: Path) -> Iterator[TrainLoop]:
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity=IDENTITY, at=1.0)
        policy_names.start_policies(conn, "agent")
    settings = {"batch.min_turns": FULL, "batch.max_turns": FULL, "batch.max_wait": 1e9}
    opened = TrainLoop(
        store,
        ScriptedTrainer(),
        builder,
        train_settings(settings),
        tmp_path / "policies",
        LoopParts(per="agent", clock=lambda: 1000.0),
    )
    yield opened
    opened.close()


def talk(store: Store, judged: Make, agent: str, count: int, first: int = 0) -> None:
    names = [f"{agent}-{number}" for number in range(first, first + count)]
    put(store, [judged(request={"id": name, "agent": agent}) for name in names])


def rest(loop: TrainLoop) -> None:
    """Run the loop until it has asked everybody and nothing is left to do."""
    for _ in range(50):
        loop.run_once()


def head_of(store: Store, agent: str) -> int:
    with store.read() as conn:
        return policies.head(conn, f"agent:key:{agent}").version


def count_statements(loop: TrainLoop) -> int:
    """Return how many statements an iteration executes that finds nothing to do."""
    counted = 0

    def count(*_arguments: object) -> None:
        nonlocal counted
        counted += 1

    event.listen(Engine, "before_cursor_execute", count)
    try:
        loop._next_check = 0.0
        assert not loop.run_once()
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    return counted


def test_a_full_batch_comes_before_all_who_wait(
    loop: TrainLoop, store: Store, judged: Make
) -> None:
    for number in range(3 * ASKED_AT_ONCE):
        talk(store, judged, f"waits-{number:02}", 1)
    talk(store, judged, "last", FULL)
    assert loop.run_once(), "the first iteration takes the step"
    assert head_of(store, "last") == 1


def test_an_iteration_does_not_ask_about_those_who_have_nothing_new(
    loop: TrainLoop, store: Store, judged: Make
) -> None:
    for number in range(10):
        talk(store, judged, f"waits-{number:02}", 1)
    rest(loop)
    few = count_statements(loop)
    for number in range(10, 40):
        talk(store, judged, f"waits-{number:02}", 1)
    rest(loop)
    assert count_statements(loop) == few
    assert loop.waits == {Wait.TURNS}


def test_one_who_waited_trains_once_the_batch_is_full(
    loop: TrainLoop, store: Store, judged: Make
) -> None:
    for number in range(ASKED_AT_ONCE + 4):
        talk(store, judged, f"waits-{number:02}", FULL - 1)
    rest(loop)
    talk(store, judged, "waits-03", 1, first=FULL)
    rest(loop)
    assert head_of(store, "waits-03") == 1
    assert head_of(store, "waits-04") == 0


def test_frozen_training_is_said_of_all(loop: TrainLoop, store: Store, judged: Make) -> None:
    for number in range(ASKED_AT_ONCE + 4):
        talk(store, judged, f"waits-{number:02}", 1)
    rest(loop)
    with store.write() as conn:
        policy_marks.freeze_training(conn, 1000.0)
    talk(store, judged, "waits-00", 1, first=1)
    talk(store, judged, "full", FULL)
    rest(loop)
    assert Wait.FROZEN in loop.waits
    assert head_of(store, "full") == 0
    with store.write() as conn:
        policy_marks.unfreeze_training(conn)
    rest(loop)
    assert head_of(store, "full") == 1
