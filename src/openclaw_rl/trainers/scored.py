"""What is known of a batch before its step: the policy, the frozen base and its teachers, on the batch's own tokens.

Legend: B samples, R response tokens of one sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from openclaw_rl.credit import Evidence, Sample
from openclaw_rl.trainers.pack import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """B entries each."""

    samples: list[Sample]
    rows: list[Row]
    student: list[torch.Tensor]  # [R] o: the current policy, before the step
    entropy: list[torch.Tensor]  # [R] nats
    base: list[torch.Tensor]  # [R] adapter off, plain prompt
    teachers: list[list[torch.Tensor]]  # of each hint [R]: adapter off, hinted prompt
    live: list[torch.Tensor] | None = None  # [R] `student` with its graph, when one forward pass was enough for all

    def mask(self, i: int) -> torch.Tensor:
        """[R] bool."""
        return torch.from_numpy(self.samples[i].mask.astype(bool))

    def mu(self, i: int) -> torch.Tensor:
        """[R] sampled log-probabilities."""
        return torch.from_numpy(self.samples[i].logprobs.astype("float32"))

    def tokens(self, members: Sequence[int]) -> list[int]:
        """How many tokens of each may train."""
        return [int(self.samples[i].mask.sum()) for i in members]

    def evidence(self) -> Evidence:
        """For the method."""
        return Evidence(
            samples=self.samples,
            student=[o.numpy() for o in self.student],
            teachers=[[t.numpy() for t in of] for of in self.teachers],
        )


def row_of(sample: Sample) -> Row:
    """The sample under its plain prompt."""
    return Row(prompt_ids=sample.prompt_ids, response_ids=sample.response_ids, temperature=sample.temperature)


def hinted(samples: Sequence[Sample]) -> list[tuple[int, Row]]:
    """(which sample, the row of its teacher) for each hint."""
    return [
        (i, Row(prompt_ids=prompt, response_ids=s.response_ids, temperature=s.temperature))
        for i, s in enumerate(samples)
        for prompt in s.hinted_prompts
    ]


def fresh_enough(
    samples: Sequence[Sample], student: Sequence[torch.Tensor], max_gap: float
) -> tuple[list[int], Mapping[str, str]]:
    """Which samples are, and of the others why not (turn -> words for a person)."""
    kept, dropped = [], {}
    for i, sample in enumerate(samples):
        gap = _gap(sample, student[i].numpy())
        if gap <= max_gap:
            kept.append(i)
        else:
            dropped[sample.turn] = (
                f"too stale: mean |log ratio| {gap:.2f} between version {sample.version} that wrote it and the "
                f"policy being trained, above train.max_gap {max_gap:g}"
            )
    return kept, dropped


def _gap(sample: Sample, student: np.ndarray[Any, Any]) -> float:
    """Mean |log rho| over the tokens that may train. Raises `ValueError` when the policy itself is broken."""
    if not np.all(np.isfinite(student)):
        raise ValueError(
            f"turn {sample.turn}: expected finite log-probabilities, got {student}. The policy's weights are broken: "
            "roll back to an earlier version."
        )
    return float(np.abs(student - sample.logprobs)[sample.mask].mean()) if sample.mask.any() else 0.0
