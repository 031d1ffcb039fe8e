"""A scripted trainer that writes the same files as the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl.common.policy_digest import OPTIMIZER_FILE, hash_folder
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.testing import ScriptedTrainer


class StateTrainer(ScriptedTrainer):
    """Writes an optimizer and a trainer state; records the folders that it loads."""

    def __init__(self, metrics: Mapping[str, float] | None = None) -> None:
        super().__init__(lambda samples: metrics or {})
        self.loaded: list[str | None] = []

    def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
        self.loaded.append(folder)
        super().load(folder=folder, method_state=method_state)

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        result = super().step(samples, out)
        for name in (OPTIMIZER_FILE, "trainer.json"):
            (Path(out) / name).write_bytes(f"{name} of step {self.steps}".encode())
        return replace(result, files=hash_folder(out)[1])
