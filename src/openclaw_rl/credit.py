"""The nouns of credit: what a batch is, what was measured of it, and what a method makes of that.

Frozen, slotted, keyword-only. Legend: B samples, P prompt tokens, R response tokens. Log-probabilities are natural
logarithms at the temperature under which a sample was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.types import Ids, Logprobs, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One step of one rollout of a task that was tried several times: what group-relative credit compares."""

    task: str
    rollout: str
    step: int  # from 0
    outcome: float | None  # of the whole rollout; None: not known (a broken environment)
    step_reward: float | None = None  # of this step alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the trainer eats. Lengths are checked here, once."""

    turn: str
    agent: str
    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]
    logprobs: Logprobs  # [R] sampled, at `temperature` (μ)
    mask: Mask  # [R] tokens that may train
    temperature: float
    version: int
    reward: float | None  # +1, -1, or None: no binary term
    hinted_prompts: tuple[Ids, ...] = ()  # [H] each: the prompt with a hint; empty: no distillation term
    on_policy: bool = False  # sampled by the very version that is being trained from
    episode: Episode | None = None  # where it belongs among several rollouts of one task; None: a conversation

    def __post_init__(self) -> None:
        r = len(self.response_ids)
        if not (len(self.logprobs) == len(self.mask) == r) or r == 0 or len(self.prompt_ids) == 0:
            raise ValueError(
                f"turn {self.turn}: expected equal, non-zero lengths, got {len(self.prompt_ids)} prompt ids, "
                f"{r} response ids, {len(self.logprobs)} logprobs, {len(self.mask)} mask entries"
            )
        if not np.all(np.isfinite(self.logprobs)):
            raise ValueError(f"turn {self.turn}: sampled log-probabilities are not all finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the trainer measured of a batch before its step: B entries each."""

    samples: Sequence[Sample]
    student: Sequence[Logprobs]  # [R] o: the current policy under the plain prompt
    teachers: Sequence[Sequence[Logprobs]]  # of each hint [R] T: the teacher under the hinted prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What a method gives for one batch: one part of the loss, with its own mask and its own denominator.

    B samples, R response tokens each. A sample stands in the term where its mask has a token.
    """

    name: str  # "binary", "opd": only a label for the metrics; nothing branches on it
    weight: float
    advantages: tuple[NDArray[np.float32], ...]  # B times [R]
    masks: tuple[Mask, ...]  # B times [R]; all False where the sample is not in the term

    @property
    def samples(self) -> int:
        """How many samples stand in the term."""
        return sum(bool(mask.any()) for mask in self.masks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimizer step left behind."""

    folder: str | None  # adapter (PEFT layout), optimizer, trainer state: complete, not yet published; None: no step
    digest: str
    metrics: Mapping[str, float]
    memory: Mapping[str, Any]
    dropped: Mapping[str, str] = field(default_factory=dict)  # turn -> why it carried no gradient
