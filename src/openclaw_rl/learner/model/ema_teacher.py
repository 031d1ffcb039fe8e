"""EMA teacher: an exponential moving average of the policy as teacher, with a bound on its distance from the base.

A teacher that follows its student can drift away together with it: a policy over four tokens collapses to one of them
(`tests/learner/loss/test_distillation.py`). The distance to the frozen base is therefore measured after each step. An
update that would exceed the bound, and increase the distance, is not applied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from safetensors.torch import load_file

from openclaw_rl.common.policy_digest import EMA_TEACHER_FILE
from openclaw_rl.errors import ModelError
from openclaw_rl.learner.model import state_files
from openclaw_rl.learner.model.full import swapped_data
from openclaw_rl.learner.optim.master_weights import float32_copy
from openclaw_rl.learner.resident_states import copy_tensors

log = logging.getLogger(__name__)


class EmaTeacher:
    """avg <- avg + rate (theta - avg) after each step (SDPO, arXiv:2601.20802), of the trained weights, in float32."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], *, rate: float, bound: float
    ) -> None:
        """`parameters`: by name, the same objects throughout. `bound`: KL(base || average) in nats per token."""
        self._parameters = parameters
        self._rate = rate
        self._bound = bound
        self.start()
        log.warning(
            "train.distill.teacher ema: the teacher follows its student, and both can drift. It is not updated where "
            "it would be more than %g nats per token from the base (train.distill.ema_max_kl; teacher/moved in the "
            "metrics)",
            bound,
        )

    def start(self) -> None:
        """Start the average at the current weights."""
        self._tensors = {name: float32_copy(p) for name, p in self._parameters.items()}

    def swapped_in(self) -> AbstractContextManager[None]:
        """Context in which forward passes use the average."""
        return swapped_data(self._parameters, self._tensors)

    def follow_policy(self, distance: Callable[[], float]) -> dict[str, float]:
        """Move the average towards the current weights if the bound allows it. Return metrics.

        `distance` returns KL(base || average) in nats per token for the average at the time of the call.
        """
        before = self._tensors
        self._tensors = {
            n: before[n].lerp(float32_copy(p), self._rate) for n, p in self._parameters.items()
        }
        after = distance()
        if not after <= self._bound:
            moved = self._tensors
            self._tensors = before
            unmoved = distance()
            if not after < unmoved:
                return {"teacher/kl": unmoved, "teacher/moved": 0.0}
            # Outside of the bound, but moving back towards the base.
            self._tensors = moved
        return {"teacher/kl": after, "teacher/moved": 1.0}

    def write(self, folder: Path) -> None:
        """Write the average next to the policy's weights."""
        state_files.write_tensors(folder / EMA_TEACHER_FILE, self._tensors)

    def copy_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the average."""
        return copy_tensors(self._tensors)

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore what `copy_state` returned."""
        self._tensors = {name: state[name].to(tensor) for name, tensor in self._tensors.items()}

    def read(self, folder: Path) -> None:
        """Load the average; without a file, start at the policy's weights. Raises `ModelError` if it does not match."""
        self.start()
        file = folder / EMA_TEACHER_FILE
        if not file.exists():
            log.warning("%s has no moving average: it starts at the weights of this policy", folder)
            return
        loaded = load_file(file)
        if _shapes(loaded) != _shapes(self._tensors):
            raise ModelError(
                f"{file}: the moving average does not match the trained weights. Set "
                "train.finetune and train.lora back, or start from the base in a new home"
            )
        self._tensors = {name: tensor.to(self._tensors[name]) for name, tensor in loaded.items()}


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
