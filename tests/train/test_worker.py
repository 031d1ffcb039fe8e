"""The loop's decisions, on the real store with a scripted trainer; and the whole worker on the shipped model."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.errors import IdentityMismatch
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import Config, ModelConfig, train_settings
from openclaw_rl.store import events, heartbeats, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import head_moves, policies, training_queue
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.lease_keeper import TRAINER_LEASE
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.worker import run
from openclaw_rl.types import Policy, PolicyState, Use

Fill = Callable[..., list[str]]
MakeLoop = Callable[..., TrainLoop]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_loop(
    store: Store, builder: SampleBuilder, tmp_path: Path, clock: Clock
) -> Iterator[MakeLoop]:
    opened = []

    def make(trainer: ScriptedTrainer, **settings: Any) -> TrainLoop:
        train = train_settings({"batch_min": 4, "batch_max": 6, **settings})
        opened.append(
            TrainLoop(
                store,
                trainer,
                builder,
                train,
                tmp_path / "policies",
                LoopParts(clock=clock, lease_clock=clock),
            )
        )
        return opened[-1]

    yield make
    for loop in opened:
        loop.close()


def head_of(store: Store) -> Policy:
    with store.read() as conn:
        return policies.head(conn)


def uses_of(store: Store, version: int) -> list[Use]:
    with store.read() as conn:
        return policies.uses_of_version(conn, version)


def waiting(store: Store, head: int = 0) -> list[str]:
    with store.read() as conn:
        items = training_queue.trainable_turns(
            conn, limit=99, max_uses=1, need_score=True, need_hint=True
        )
    return [i.turn.id for i in items]


def on_disk(tmp_path: Path) -> list[str]:
    root = tmp_path / "policies"
    return sorted(p.name for p in root.iterdir()) if root.exists() else []


def test_a_batch_waits_for_four_turns(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path
) -> None:
    trainer = ScriptedTrainer()
    loop = make_loop(trainer)
    ids = fill(store, 3)
    assert loop.run_once() is False
    assert loop.note == "waiting for turns: 3 of 4"
    ids += fill(store, 1)
    assert loop.run_once() is True
    head = head_of(store)
    assert (head.version, head.parent, head.state) == (1, 0, PolicyState.LIVE)
    assert head.path is not None
    assert Path(head.path).parent == (tmp_path / "policies").resolve()
    assert head.memory == {"steps": 1}
    assert head.metrics["turns"] == 4
    assert sorted(u.turn for u in uses_of(store, 1)) == sorted(ids)
    assert {u.number for u in uses_of(store, 1)} == {1}
    assert waiting(store, 1) == []
    assert loop.run_once() is False


def test_a_batch_has_at_most_its_maximum(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    trainer = ScriptedTrainer()
    loop = make_loop(trainer)
    ids = fill(store, 10)
    assert loop.run_once()
    assert loop.run_once()
    assert [[s.turn for s in batch] for batch in trainer.batches] == [ids[:6], ids[6:]]
    with store.read() as conn:
        assert policies.lineage(conn, 2) == [2, 1, 0]


def test_a_damaged_turn_is_left_out_and_the_others_train(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    """Its log-probabilities are one short: that ended the trainer, again and again."""
    ids = fill(store, 5)
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE replies SET logprobs = substr(logprobs, 5) WHERE seq = 2")
    trainer = ScriptedTrainer()
    loop = make_loop(trainer)
    while loop.run_once():
        pass
    assert [[s.turn for s in batch] for batch in trainer.batches] == [[ids[0], *ids[2:]]]
    with store.read() as conn:
        damaged = turns.get(conn, ids[1])
    assert damaged is not None
    assert str(damaged.untrainable).startswith("damaged: its reply cannot be read")


def test_old_turns_are_not_kept_waiting(
    store: Store, make_loop: MakeLoop, fill: Fill, clock: Clock
) -> None:
    loop = make_loop(ScriptedTrainer(), max_wait=600, lease=10_000)
    fill(store, 1)
    assert not loop.run_once()
    clock.ahead = 601
    time.sleep(1.05)  # nothing was committed: the store is looked at once a second all the same
    assert loop.run_once()
    assert len(uses_of(store, 1)) == 1


def test_the_trainer_loads_a_version_once(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    class Counting(ScriptedTrainer):
        def __init__(self) -> None:
            super().__init__()
            self.loads: list[tuple[str | None, Mapping[str, Any]]] = []

        def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
            self.loads.append((folder, method_state))
            super().load(folder=folder, method_state=method_state)

    trainer = Counting()
    loop = make_loop(trainer)
    for _ in range(3):
        fill(store, 4)
        assert loop.run_once()
    assert trainer.loads == [(None, {})]


def test_a_candidate_that_does_not_pass_is_kept_but_not_served(
    store: Store, make_loop: MakeLoop, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = ScriptedTrainer(
        lambda samples: {"kl": 9.0, "loss/total": math.nan if len(samples) == 5 else 0.1}
    )
    loop = make_loop(trainer, batch_max=4)
    ids = fill(store, 4)
    assert loop.run_once()
    assert head_of(store).version == 0
    with store.read() as conn:
        rejected = policies.get(conn, 1)
    assert rejected is not None
    assert rejected.state is PolicyState.REJECTED
    assert rejected.reason == "KL to the base 9 nats per token is above train.safety.gate_kl 5"
    assert "rejected: KL to the base" in caplog.text
    assert waiting(store) == ids, "they may try once more"
    trainer.outcome = lambda samples: {}
    assert loop.run_once()
    assert [s.turn for s in trainer.batches[-1]] == ids[:2], "in halves"
    live = head_of(store)
    assert (live.version, live.parent, live.memory) == (2, 0, {"steps": 1}), (
        "the rejected step is not built upon"
    )
    assert {u.number for u in uses_of(store, 2)} == {2}


def test_a_turn_rejected_alone_is_not_tried_again(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop(trainer := ScriptedTrainer(lambda samples: {"gradient/norm": math.inf}))
    ids = fill(store, 4)
    assert [loop.run_once() for _ in range(8)] == [True] * 7 + [False]
    assert [len(batch) for batch in trainer.batches] == [4, 2, 1, 1, 2, 1, 1]
    with store.read() as conn:
        states = [p.state for p in policies.list_all(conn)]
        found = [turns.get(conn, i) for i in ids]
    assert states == [PolicyState.LIVE] + [PolicyState.REJECTED] * 7
    assert all(
        "a step on it alone was rejected: gradient/norm is inf" in str(t and t.untrainable)
        for t in found
    )


def test_turns_without_a_gradient_leave_the_queue_with_a_reason(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    loop = make_loop(ScriptedTrainer(lambda samples: None))
    ids = fill(store, 4)
    assert loop.run_once()
    assert head_of(store).version == 0
    assert waiting(store) == []
    with store.read() as conn:
        assert [t.untrainable for t in (turns.get(conn, i) for i in ids) if t] == [
            "the script has nothing to say"
        ] * 4
    assert not loop.run_once()


def test_turns_that_do_not_fit_leave_the_queue(
    store: Store, make_loop: MakeLoop, fill: Fill
) -> None:
    trainer = ScriptedTrainer()
    loop = make_loop(trainer)
    good = fill(store, 3)
    (bad,) = fill(store, 1, request={"identity": "x" * 64})
    assert loop.run_once() is True
    assert trainer.batches == []
    with store.read() as conn:
        turn = turns.get(conn, bad)
    assert turn is not None
    assert "its tokens belong to another model" in str(turn.untrainable)
    good += fill(store, 1)
    assert loop.run_once()
    assert [s.turn for s in trainer.batches[0]] == good


def test_a_rollback_during_a_step_wins(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path
) -> None:
    loop = make_loop(trainer := ScriptedTrainer(), batch_max=4)
    fill(store, 4)
    assert loop.run_once()

    def undo(samples: Sequence[Sample]) -> dict[str, float]:
        with store.write() as conn:
            head_moves.roll_back(conn, to=0, reason="a person said so", at=time.time())
        return {}

    trainer.outcome = undo
    fill(store, 4)
    assert loop.run_once()
    assert head_of(store).version == 0
    with store.read() as conn:
        assert [p.version for p in policies.list_all(conn)] == [0, 1]
    assert len(on_disk(tmp_path)) == 1, "the unpublished folder is gone"
    trainer.outcome = lambda samples: {}
    assert loop.run_once()
    assert (head_of(store).parent, head_of(store).memory) == (0, {"steps": 1})


def test_a_trainer_without_the_lease_publishes_nothing(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path, clock: Clock
) -> None:
    """The process stands still during the step, longer than its lease; another trainer does the work meanwhile."""
    other = make_loop(ScriptedTrainer())

    def freeze(samples: Sequence[Sample]) -> dict[str, float]:
        clock.ahead += 31
        assert other.run_once()
        return {}

    loop = make_loop(frozen := ScriptedTrainer(freeze))
    ids = fill(store, 4)
    assert loop.run_once()
    head = head_of(store)
    assert head.version == 1
    assert [Path(str(head.path)).name] == on_disk(tmp_path)
    assert len(frozen.batches) == 1
    assert sorted(u.turn for u in uses_of(store, 1)) == sorted(ids)
    assert loop.run_once() is False
    assert "holds the lease; it is taken over if it is not renewed for 30 s" in loop.note


def test_one_trainer_at_a_time(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    fill(store, 8)
    first, second = (
        make_loop(ScriptedTrainer(), batch_max=4),
        make_loop(ScriptedTrainer(), batch_max=4),
    )
    assert first.run_once()
    assert second.run_once() is False
    first.close()
    assert second.run_once()
    assert head_of(store).version == 2


def test_folders_of_a_dead_trainer_are_removed(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path, clock: Clock
) -> None:
    (tmp_path / "policies" / "000001-dead").mkdir(parents=True)
    clock.ahead = 5.0
    fill(store, 4)
    assert make_loop(ScriptedTrainer()).run_once()
    assert on_disk(tmp_path) == [Path(str(head_of(store).path)).name]


def test_a_bug_in_the_trainer_ends_the_loop(store: Store, make_loop: MakeLoop, fill: Fill) -> None:
    def burst(samples: Sequence[Sample]) -> dict[str, float]:
        raise TypeError("turn 7: got 3, expected 4")

    fill(store, 4)
    with pytest.raises(TypeError, match="turn 7"):
        make_loop(ScriptedTrainer(burst)).run_once()
    assert head_of(store).version == 0
    assert len(waiting(store)) == 4


def run_worker_until(
    config: Config, condition: Callable[[Store], bool], *, seconds: float = 30.0
) -> None:
    """Run the train worker until the store satisfies the condition."""

    async def main() -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(run(config, stop=stop))
        store = Store.open(config.store_path)
        try:
            give_up = time.monotonic() + seconds
            while not condition(store):
                assert time.monotonic() < give_up, "it did not happen"
                assert not worker.done(), worker.result()
                await asyncio.sleep(0.02)
            stop.set()
            await worker
        finally:
            store.close()

    asyncio.run(main())


def test_the_train_worker_trains_the_shipped_model(
    tmp_path: Path, fill: Fill, starter_identity: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Judged turns in the store become versions that PEFT can read; the second process goes on from the first's."""
    caplog.set_level(logging.INFO, "openclaw_rl")
    config = Config(
        home=str(tmp_path),
        train=train_settings(
            {
                "batch.min_turns": 4,
                "batch.max_turns": 4,
                "safety.max_turn_log_ratio": 99,
                "loss.token_ratio_min": 1e-6,
                "loss.token_ratio_max": 1e6,
                "poll": 0.01,
            }
        ),
    )
    store = Store.open(config.store_path)
    with store.write() as conn:
        policies.ensure_root(conn, base="starter", identity=starter_identity, at=1.0)
    about = {"request": {"identity": starter_identity}}
    fill(store, 4, hints=("Answer in one word.",), score=-1, **about)
    run_worker_until(config, lambda s: head_of(s).version == 1)
    fill(store, 4, score=1, **about)
    run_worker_until(config, lambda s: head_of(s).version == 2)
    head = head_of(store)
    assert head.metrics["step"] == 2
    assert {
        "loss/total",
        "loss/binary",
        "loss/opd",
        "reward/mean",
        "reward/std",
        "gradient/norm",
        "learning_rate",
    } <= set(policies_metrics(store, 1))
    assert head.memory["baseline"]["all"][1] == 8
    assert {p.name for p in Path(str(head.path)).iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "optimizer.state",
        "trainer.json",
    }
    with store.read() as conn:
        assert [e.ref for e in events.read_after(conn, 0, 99, kinds=["policy.live"])] == ["1", "2"]
        assert [b.name for b in heartbeats.read_heartbeats(conn)] == ["train"]
    with store.write() as conn:
        assert leases.acquire(conn, TRAINER_LEASE, "next", 1.0, time.time()) is not None, (
            "the lease was given back"
        )
    store.close()
    lines = [r.message for r in caplog.records if r.name == "openclaw_rl.train"]
    assert lines[0].startswith("version 1: 4 turns, loss ")
    assert "reward -1.00" in lines[0]


def policies_metrics(store: Store, version: int) -> Mapping[str, float]:
    with store.read() as conn:
        policy = policies.get(conn, version)
    assert policy is not None
    return policy.metrics


def test_another_models_store_is_refused(tmp_path: Path) -> None:
    config = Config(home=str(tmp_path), model=ModelConfig())
    store = Store.open(config.store_path)
    with store.write() as conn:
        policies.ensure_root(conn, base="elsewhere", identity="y" * 64, at=1.0)
    store.close()
    with pytest.raises(IdentityMismatch, match="this store belongs to elsewhere"):
        asyncio.run(run(config, stop=asyncio.Event()))


def test_a_verdict_stamped_hours_ahead_waits_no_longer_than_max_wait(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    """The clock was ahead when it was written, and is right again."""
    steady = [0.0]
    train = train_settings({"batch_min": 4, "max_wait": 600})
    fill(store, 2, at=time.time() + 3 * 3600)
    trainer = ScriptedTrainer()
    loop = TrainLoop(
        store,
        trainer,
        builder,
        train,
        tmp_path / "policies",
        LoopParts(lease_clock=lambda: steady[0]),
    )
    assert not loop.run_once()
    for _ in range(61):
        steady[0] += 9.9  # less than a lease
        loop._keeper.renew_now()
        loop._next_check = 0.0
        loop.run_once()
    assert len(trainer.batches) == 1
    loop.close()


def test_a_heartbeat_from_the_future_is_not_alive() -> None:
    beat = heartbeats.Heartbeat(
        name="train", pid=2**22, at=1000.0, state=heartbeats.RUNNING, note=""
    )
    assert beat.is_alive(1001.0)
    assert not beat.is_alive(1000.0 + 3 * 3600)
    assert not beat.is_alive(1000.0 - 3 * 3600)


def test_a_loaded_trainer_lowers_its_priority(tmp_path: Path) -> None:
    """At the lower priority a load takes half a minute on busy cores. All threads are lowered, also torch's own."""
    code = (
        "import os, threading\n"
        "from openclaw_rl.common.worker_loop import lower_priority\n"
        "lower_priority(3)\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def values():\n"
        "    return sorted(os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir('/proc/self/task'))\n"
        "print(values())\n"
        "lower_priority(10)\n"
        "lower_priority(5)\n"
        "print(values(), os.sched_getscheduler(0) == os.SCHED_BATCH)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before < 3 and sys.platform == "linux":
        assert done.stdout == "[3, 3]\n[10, 10] True\n"
