"""Each setting of the training loop changes what the loop does: on the real store, with a scripted trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.policy_digest import OPTIMIZER_FILE, hash_folder
from openclaw_rl.common.steady_clock import boot_seconds
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.lease_keeper import TRAINER_LEASE
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

REPLAY = {"batch.max_uses": 2}
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "train.batch.min_turns": (12, {}),
    "train.batch.max_turns": (5, {}),
    "train.batch.gradient_accumulation_steps": (3, {}),
    "train.batch.max_wait": (0.001, {"batch.min_turns": 12}),
    "train.batch.max_uses": (2, {}),
    "train.batch.replay_ratio": (0.2, REPLAY),
    "train.max_steps": (2, {}),
    "train.safety.max_staleness": (1, {}),
    "train.safety.gate_grad_norm": (0.5, {}),
    "train.safety.gate_kl": (0.1, {}),
    "train.safety.gate_entropy": (0.9, {}),
    "train.safety.lease_ttl": (500.0, {}),
    "train.checkpoint.keep": (2, {}),
    "train.checkpoint.keep_versions": (2, {}),
    "train.checkpoint.keep_days": (0, {"checkpoint.keep_versions": 2}),
}
"""Setting -> (another value, what is set beside it)."""


class StatefulTrainer(ScriptedTrainer):
    """Writes an optimizer state, as a trainer does."""

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        result = super().step(samples, out)
        (Path(out) / OPTIMIZER_FILE).write_bytes(b"state")
        return replace(result, files=hash_folder(out)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the loop did."""

    batches: list[int]  # turns of each
    states: list[str]  # of the policy versions
    optimizer_states: int
    kept_versions: list[int]
    can_be_taken_over: bool  # by another trainer, if this one is silent for 100 seconds


@pytest.fixture
def run_loop(
    renderer: Renderer, fill: Callable[..., list[str]], tmp_path: Path
) -> Callable[[dict[str, Any]], Result]:
    """Run the loop over a store that gets ten turns, and then four turns three times."""

    def run(given: dict[str, Any]) -> Result:
        train = train_settings(given)
        home = tmp_path / str(len(list(tmp_path.iterdir())))
        home.mkdir()
        builder = SampleBuilder(
            renderer=renderer,
            transient=EphemeralMatcher([]),
            signal=make_method(train),
            max_staleness=train.safety.max_staleness,
        )
        entropy = {"entropy/before": 0.4, "entropy/after": 0.3, "entropy/teacher": 0.4}
        trainer = StatefulTrainer(lambda samples: {"kl": 0.2, **entropy})
        with Store.open(home / "store.db") as store:
            with store.write() as conn:
                policies.ensure_root(conn, base="b", identity="i" * 64, at=1.0)
            loop = TrainLoop(store, trainer, builder, train, home / "policies")
            for count in (10, 4, 4, 4):
                fill(store, count, at=time.time() - 1)
                for _ in range(3):
                    loop.run_once()
            with store.read() as conn:
                versions = policies.list_all(conn)
            with store.write() as conn:
                taken_over = leases.acquire(
                    conn, TRAINER_LEASE, "another", 1.0, boot_seconds() + 100
                )
            loop.close()
        return Result(
            batches=[len(batch) for batch in trainer.batches],
            states=[policy.state.value for policy in versions],
            kept_versions=[
                policy.version for policy in versions if not policies.is_removed(policy)
            ],
            optimizer_states=len(list(home.rglob(OPTIMIZER_FILE))),
            can_be_taken_over=taken_over is not None,
        )

    return run


def test_the_debug_log_names_the_turns_of_a_batch(
    run_loop: Callable[[dict[str, Any]], Result], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="openclaw_rl.train")
    run_loop({"max_steps": 1})
    assert "batch for version 1: ['chatcmpl-" in caplog.text


def test_only_listed_settings_change_the_loop(run_loop: Callable[[dict[str, Any]], Result]) -> None:
    """Without this, a difference would say nothing."""
    assert run_loop({"optimizer.learning_rate": 1e-3}) == run_loop({})
    assert run_loop(REPLAY) == run_loop(REPLAY)


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_changes_the_loop(key: str, run_loop: Callable[[dict[str, Any]], Result]) -> None:
    value, beside = CHANGES[key]
    assert run_loop(beside) != run_loop(beside | {key.removeprefix("train."): value})
