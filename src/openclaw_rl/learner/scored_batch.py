"""What is known of a batch before its step: the policy, the frozen base and its teachers, on the batch's own tokens.

Legend: B samples, R response tokens of one sample, N likeliest tokens at each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from openclaw_rl.learner.forward.lm_head import Picked, Read
from openclaw_rl.learner.forward.packing import Row
from openclaw_rl.methods.types import Evidence, Sample, Support, Tops


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The step's own pass, where it also stands for "before the step"."""

    read: Read
    logp: list[torch.Tensor]  # of each row [R], with its graph

    def of(self, rows: Sequence[int]) -> Live:
        """Some of the rows, in that order."""
        return Live(read=self.read.of(rows), logp=[self.logp[i] for i in rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """B entries each."""

    samples: list[Sample]
    rows: list[Row]
    student: list[torch.Tensor]  # [R] o: the current policy, before the step
    compared: list[torch.Tensor]  # [R] o at the teachers' temperature
    entropy: list[torch.Tensor]  # [R] nats
    base: list[torch.Tensor]  # [R] the base, plain prompt
    teachers: list[list[torch.Tensor]]  # of each hint [R]: the teacher, hinted prompt
    tops: list[Tops]  # empty: not asked for
    live: Live | None = None

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
            student=[o.numpy() for o in self.compared],
            teachers=[[t.numpy() for t in of] for of in self.teachers],
            tops=self.tops,
        )


def check_ids(samples: Sequence[Sample], vocabulary: int) -> None:
    """Raises `ValueError` for a token that the model does not have: on a GPU it would end more than this step."""
    for s in samples:
        ids = np.concatenate([s.prompt_ids, s.response_ids, *s.hinted_prompts])
        if ids.min() < 0 or ids.max() >= vocabulary:
            wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
            raise ValueError(f"turn {s.turn}: expected tokens from 0 to {vocabulary - 1}, got {wrong}")


def tops_of(student: Picked, teachers: Sequence[Picked]) -> Tops:
    """`student`: a reply's tokens, then the likeliest; `teachers`: its tokens, those same likeliest, then their own."""
    n = student.ids_KN.shape[1]
    return Tops(
        student=_support(student, 1, n),
        teachers=tuple(_support(teacher, n, 2 * n - 1) for teacher in teachers),
        crossed=tuple(teacher.logps_KN[:, 1:n].numpy() for teacher in teachers),
    )


def _support(picked: Picked, start: int, end: int) -> Support:
    ids_RN = picked.ids_KN[:, start:end].numpy().astype(np.int32)
    return Support(ids=ids_RN, logps=picked.logps_KN[:, start:end].numpy())


def row_of(sample: Sample, *, times: float = 1.0) -> Row:
    """The sample under its plain prompt, at so many times its temperature."""
    return Row(prompt_ids=sample.prompt_ids, response_ids=sample.response_ids, temperature=sample.temperature * times)


def hinted(samples: Sequence[Sample], *, times: float = 1.0) -> list[tuple[int, Row]]:
    """(which sample, the row of its teacher) for each hint."""
    return [
        (i, Row(prompt_ids=prompt, response_ids=s.response_ids, temperature=s.temperature * times))
        for i, s in enumerate(samples)
        for prompt in s.hinted_prompts
    ]
