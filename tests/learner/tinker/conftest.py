"""A Tinker trainer on the double of the SDK, and a batch for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.tinker.training_sdk import MODEL, TrainingSdk, base_logits, sequence_logprobs

from openclaw_rl.learner.tinker import training_session
from openclaw_rl.learner.tinker.trainer import TinkerTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.settings.load import from_flat
from openclaw_rl.tinker.service import TinkerService

SETTINGS = {
    "engine.backend": "tinker",
    "train.trainer": "tinker",
    "tinker.model": MODEL,
    "tinker.api_key": "tml-x",
    "gate.kind": "numbers",
    "train.lora.rank": 8,
}


class StatusError(Exception):
    """As the SDK's `APIStatusError`."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code


class RequestFailedError(Exception):
    """As the SDK's error of a call that the service took on and could not do."""

    def __init__(self, message: str, category: str) -> None:
        super().__init__(message)
        self.category = category


def make_sample(
    turn: int, reward: float | None, *, hints: int = 0, gap: float = 0.1, **more: Any
) -> Sample:
    """A turn that another policy sampled: its log-probabilities differ from the base's by about `gap`."""
    random = np.random.default_rng(turn)
    prompt, response = (
        random.integers(0, 16, n).astype(np.int32) for n in (4 + turn, 3 + 2 * turn)
    )
    whole = [*prompt[-1:].tolist(), *response.tolist()]
    now = sequence_logprobs(base_logits(), whole[:-1], whole[1:]).numpy()
    values: dict[str, Any] = {
        "turn": f"t{turn}",
        "agent": "a",
        "prompt_ids": prompt,
        "response_ids": response,
        "logprobs": np.minimum(now + gap * random.normal(size=len(now)), -1e-3).astype(np.float32),
        "mask": np.arange(len(response)) != 1,
        "temperature": 1.0,
        "version": 0,
        "reward": reward,
        "hinted_prompts": tuple(random.integers(0, 16, 6).astype(np.int32) for _ in range(hints)),
    }
    return Sample(**values | more)


BATCH = [
    make_sample(1, 1.0),
    make_sample(2, -1.0, hints=1),
    make_sample(3, None, hints=2),
    make_sample(4, -1.0),
]


@pytest.fixture
def sdk() -> TrainingSdk:
    return TrainingSdk()


Make = Callable[..., TinkerTrainer]


@pytest.fixture
def make(sdk: TrainingSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(training_session, "RETRY_SECONDS", 0.0)

    def one(**settings: Any) -> TinkerTrainer:
        config = from_flat(SETTINGS | {"home": str(tmp_path)} | settings)
        service = TinkerService(config, lambda: sdk)
        return TinkerTrainer(config, make_method(config.train), service)

    return one


def take_step(trainer: TinkerTrainer, out: Path, samples: list[Sample] = BATCH) -> StepResult:
    return trainer.step(samples, str(out))
