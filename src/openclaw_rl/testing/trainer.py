"""A trainer with scripted steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.common.policy_digest import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    digest_of_folder,
    hash_folder,
)
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.types import Logprobs


class ScriptedTrainer:
    """`protocols.Trainer` without a model: counts its steps and writes a small, real policy folder.

    `outcome` returns extra metrics of a step, or None for a batch without a step; it may also raise. `gain`: how much
    a step adds to the log-probability of each token of a sample.
    """

    computes_here = True

    def __init__(
        self,
        outcome: Callable[[Sequence[Sample]], Mapping[str, float] | None] = lambda samples: {},
        gain: Callable[[Sample], float] = lambda sample: 0.0,
    ) -> None:
        self.outcome = outcome
        self.gain = gain
        self.steps = 0
        self.folder: str | None = None
        self.memory: Mapping[str, Any] = {}
        self.batches: list[Sequence[Sample]] = []

    def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
        """See `protocols.Trainer.load`."""
        self.folder = folder
        self.memory = dict(method_state)
        self.steps = int(method_state.get("steps", 0))

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """See `protocols.Trainer.step`."""
        self.batches.append(tuple(samples))
        metrics = self.outcome(samples)
        if metrics is None:
            dropped = {
                s.turn: Reason(ReasonCode.NO_SIGNAL, "the script has nothing to say")
                for s in samples
            }
            return StepResult(
                folder=None, digest="", metrics={}, memory=self.memory, dropped=dropped
            )
        self.steps += 1
        self.memory = dict(self.memory) | {"steps": self.steps}
        write_adapter(out, weight=float(self.steps))
        self.folder = out
        default_metrics = {
            "loss/total": 0.1,
            "kl": 0.0,
            "kl/step": 0.0,
            "gradient/norm": 1.0,
            "turns": float(len(samples)),
            "step": float(self.steps),
        }
        digest, files = hash_folder(out)
        metrics = default_metrics | dict(metrics)
        return StepResult(
            folder=out, digest=digest, files=files, metrics=metrics, memory=self.memory
        )

    def score(self, samples: Sequence[Sample]) -> list[Logprobs]:
        """See `protocols.Trainer.score`. Each step adds `gain(sample)` to the log-probabilities of sampling time."""
        return [sample.logprobs + np.float32(self.steps * self.gain(sample)) for sample in samples]


def write_adapter(folder: str | Path, *, weight: float = 0.0) -> str:
    """Write a PEFT adapter folder with one pair of 1x1 matrices, which fits no model; return its digest."""
    if not math.isfinite(weight):
        raise ValueError(f"weight: expected a finite number, got {weight}")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["nothing"]}
    (path / ADAPTER_CONFIG).write_text(json.dumps(settings))
    names = [f"base_model.model.nothing.lora_{side}.weight" for side in "AB"]
    header = {
        n: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * i, 4 * i + 4]}
        for i, n in enumerate(names)
    }
    raw = json.dumps(header).encode()
    values = np.full(2, weight, dtype="<f4").tobytes()
    (path / ADAPTER_WEIGHTS).write_bytes(len(raw).to_bytes(8, "little") + raw + values)
    return digest_of_folder(path)
