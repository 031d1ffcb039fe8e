"""AdamW over the trained weights: one bounded step, and the way back from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from openclaw_rl.config import TrainConfig
from openclaw_rl.trainers import checkpoint

Standing = Mapping[str, torch.Tensor]
"""The weights at some moment, by name."""


class Optimizer:
    """Of one line of policies. `parameters`: by name, in a fixed order."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], train: TrainConfig) -> None:
        self._parameters, self._clip = parameters, train.clip_grad
        self._adam = torch.optim.AdamW(
            parameters.values(),
            lr=train.learning_rate,
            betas=train.adam_betas,
            weight_decay=train.weight_decay,
            foreach=False,
        )

    def zero(self) -> None:
        """Forget the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def step(self, rate: float, *, sound: bool) -> float:
        """One step at this learning rate; returns the gradient's norm before it was clipped.

        None is taken when the norm is not finite, or the loss was not (`sound`).
        """
        for group in self._adam.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._clip, foreach=False)
        if sound and bool(torch.isfinite(norm)):
            self._adam.step()
        return norm.item()

    def standing(self) -> Standing:
        """The weights as they are."""
        return {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def halve(self, standing: Standing) -> None:
        """Go half of the way back to `standing`."""
        for name, parameter in self._parameters.items():
            parameter.copy_(torch.lerp(standing[name], parameter, 0.5))

    def to_bytes(self) -> bytes:
        """The moments."""
        return checkpoint.optimizer_bytes(self._adam, self._parameters)

    def read(self, folder: Path) -> bool:
        """Put the moments back. False when the folder no longer holds them."""
        return checkpoint.read_optimizer(self._adam, self._parameters, folder)
