"""A stream of what makes peers collapse: junk tokens, wrong log-probabilities, equal rewards, rewards that flip.

Whatever comes, a step stays in its trust region, the policy stays near its base, and there is no step on nothing.
Without the region and the pull to the base three of the four streams end two to seven times as far away.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.trainers.conftest import save_tiny

from openclaw_rl import methods
from openclaw_rl.config import TrainConfig
from openclaw_rl.credit import Sample
from openclaw_rl.train.gate import refusal
from openclaw_rl.trainers.local import LocalTrainer
from openclaw_rl.trainers.pack import Row

V, STEPS = 64, 40
Reward = Callable[[np.random.Generator], float | None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("base"), vocabulary=V)


def samples(trainer: LocalTrainer, rng: np.random.Generator, reward: Reward, *, junk: bool, off: float) -> list[Sample]:
    """Eight turns, of random words or one token over and over; `off`: nats that their log-probabilities are wrong."""
    out = []
    for n in range(8):
        prompt, size = rng.integers(0, V, 6).astype(np.int32), int(rng.integers(4, 12))
        response = np.full(size, rng.integers(V)) if junk else rng.integers(0, V, size)
        row = Row(prompt_ids=prompt, response_ids=response.astype(np.int32), temperature=1.0)
        mu = (
            trainer.logprobs([row])[0].numpy() + rng.normal(0, off, size) if off else trainer.logprobs([row])[0].numpy()
        )
        out.append(
            Sample(
                turn=f"t{n}", agent="a", prompt_ids=prompt, response_ids=row.response_ids,
                logprobs=mu.astype(np.float32), mask=np.ones(size, np.bool_), temperature=1.0, version=0,
                reward=reward(rng),
            )
        )  # fmt: skip
    return out


STREAMS: dict[str, tuple[Reward, bool, float]] = {
    "junk that is praised": (lambda rng: 1.0, True, 0.0),
    "rewards that mean nothing": (lambda rng: float(rng.choice([-1.0, 1.0])), False, 0.0),
    "everything is bad": (lambda rng: -1.0, False, 0.0),
    "an engine whose log-probabilities are off": (lambda rng: float(rng.choice([-1.0, 1.0])), False, 0.4),
}


@pytest.mark.parametrize("name", STREAMS)
def test_it_stays_bounded(base: str, tmp_path: Path, name: str) -> None:
    reward, junk, off = STREAMS[name]
    rng, train = np.random.default_rng(0), TrainConfig(learning_rate=0.05)  # thirty times the default
    method = methods.make("binary", decay=0.95, shrink=8.0, clip=1.0, w_binary=1.0, w_opd=1.0)
    trainer = LocalTrainer(base, method, train)
    first = last = None
    for step in range(STEPS):
        result = trainer.step(samples(trainer, rng, reward, junk=junk, off=off), str(tmp_path / f"{step}"))
        if result.folder is None:
            continue  # too stale, all of it: said turn by turn
        last = dict(result.metrics)
        first = first or last
        assert all(np.isfinite(v) for v in last.values())
        assert last["kl/step"] <= train.max_step_kl
        assert refusal(last, grad_norm=train.gate_grad_norm, kl=train.gate_kl) is None
    assert first is not None
    assert last is not None
    assert last["kl"] < 0.13, f"nats per token from the base: {last['kl']:.2f}"
    assert last["entropy"] > 0.5 * first["entropy"], f"{first['entropy']:.2f} -> {last['entropy']:.2f}"


def test_there_is_no_step_on_nothing(base: str, tmp_path: Path) -> None:
    rng, train = np.random.default_rng(0), TrainConfig()
    method = methods.make("binary", decay=0.95, shrink=8.0, clip=1.0, w_binary=1.0, w_opd=1.0)
    trainer = LocalTrainer(base, method, train)
    before = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    for stream in (
        samples(trainer, rng, lambda rng: None, junk=False, off=0.0),  # cut at the limit, no verdict: no binary term
        samples(trainer, rng, lambda rng: 1.0, junk=False, off=5.0),  # the engine's numbers are of another policy
    ):
        result = trainer.step(stream, str(tmp_path / "out"))
        assert result.folder is None
        assert set(result.dropped) == {s.turn for s in stream}
    assert torch.equal(before, torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
