"""A slow average of the policy as the teacher: a choice with a bound, for it can run away with its student.

A teacher that follows its student moves the goal by what the student learns: on a policy with four tokens both end at
one of them (`tests/learner/loss/test_distillation.py`). So its distance to the frozen base is measured after each step,
and a move that would take it beyond the bound, and further away than it was, is not made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open

from openclaw_rl.errors import ModelError
from openclaw_rl.learner import state_files

log = logging.getLogger(__name__)
FILE = "average.state"
"""In the layout of safetensors; see `checkpoint.OPTIMIZER_FILE`."""

State = dict[str, torch.Tensor]


class Average:
    """avg <- avg + rate (theta - avg) after each step (SDPO, arXiv:2601.20802), of the trained weights, in float32."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], *, rate: float, bound: float) -> None:
        """`parameters`: by name; the same objects for good. `bound`: in nats per token, KL(base || average)."""
        self._parameters, self._rate, self._bound = parameters, rate, bound
        self.start()
        log.warning(
            "train.reference average: the teacher follows its student, and can run away with it. It stands still where "
            "it would be more than %g nats per token from the base (train.average_bound; teacher/moved in the metrics)",
            bound,
        )

    def start(self) -> None:
        """From the weights as they are now."""
        self._tensors: State = {name: _wide(p) for name, p in self._parameters.items()}

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Within, a forward pass is the average's. Weights change places and not their contents: graphs stay whole."""
        own = {name: parameter.data for name, parameter in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                parameter.data = self._tensors[name].to(parameter.dtype)
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = own[name]

    def follow(self, distance: Callable[[], float]) -> dict[str, float]:
        """Move towards the weights as they are now, if the bound allows it; what is worth knowing of it.

        `distance`: nats per token from the base to the average, as it stands when called.
        """
        before = self._tensors
        self._tensors = {n: before[n].lerp(_wide(p), self._rate) for n, p in self._parameters.items()}
        after = distance()
        if after <= self._bound:
            return {"teacher/kl": after, "teacher/moved": 1.0}
        further, self._tensors = self._tensors, before
        stayed = distance()
        if after < stayed:  # it comes back
            self._tensors = further
            return {"teacher/kl": after, "teacher/moved": 1.0}
        return {"teacher/kl": stayed, "teacher/moved": 0.0}

    def write(self, folder: Path) -> None:
        """Beside the policy's weights."""
        state_files.write_tensors(folder / FILE, self._tensors)

    def read(self, folder: Path) -> None:
        """Where it stood. A policy that was trained without one: from its own weights. Raises `ModelError`."""
        self.start()
        if not (folder / FILE).exists():
            log.warning("%s holds no slow average: it starts at this policy's own weights", folder)
            return
        with safe_open(folder / FILE, framework="pt") as stored:
            theirs = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no mapping
        if {n: t.shape for n, t in theirs.items()} != {n: t.shape for n, t in self._tensors.items()}:
            raise ModelError(
                f"{folder / FILE}: the slow average is not of the weights that are trained. Set train.weights and "
                "train.lora back, or remove the file: the average then starts at the policy"
            )
        self._tensors = {name: tensor.to(self._tensors[name]) for name, tensor in theirs.items()}


def _wide(parameter: torch.nn.Parameter) -> torch.Tensor:
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return parameter.detach().to(dtype, copy=True)
