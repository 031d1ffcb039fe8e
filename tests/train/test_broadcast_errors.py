"""What a version tells of the turns that it was made of, and of those that were left out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.errors import ModelError
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrackConfig, TrainConfig, train_settings
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import head_moves, policies
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.tracking import METRICS_FILE, MetricsTracker, staleness_metrics
from openclaw_rl.types import FinishReason, JudgedTurn, Origin, Policy

Fill = Callable[..., list[str]]


class Picky(ScriptedTrainer):
    """Finds the first turn of each batch too stale; with `silent`, there is nothing to say about the rest either."""

    silent = False

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        self.outcome = lambda _: None if self.silent else {"dropped/stale": 1.0}
        result = super().step(samples, out)
        return StepResult(
            folder=result.folder,
            digest=result.digest,
            metrics={"dropped/stale": 1.0} if result.folder is None else result.metrics,
            memory=result.memory,
            dropped={samples[0].turn: Reason(ReasonCode.TOO_STALE, "too stale")}
            | dict(result.dropped),
        )


class Undone(Picky):
    """With `undo`, somebody rolls back to version 0 during the next step."""

    undo: Store | None = None

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        if self.undo is not None:
            with self.undo.write() as conn:
                head_moves.roll_back(conn, to=0, reason="a person said so", at=time.time())
            self.undo = None
        return super().step(samples, out)


def head_metrics(store: Store) -> Mapping[str, float]:
    with store.read() as conn:
        return policies.head(conn).metrics


@pytest.fixture
def loop(store: Store, builder: SampleBuilder, tmp_path: Path) -> TrainLoop:
    train = train_settings({"batch.min_turns": 4, "batch.max_turns": 8, "batch.max_wait": 1e9})
    return TrainLoop(store, Undone(), builder, train, tmp_path / "policies")


def test_a_version_that_its_trainer_did_not_log_is_logged(
    store: Store, loop: TrainLoop, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    fill(store, 4)
    assert loop.run_once()
    loop.close()
    tracker = MetricsTracker(TrackConfig(), tmp_path / "logs", run="r", settings={})
    after = TrainLoop(
        store,
        ScriptedTrainer(),
        builder,
        TrainConfig(),
        tmp_path / "policies",
        LoopParts(tracker=tracker),
    )
    assert not after.run_once()
    after.close()
    (line,) = (
        json.loads(line) for line in (tmp_path / "logs" / METRICS_FILE).read_text().splitlines()
    )
    with store.read() as conn:
        assert sorted(line["turns"]) == sorted(
            use.turn for use in policies.uses_of_version(conn, 1)
        )
    assert line == line | head_metrics(store) | {
        "version": 1,
        "state": "live",
        "turns": line["turns"],
    }


def test_ages_and_dropped_turns_are_metrics(store: Store, loop: TrainLoop, fill: Fill) -> None:
    fill(store, 4)
    assert loop.run_once()
    first = head_metrics(store)
    assert (first["staleness/versions"], first["staleness/versions/max"]) == (0, 0)
    assert (first["dropped/stale"], first["truncated"]) == (1, 0)
    fill(store, 3)
    fill(store, 1, request={"version": 1})
    fill(store, 2, reply={"finish_reason": FinishReason.LENGTH}, hints=("Be short.",))
    assert loop.run_once()
    second = head_metrics(store)
    assert (second["staleness/versions"], second["staleness/versions/max"]) == (0.8, 1), (
        "five trained, one of them new"
    )
    assert (second["dropped/stale"], second["truncated"]) == (1, 2)
    loop.close()


def test_dropped_turns_are_counted_once(store: Store, loop: TrainLoop, fill: Fill) -> None:
    """Truncated turns that wait for company are looked at again and again; a batch without a step has its count too."""
    cut = {"reply": {"finish_reason": FinishReason.LENGTH}, "hints": ("Be short.",)}
    fill(store, 3, **cut)
    fill(store, 1, request={"identity": "x" * 64}, **cut)
    assert loop.run_once(), "one leaves, three wait"
    assert not loop.run_once()
    fill(store, 1)
    assert isinstance(loop._trainer._trainer, Picky)
    loop._trainer._trainer.silent = True
    assert loop.run_once()
    loop._trainer._trainer.silent = False
    fill(store, 4)
    assert loop.run_once()
    metrics = head_metrics(store)
    assert (metrics["dropped/stale"], metrics["truncated"]) == (2, 4)
    fill(store, 4)
    assert loop.run_once()
    assert (head_metrics(store)["dropped/stale"], head_metrics(store)["truncated"]) == (1, 0)
    loop.close()


def test_too_many_versions_old_is_stale(
    builder: SampleBuilder, judged: Callable[..., object], head: Policy
) -> None:
    old, new = judged(), judged(request={"version": 70})
    far = Policy(
        version=70,
        parent=69,
        state=head.state,
        path=None,
        digest="",
        base="b",
        identity=head.identity,
        created_at=0.0,
    )
    batch = builder.build_batch([old, new], far, range(71))  # type: ignore[list-item]
    assert batch.dropped_counts["dropped/stale"] == 1
    assert batch.kept_counts["dropped/stale"] == 0
    assert "70 versions ago" in next(iter(batch.dropped.values())).detail
    assert staleness_metrics(range(71), batch.samples) == {
        "staleness/versions": 0.0,
        "staleness/versions/max": 0.0,
    }
    assert staleness_metrics(range(71), []) == {}


def test_ages_count_versions_of_the_lineage(
    builder: SampleBuilder, judged: Callable[..., JudgedTurn], head: Policy
) -> None:
    """The head is 6 on 1 on 0: 2 was rolled back, and 3 to 5 were rejected; the turns were written by 0, 1, 2 and 6."""
    items = [judged(request={"version": v}) for v in (0, 1, 2, 6)]
    samples = builder.build_batch(items, replace(head, version=6), [6, 1, 0]).samples
    assert staleness_metrics([6, 1, 0], samples) == {
        "staleness/versions": 1.0,
        "staleness/versions/max": 2.0,
    }
    assert staleness_metrics([1, 0], samples) == {
        "staleness/versions": 0.25,
        "staleness/versions/max": 1.0,
    }, "never below 0"


def test_versions_outside_of_the_lineage_do_not_add_age(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    """Three versions are rolled back: what the base wrote is one step old on the line that goes on from it."""
    trainer = ScriptedTrainer()
    train = train_settings({"batch.min_turns": 4, "batch.max_turns": 4, "batch.max_wait": 1e9})
    loop = TrainLoop(
        store, trainer, replace(builder, max_staleness=1), train, tmp_path / "policies"
    )
    undone: list[str] = []
    for version in range(1, 4):
        undone += fill(store, 4, request={"version": version - 1})
        assert loop.run_once()
    with store.write() as conn:
        head_moves.roll_back(conn, to=0, reason="a person said so", at=time.time())
        for turn in undone:
            turns.mark_untrainable(conn, {turn: Reason(ReasonCode.TAKEN_BACK, "taken back")})
    for version, parent in ((4, 0), (5, 4)):
        fill(store, 4)
        assert loop.run_once()
        with store.read() as conn:
            head = policies.head(conn)
        assert (head.version, head.parent) == (version, parent)
    assert head.metrics["staleness/versions"] == 1
    fill(store, 4)
    assert loop.run_once(), "two steps are too many"
    assert head_metrics(store) == head.metrics
    loop.close()


def test_imported_turns_do_not_count_as_stale(
    builder: SampleBuilder, judged: Callable[..., JudgedTurn], head: Policy
) -> None:
    """Its age says nothing, so it trains; what trains is not among what was left out."""
    item = judged(request={"origin": Origin.TOKENS})
    batch = builder.build_batch([item], replace(head, version=70), range(71))
    assert len(batch.samples) == 1
    assert batch.kept_counts["dropped/stale"] == 0


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "logs" / METRICS_FILE).read_text().splitlines()]


def test_batches_without_a_step_are_logged(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    """Nothing to say, a trainer that raises, turns that cannot train at all; and a version in between."""
    tracker = MetricsTracker(TrackConfig(), tmp_path / "logs", run="r", settings={})
    trainer = Picky()
    trainer.silent = True
    train = train_settings({"batch.min_turns": 2, "batch.max_turns": 2, "batch.max_wait": 1e9})
    loop = TrainLoop(
        store, trainer, builder, train, tmp_path / "policies", LoopParts(tracker=tracker)
    )
    silent = fill(store, 2)
    assert loop.run_once()
    foreign = fill(store, 2, request={"identity": "x" * 64})
    assert loop.run_once()
    trainer.silent = False
    fine = fill(store, 2)
    assert loop.run_once()
    raising = fill(store, 2)

    def broken(samples: Sequence[Sample]) -> None:
        raise ModelError("no such layer")

    loop._trainer._trainer = ScriptedTrainer(broken)
    assert loop.run_once()
    first, second, third, fourth = lines(tmp_path)
    assert first["reasons"] == dict.fromkeys(silent, "the script has nothing to say")
    assert (first["state"], first["parent"], first["dropped/stale"]) == ("no step", 0, 1)
    assert all("another model" in str(why) for why in dict(second["reasons"]).values())  # type: ignore[call-overload]
    assert second["turns"] == foreign
    assert (third["version"], third["state"]) == (1, "live")
    assert set(third["turns"]) <= set(fine)  # type: ignore[call-overload]
    assert (fourth["state"], fourth["parent"], fourth["turns"]) == ("no step", 1, raising)
    assert set(dict(fourth["reasons"]).values()) == {
        "it cannot be trained: ModelError: no such layer"
    }  # type: ignore[call-overload]
    assert "version" not in fourth, "no sink counts it as a step"
    loop.close()


def test_a_version_is_logged_once_without_a_later_step(
    store: Store, builder: SampleBuilder, fill: Fill, tmp_path: Path
) -> None:
    tracker = MetricsTracker(TrackConfig(), tmp_path / "logs", run="r", settings={})
    trainer = Picky()
    train = train_settings({"batch.min_turns": 2, "batch.max_turns": 2, "batch.max_wait": 1e9})
    loop = TrainLoop(
        store, trainer, builder, train, tmp_path / "policies", LoopParts(tracker=tracker)
    )
    fill(store, 2)
    assert loop.run_once()
    trainer.silent = True
    fill(store, 2)
    assert loop.run_once()
    loop.close()
    after = TrainLoop(
        store, trainer, builder, train, tmp_path / "policies", LoopParts(tracker=tracker)
    )
    assert not after.run_once()
    after.close()
    assert [line["state"] for line in lines(tmp_path)] == ["live", "no step"]


def test_a_repeated_step_is_logged_once(store: Store, loop: TrainLoop, fill: Fill) -> None:
    """The head was rolled back during the step, so nothing was published, and the same turns come again."""
    fill(store, 4, reply={"finish_reason": FinishReason.LENGTH}, hints=("Be short.",))
    assert loop.run_once()
    cut = {"reply": {"finish_reason": FinishReason.LENGTH}, "hints": ("Be short.",)}
    fill(store, 4, **cut)
    trainer = loop._trainer._trainer
    assert isinstance(trainer, Undone)
    trainer.undo = store
    assert loop.run_once()
    assert head_metrics(store) == {}
    assert loop.run_once()
    assert head_metrics(store)["truncated"] == 7, "one of the eight was found too stale before"
    loop.close()


def test_scores_are_logged_with_every_method(store: Store, loop: TrainLoop, fill: Fill) -> None:
    """`ScriptedTrainer` tells none, as a step on hints alone."""
    fill(store, 3, score=1, hints=("Be short.",))
    fill(store, 1, score=-1, hints=("Be short.",))
    fill(store, 1, score=None, hints=("Be short.",))
    assert loop.run_once()
    metrics = head_metrics(store)
    assert metrics["reward/mean"] == pytest.approx(1 / 3), (
        "of the three that trained and have a score; one is too stale"
    )
    assert metrics["reward/std"] == pytest.approx((8 / 9) ** 0.5)
    loop.close()
