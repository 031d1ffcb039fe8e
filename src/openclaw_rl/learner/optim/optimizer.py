"""AdamW over the trained weights, with gradient clipping and a way to take back half of a step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.errors import ModelError
from openclaw_rl.learner.model import state_files
from openclaw_rl.learner.optim.master_weights import MasterWeights, PinnedSnapshot
from openclaw_rl.learner.resident_states import copy_tensors
from openclaw_rl.settings.load import TrainConfig

WeightSnapshot = Mapping[str, torch.Tensor]
"""Weights at one point in time, by name."""
_MASTER_PREFIX = "master"


class Optimizer:
    """AdamW for a sequence of policies. `parameters`: by name, in a fixed order."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], train: TrainConfig) -> None:
        self._masters = MasterWeights(parameters, offload=train.optimizer.offload)
        self._train = train
        self._on_gpu = all(m.device.type == "cuda" for m in self._masters.tensors.values())
        # A GPU that trains a whole model has no memory for a second copy of it.
        self._pinned_snapshot = (
            PinnedSnapshot(self._masters.tensors)
            if self._on_gpu and train.finetune == "full"
            else None
        )
        # Steps taken since this object was created.
        self.steps_taken = 0
        self.start()

    def start(self) -> None:
        """Reset the optimizer state and take the current model weights as master weights."""
        self._masters.copy_from_model()
        self.zero_grad()
        self._adam = torch.optim.AdamW(
            self._masters.tensors.values(),
            lr=self._train.optimizer.learning_rate,
            betas=(self._train.optimizer.adam_beta1, self._train.optimizer.adam_beta2),
            weight_decay=self._train.optimizer.weight_decay,
            foreach=False,
            # One kernel for hundreds of matrices.
            fused=self._on_gpu,
        )

    @property
    def master_tensors(self) -> Collection[torch.Tensor]:
        """Master weights in a fixed order; their `grad` holds the gradients."""
        return self._masters.tensors.values()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self._masters.clear_gradients()

    def step(self, rate: float, *, wanted: bool) -> float:
        """Take one step at learning rate `rate`. Return the gradient norm before clipping.

        No step is taken unless `wanted`, or if the norm is 0 or not finite. With a norm of 0, the moments alone would
        move the weights.
        """
        for group in self._adam.param_groups:
            group["lr"] = rate
        clip = self._train.optimizer.clip_grad
        norm = torch.nn.utils.clip_grad_norm_(self.master_tensors, clip, foreach=self._on_gpu)
        norm_value = norm.item()
        if wanted and 0 < norm_value < math.inf:
            self.steps_taken += 1
            if self._pinned_snapshot is not None:
                self._pinned_snapshot.wait_for_copy()
            self._adam.step()
            self._masters.copy_to_model()
        return norm_value

    def snapshot(self) -> WeightSnapshot:
        """Return a copy of the current weights; the next call may overwrite it."""
        if self._pinned_snapshot is not None:
            return self._pinned_snapshot.start_copy()
        return {name: master.detach().clone() for name, master in self._masters.tensors.items()}

    @torch.no_grad()
    def step_back_half(self, snapshot: WeightSnapshot) -> None:
        """Move the weights half of the way back to `snapshot`."""
        for name, master in self._masters.tensors.items():
            master.copy_(torch.lerp(snapshot[name].to(master.device), master, 0.5))
        self._masters.copy_to_model()

    def write(self, folder: Path) -> None:
        """Write the moments as `<moment>/<weight>`, and the master weights with more precision than the model's."""
        state_files.write_tensors(folder / OPTIMIZER_FILE, dict(self._state_tensors()))

    def _state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, master in self._masters.tensors.items():
            for moment, value in self._adam.state.get(master, {}).items():
                yield f"{moment}/{name}", torch.as_tensor(value)
            if name in self._masters.higher_precision:
                yield f"{_MASTER_PREFIX}/{name}", master

    def read(self, folder: Path) -> bool:
        """Restore the state. Return False if the folder no longer has one (old states are pruned)."""
        file = folder / OPTIMIZER_FILE
        if not file.exists():
            return False
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 - not a mapping
                self._restore_tensor(file, key, stored.get_tensor(key))
        return True

    def copy_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of what `write` writes."""
        return copy_tensors(dict(self._state_tensors()))

    def restore(self, state: WeightSnapshot, file: Path) -> None:
        """Restore what `copy_state` returned. `file`: to which it was written."""
        for key, value in state.items():
            # A step changes the tensors in place.
            self._restore_tensor(file, key, value.clone())

    def _restore_tensor(self, file: Path, key: str, value: torch.Tensor) -> None:
        moment, _, name = key.partition("/")
        if name not in self._masters.tensors:
            raise ModelError(
                f"{file}: contains a moment of {name!r}, which is not trained. Set train.finetune and train.lora back, "
                "or start from the base in a new home"
            )
        master = self._masters.tensors[name]
        if moment == _MASTER_PREFIX:
            with torch.no_grad():
                master.copy_(value)
        else:
            # Fused AdamW keeps its step counter on the GPU.
            counts = moment == "step" and not self._on_gpu
            self._adam.state[master][moment] = (
                value if counts else value.to(master.device, master.dtype)
            )


def scheduled_learning_rate(train: TrainConfig, *, steps: int, samples: int) -> float:
    """Return the learning rate of the step after `steps` steps on `samples` turns. Pure, so there is no state to save.

    Warm-up is linear over `warmup_steps` steps or `warmup_samples` turns, whichever lasts longer. The first step has a
    learning rate above zero.
    """
    optimizer = train.optimizer
    share = 1.0
    if optimizer.warmup_steps:
        share = min(share, (steps + 1) / optimizer.warmup_steps)
    if optimizer.warmup_samples:
        share = min(share, (samples + 1) / optimizer.warmup_samples)
    return optimizer.learning_rate * share
