"""Replay: used turns join a batch of fresh ones once more. On the real store, with a scripted trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import head_moves, policies
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.replay import replay_limit
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import Policy, TurnState

Fill = Callable[..., list[str]]
MakeLoop = Callable[..., TrainLoop]


class Picky(ScriptedTrainer):
    """Finds the turns in `stale` too stale."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: set[str] = set()

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        result = super().step(samples, out)
        stale = {
            s.turn: Reason(ReasonCode.TOO_STALE, "too stale: 0.7")
            for s in samples
            if s.turn in self.stale
        }
        dropped = dict(result.dropped) | stale
        return StepResult(
            folder=result.folder,
            digest=result.digest,
            metrics=result.metrics,
            memory=result.memory,
            dropped=dropped,
        )

    @property
    def last(self) -> tuple[list[str], list[str]]:
        """(fresh, replayed) turns of the last batch."""
        batch = self.batches[-1]
        return [s.turn for s in batch if not s.replay], [s.turn for s in batch if s.replay]


@pytest.fixture
def trainer() -> Picky:
    return Picky()


@pytest.fixture
def make_loop(
    store: Store, builder: SampleBuilder, tmp_path: Path, trainer: Picky
) -> Iterator[MakeLoop]:
    opened = []

    def make(**settings: Any) -> TrainLoop:
        train = train_settings({"batch_min": 2, "batch_max": 4, "max_uses": 2, **settings})
        opened.append(TrainLoop(store, trainer, builder, train, tmp_path / "policies"))
        return opened[-1]

    yield make
    for loop in opened:
        loop.close()


def head_of(store: Store) -> Policy:
    with store.read() as conn:
        return policies.head(conn)


def numbers(store: Store, version: int) -> dict[str, int]:
    with store.read() as conn:
        return {use.turn: use.number for use in policies.uses_of_version(conn, version)}


def reasons(store: Store, ids: Sequence[str]) -> list[str | None]:
    with store.read() as conn:
        found = [turns.get(conn, id_) for id_ in ids]
    return [turn.untrainable for turn in found if turn]


def test_each_turn_is_trained_on_at_most_twice(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    seen: list[list[str]] = []
    for _ in range(4):
        seen.append(fill(store, 2))
        assert loop.run_once()
        assert trainer.last == (seen[-1], seen[-2] if len(seen) > 1 else [])
    assert numbers(store, 4) == dict.fromkeys(seen[3], 1) | dict.fromkeys(seen[2], 2)
    assert (head_of(store).metrics["replays"], head_of(store).metrics["replays/passed_over"]) == (
        2,
        0,
    )


def test_max_uses_1_disables_replay(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop(max_uses=1)
    for _ in range(2):
        ids = fill(store, 2)
        assert loop.run_once()
        assert trainer.last == (ids, [])


def test_replays_alone_do_not_start_a_batch(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    fill(store, 4)
    assert loop.run_once()
    fill(store, 1)
    assert loop.run_once() is False
    assert loop.note == "waiting for turns: 1 of 2"
    assert len(trainer.batches) == 1


def test_fresh_turns_come_first(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    first = fill(store, 2)
    assert loop.run_once()
    many = fill(store, 4)
    assert loop.run_once()
    assert trainer.last == (many, []), "a full batch has no room"
    three = fill(store, 3)
    assert loop.run_once()
    assert trainer.last == (three, many[-1:]), "the newest one: the least stale"
    assert first[0] not in numbers(store, 3)


@pytest.mark.parametrize(("share", "replays"), [(0.0, 0), (0.34, 1), (0.5, 2)])
def test_the_share_of_replays_is_bounded(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky, share: float, replays: int
) -> None:
    loop = make_loop(replay=share, batch_max=8)
    fill(store, 8)
    assert loop.run_once()
    fill(store, 2)
    assert loop.run_once()
    assert len(trainer.last[1]) == replays


@given(fresh=st.integers(1, 100), share=st.floats(0, 0.99), most=st.integers(1, 200))
def test_the_number_of_replays_is_computed(fresh: int, share: float, most: int) -> None:
    n = replay_limit(fresh, share=share, most=most)
    assert n >= 0
    assert n == 0 or fresh + n <= most
    assert n <= share * (fresh + n) + 1e-6
    assert fresh + n == most or fresh > most or n + 1 > share * (fresh + n + 1) - 1e-6, (
        "as many as may be"
    )


def test_stale_replays_are_skipped_without_a_penalty(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    first = fill(store, 2)
    assert loop.run_once()
    trainer.stale = {first[1]}
    fill(store, 2)
    assert loop.run_once()
    assert trainer.last[1] == first
    assert numbers(store, 2)[first[0]] == 2
    assert first[1] not in numbers(store, 2)
    assert reasons(store, first) == [None, None], "it carried a gradient once"
    assert head_of(store).metrics["replays/passed_over"] == 1
    trainer.stale = set()
    for _ in range(2):
        fill(store, 2)
        assert loop.run_once()
        assert first[1] not in trainer.last[1], "it is not tried again and again"


def test_skipped_replays_are_tried_again_after_a_rollback(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    first = fill(store, 2)
    assert loop.run_once()
    trainer.stale = set(first)
    second = fill(store, 2)
    assert loop.run_once()
    assert numbers(store, 2) == dict.fromkeys(second, 1)
    with store.write() as conn:
        head_moves.roll_back(conn, to=1, reason="a person said so", at=time.time())
    trainer.stale = set()
    assert loop.run_once()
    assert trainer.last == (second, first), "nearer to what wrote them, they may fit"
    assert numbers(store, 3) == dict.fromkeys(second + first, 2)


def test_no_version_is_made_if_all_fresh_turns_are_stale(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky, tmp_path: Path
) -> None:
    loop = make_loop()
    fill(store, 2)
    assert loop.run_once()
    second = fill(store, 2)
    trainer.stale = set(second)
    assert loop.run_once()
    assert len(trainer.batches[-1]) == 4
    assert (head_of(store).version, trainer.steps) == (1, 2)
    assert len(list((tmp_path / "policies").iterdir())) == 1
    assert reasons(store, second) == ["too stale: 0.7"] * 2
    fill(store, 2)
    assert loop.run_once()
    assert head_of(store).memory == {"steps": 2}, (
        "what the replays alone had done to the weights is undone"
    )


def test_a_replay_without_a_gradient_stays_trainable(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    first = fill(store, 2)
    assert loop.run_once()
    trainer.outcome = lambda samples: None
    second = fill(store, 2)
    assert loop.run_once()
    assert len(trainer.batches[-1]) == 4
    assert reasons(store, first + second) == [None, None] + ["the script has nothing to say"] * 2


def test_a_rejected_batch_is_retried_without_replays(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    first = fill(store, 2)
    assert loop.run_once()
    trainer.outcome = lambda samples: {"kl": 9.0}
    second = fill(store, 2)
    assert loop.run_once()
    assert trainer.last == (second, first)
    trainer.outcome = lambda samples: {}
    assert [loop.run_once() for _ in range(2)] == [True, False]
    assert trainer.last == (second, [])
    assert numbers(store, 3) == dict.fromkeys(second, 2)
    third = fill(store, 2)
    assert loop.run_once()
    assert trainer.last == (third, second), "the newest ones, of which one use was rejected"
    assert numbers(store, 4) == dict.fromkeys(third, 1) | dict.fromkeys(second, 3)


def test_a_turn_that_is_judged_again_is_replayed_with_its_newest_verdict(
    store: Store, make_loop: MakeLoop, fill: Fill, trainer: Picky
) -> None:
    loop = make_loop()
    first = fill(store, 2, score=1)
    assert loop.run_once()
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE verdicts SET score = -1 WHERE turn = ?", (first[0],))
        assert turns.count_by_state(conn)[TurnState.JUDGED] == 2
    fill(store, 2)
    assert loop.run_once()
    assert {s.turn: s.reward for s in trainer.batches[-1] if s.replay} == {
        first[0]: -1.0,
        first[1]: 1.0,
    }
