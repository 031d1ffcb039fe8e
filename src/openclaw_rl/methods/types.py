"""The nouns of credit: what a batch is, what was measured of it, and what a method makes of that.

Frozen, slotted, keyword-only. Legend: B samples, P prompt tokens, R response tokens, N tokens of the vocabulary at one
position. Log-probabilities are natural logarithms at the temperature under which a sample was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.types import Ids, Logprobs, Mask

Divergence = Literal["reverse", "forward", "jsd"]
"""KL(student || teacher), KL(teacher || student), or their even mixture's (Jensen-Shannon)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One step of one rollout of a task that was tried several times: what group-relative credit compares."""

    task: str
    rollout: str
    step: int  # from 0
    outcome: float | None  # of the whole rollout; None: not known (a broken environment)
    step_reward: float | None = None  # of this step alone

    def __post_init__(self) -> None:
        for name, value in (("outcome", self.outcome), ("step reward", self.step_reward)):
            if value is not None and not np.isfinite(value):
                raise ValueError(
                    f"task {self.task}, rollout {self.rollout}, step {self.step}: expected a finite {name}, or None "
                    f"where it is not known; got {value}"
                )


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
    replay: bool = False  # an ancestor of the version that is being made was trained on it
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
class Support:
    """Some tokens at each position of a reply, no token twice, and their log-probabilities under one model."""

    ids: Ids  # [R, N]
    logps: NDArray[np.floating[Any]]  # [R, N]; the rest of the vocabulary is one tail

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.shape != self.logps.shape:
            raise ValueError(f"expected ids and log-probabilities [R, N], got {self.ids.shape}, {self.logps.shape}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tops:
    """The likeliest tokens at each position of one reply. Of each hint, in their order: `teachers`, `crossed`."""

    student: Support
    teachers: tuple[Support, ...]  # the teacher's own likeliest
    crossed: tuple[NDArray[np.floating[Any]], ...]  # [R, N] the teacher's log-probabilities of the student's likeliest


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the trainer measured of a batch before its step: B entries each."""

    samples: Sequence[Sample]
    student: Sequence[Logprobs]  # [R] o: the current policy under the plain prompt
    teachers: Sequence[Sequence[Logprobs]]  # of each hint [R] T: the teacher under the hinted prompt
    tops: Sequence[Tops] = ()  # empty: the method asked for none (its `top` is 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """What a method gives for one batch: one part of the loss, with its own mask and its own denominator.

    B samples, R response tokens each. A sample stands in the term where its mask has a token.
    """

    name: str  # "binary", "opd": only a label for the metrics; nothing branches on it
    weight: float
    advantages: tuple[NDArray[np.floating[Any]], ...]  # B times [R]
    masks: tuple[Mask, ...]  # B times [R]; all False where the sample is not in the term
    metrics: Mapping[str, float] = field(default_factory=dict)  # what else is worth knowing

    @property
    def samples(self) -> int:
        """How many samples stand in the term."""
        return sum(bool(mask.any()) for mask in self.masks)

    @property
    def speaks(self) -> bool:
        """It asks for some change of the policy."""
        return any(bool(np.any(a[m] != 0)) for a, m in zip(self.advantages, self.masks, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Like a `Term`, but a distribution to follow at each position instead of advantages: a divergence is the loss."""

    name: str
    weight: float
    supports: tuple[Support | None, ...]  # B; None where the sample is not in the term
    masks: tuple[Mask, ...]  # B times [R]; all False where the sample is not in the term
    divergence: Divergence
    cap: float  # of the ratio (policy being trained / policy that sampled) by which a position is weighed
    speaks: bool  # the teacher says something else than the student
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """How many samples stand in the term."""
        return sum(bool(mask.any()) for mask in self.masks)


AnyTerm = Term | Target


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimizer step left behind."""

    folder: str | None  # adapter (PEFT layout), optimizer, trainer state: complete, not yet published; None: no step
    digest: str
    metrics: Mapping[str, float]
    memory: Mapping[str, Any]
    dropped: Mapping[str, str] = field(default_factory=dict)  # turn -> why it carried no gradient


class Method(Protocol):
    """Pure credit (see `openclaw_rl.methods`)."""

    @property
    def uses_reward(self) -> bool:
        """A sample with a score carries signal."""
        ...

    @property
    def uses_hints(self) -> bool:
        """A sample with a hinted prompt carries signal: the trainer scores its teachers."""
        ...

    @property
    def top(self) -> int:
        """How many of the likeliest tokens at each position it wants to see (`Evidence.tops`); 0: none."""
        ...

    def terms(self, evidence: Evidence, memory: Mapping[str, Any]) -> Sequence[AnyTerm]:
        """The terms of the loss on these samples."""
        ...

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """The memory after these samples were trained on."""
        ...
