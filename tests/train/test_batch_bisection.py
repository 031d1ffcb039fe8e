"""One turn spoils a batch, or the batch cannot be trained: the good turns train all the same, each once on a line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_rl.errors import (
    BrokenPolicy,
    ModelError,
    OpenClawError,
    PluginError,
    RanksGone,
    TooLarge,
)
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train import batch_bisection
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.step_outcome import failed_version
from openclaw_rl.types import JudgedTurn, PolicyState, Use

Fill = Callable[..., list[str]]
Judged = Callable[..., JudgedTurn]
REJECTED = {"gradient/norm": math.inf}


class Spoilt(ScriptedTrainer):
    """A batch with one of the turns `poison` comes to nothing, in the way that `act` says."""

    def __init__(self, act: Callable[[], Mapping[str, float]]) -> None:
        super().__init__(lambda samples: act() if self.poison & {s.turn for s in samples} else {})
        self.poison: set[str] = set()


def refuse(error: Exception) -> Callable[[], Mapping[str, float]]:
    def act() -> Mapping[str, float]:
        raise error

    return act


@pytest.fixture
def rooms(
    store: Store, builder: SampleBuilder, tmp_path: Path
) -> Iterator[Callable[..., TrainLoop]]:
    opened: list[TrainLoop] = []

    def make(trainer: ScriptedTrainer, **given: Any) -> TrainLoop:
        train = train_settings({"batch_min": 4, "batch_max": 16, **given})
        opened.append(TrainLoop(store, trainer, builder, train, tmp_path / "policies"))
        return opened[-1]

    yield make
    for room in opened:
        room.close()


def work(room: TrainLoop, most: int = 99) -> int:
    """Turns of the loop until there is nothing to do."""
    for done in range(most):
        if not room.run_once():
            return done
    raise AssertionError("it does not come to an end")


def trained(store: Store) -> Counter[str]:
    """How often each turn was used on the head's line."""
    with store.read() as conn:
        line = policies.lineage(conn, policies.head(conn).version)
        return Counter(
            use.turn for version in line for use in policies.uses_of_version(conn, version)
        )


def reasons(store: Store, ids: Sequence[str]) -> dict[str, str]:
    with store.read() as conn:
        found = [turns.get(conn, id_) for id_ in ids]
    return {turn.id: turn.untrainable for turn in found if turn and turn.untrainable}


WAYS = [
    (lambda: REJECTED, "a step on it alone was rejected: gradient/norm is inf"),
    (
        refuse(ValueError("got 3, expected 4")),
        "it cannot be trained: ValueError: got 3, expected 4",
    ),
    (refuse(ModelError("no room")), "it cannot be trained: ModelError: no room"),
    (refuse(PluginError("loss.py:3")), "it cannot be trained: PluginError: loss.py:3"),
]


@pytest.mark.parametrize(
    ("act", "why"), WAYS, ids=["rejected", "ValueError", "ModelError", "PluginError"]
)
def test_one_bad_turn_of_sixteen_is_found(
    store: Store,
    rooms: Callable[..., TrainLoop],
    fill: Fill,
    act: Callable[[], Mapping[str, float]],
    why: str,
) -> None:
    room = rooms(trainer := Spoilt(act))
    ids = fill(store, 16)
    trainer.poison = {ids[5]}
    assert work(room) <= 9
    assert trained(store) == Counter(set(ids) - {ids[5]})
    (reason,) = reasons(store, ids).values()
    assert reason.startswith(why)
    assert reasons(store, [ids[5]])
    assert [len(batch) for batch in trainer.batches] == [16, 8, 4, 4, 2, 1, 1, 2, 8]


def test_a_killed_trainer_continues_the_bisection(
    store: Store, rooms: Callable[..., TrainLoop], fill: Fill
) -> None:
    ids = fill(store, 8)
    for _ in range(9):
        room = rooms(trainer := Spoilt(refuse(ValueError("x"))))
        trainer.poison = {ids[0]}
        room.run_once()
        room.close()
    assert trained(store) == Counter(ids[1:])
    assert list(reasons(store, ids)) == ids[:1]


def test_the_longest_turn_leaves_when_a_batch_is_too_large(
    store: Store, rooms: Callable[..., TrainLoop], fill: Fill
) -> None:
    room = rooms(
        trainer := Spoilt(refuse(TooLarge("a step of one row a pass does not fit into memory")))
    )
    ids = fill(store, 3)
    trainer.poison = set(fill(store, 1, words="Paris. " * 9))
    assert work(room) == 1, "three are too few"
    why = "it cannot be trained: TooLarge: a step of one row a pass does not fit into memory"
    assert reasons(store, [*ids, *trainer.poison]) == dict.fromkeys(trainer.poison, why)
    ids += fill(store, 1)
    assert work(room) == 1
    assert trained(store) == Counter(ids)


def test_a_replay_that_is_too_long_is_left_alone(
    store: Store, rooms: Callable[..., TrainLoop], fill: Fill
) -> None:
    room = rooms(trainer := Spoilt(refuse(TooLarge("too long"))), batch_min=2, max_uses=2)
    long = fill(store, 1, words="Paris. " * 9) + fill(store, 1)
    assert work(room) == 1
    trainer.poison = {long[0]}
    ids = fill(store, 2)
    assert work(room) == 2
    assert trained(store) == Counter([*long, long[1], *ids])
    assert not reasons(store, [*long, *ids])


@pytest.mark.parametrize(
    "error", [BrokenPolicy("roll back"), RanksGone("rank 1"), RuntimeError("a bug")]
)
def test_failures_that_no_turn_causes_end_the_worker(
    store: Store, rooms: Callable[..., TrainLoop], fill: Fill, error: Exception
) -> None:
    room = rooms(trainer := Spoilt(refuse(error)))
    trainer.poison = set(fill(store, 4))
    with pytest.raises(type(error)):
        room.run_once()
    assert not reasons(store, list(trainer.poison))


def test_where_everything_fails_the_worker_ends_and_no_restart_uses_up_more_turns(
    store: Store, rooms: Callable[..., TrainLoop], fill: Fill
) -> None:
    """A loss of the owner that never works must not use up everything that people have said."""
    ids = fill(store, 24)
    for _ in range(3):
        room = rooms(trainer := Spoilt(refuse(PluginError("loss.py:3"))))
        trainer.poison = set(ids)
        with pytest.raises(
            OpenClawError, match=r"8 turns failed .* it cannot be trained: PluginError"
        ):
            work(room)
        room.close()
        assert len(reasons(store, ids)) == batch_bisection.MAX_CONSECUTIVE_FAILURES - 1
    work(rooms(ScriptedTrainer()))
    assert trained(store) == Counter(set(ids) - reasons(store, ids).keys()), (
        "the cause is mended: all others train"
    )


@given(poison=st.sets(st.integers(0, 11)), raises=st.booleans())
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_good_turns_train_once_whatever_turns_are_bad(
    judged: Judged,
    builder: SampleBuilder,
    tmp_path_factory: pytest.TempPathFactory,
    poison: set[int],
    raises: bool,
) -> None:
    from tests.train.conftest import IDENTITY, put

    store = Store.open(tmp_path_factory.mktemp("blame") / "store.db")
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity=IDENTITY, at=1.0)
    trainer = Spoilt(
        refuse(ValueError("x"))
        if raises and len(poison) < batch_bisection.MAX_CONSECUTIVE_FAILURES
        else lambda: REJECTED
    )
    root = tmp_path_factory.mktemp("policies")
    room = TrainLoop(
        store, trainer, builder, train_settings({"batch.min_turns": 2, "batch.max_turns": 8}), root
    )
    ids = put(store, [judged() for _ in range(12)])
    trainer.poison = {ids[n] for n in poison}
    work(room)
    assert trained(store) == Counter(set(ids) - trainer.poison)
    assert reasons(store, ids).keys() == trainer.poison
    with store.read() as conn:
        assert all(p.state is not PolicyState.ROLLED_BACK for p in policies.list_all(conn))
    room.close()
    store.close()


def test_turns_that_failed_alone_are_counted_by_the_code_of_their_versions(
    store: Store, fill: Fill
) -> None:
    codes = [ReasonCode.JUNK, ReasonCode.CANNOT_TRAIN, ReasonCode.CANNOT_TRAIN]
    turns_ = fill(store, len(codes))
    with store.write() as conn:
        root = policies.head(conn)
        for number, (turn, code) in enumerate(zip(turns_, codes, strict=True), start=1):
            words = "it cannot be trained: x" if code is ReasonCode.JUNK else "in other words"
            version = failed_version(root, number, Reason(code, words), at=1.0)
            uses = [Use(policy=number, turn=turn, number=1)]
            policies.insert_version(conn, version, uses, PolicyState.REJECTED)
        assert batch_bisection.count_failed_alone(conn) == 2
