"""Data types of credit: the samples of a batch, their measured log-probabilities, and the terms of the loss.

Frozen, slotted, keyword-only. Legend: B samples, P prompt tokens, R response tokens, N tokens of the vocabulary at one
position. Log-probabilities are natural logarithms at the temperature at which a sample was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.reasons import Reason
from openclaw_rl.types import EpisodeStep, Ids, JudgedTurn, Logprobs, Mask, Reply

Credit = NDArray[np.float16]
"""[R] Credit of each token of a reply."""
Divergence = Literal["reverse", "forward", "jsd"]
"""KL(student || teacher), KL(teacher || student), or the Jensen-Shannon divergence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn as the trainer takes it. Raises `ValueError` for inconsistent lengths."""

    turn: str
    agent: str
    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]
    logprobs: Logprobs  # [R] μ: of the sampled tokens at sampling time, at `temperature`
    mask: Mask  # [R] tokens that may train
    temperature: float
    version: int
    reward: float | None  # +1, -1, or None: no binary term
    weight: float = 1.0  # of the reward, in (0, 1]
    common_weight: float = 1.0  # of the reward in the baseline, which all people share, from 0 to 1
    # [H] each: the prompt with a hint; empty: no distillation term.
    hinted_prompts: tuple[Ids, ...] = ()
    on_policy: bool = False  # sampled by the version that the step starts from
    replay: bool = False  # an ancestor of the new version was trained on it
    # Sampled under a prompt with a hint, not under `prompt_ids`: no importance ratio.
    from_teacher: bool = False
    # Of practice: how much more the teacher follows the hint than its prompt makes it.
    guidance: float | None = None
    episode: EpisodeStep | None = None  # its place in a group of episodes; None: a conversation

    def __post_init__(self) -> None:
        r = len(self.response_ids)
        if not (len(self.logprobs) == len(self.mask) == r) or r == 0 or len(self.prompt_ids) == 0:
            raise ValueError(
                f"turn {self.turn}: expected equal, non-zero lengths, got {len(self.prompt_ids)} prompt ids, "
                f"{r} response ids, {len(self.logprobs)} logprobs, {len(self.mask)} mask entries"
            )
        if not 0 < self.weight <= 1:
            raise ValueError(f"turn {self.turn}: expected a weight in (0, 1], got {self.weight}")
        if not 0 <= self.common_weight <= 1:
            raise ValueError(
                f"turn {self.turn}: expected a common weight in [0, 1], got {self.common_weight}"
            )
        if not np.all(np.isfinite(self.logprobs)):
            raise ValueError(f"turn {self.turn}: sampled log-probabilities are not all finite")


def make_sample(item: JudgedTurn, reply: Reply, **values: Any) -> Sample:
    """Return the sample of a turn with this reply; `values`: the other fields. Raises `ValueError` as `Sample` does."""
    request = item.exchange.request
    return Sample(
        turn=item.turn.id,
        agent=request.agent,
        prompt_ids=request.prompt_ids,
        response_ids=reply.response_ids,
        logprobs=reply.logprobs,
        mask=reply.mask,
        common_weight=item.common_weight,
        **values,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKLogprobs:
    """N distinct tokens at each position of a reply, and their log-probabilities under one model."""

    ids: Ids  # [R, N]
    logprobs: NDArray[np.floating[Any]]  # [R, N]; the rest of the vocabulary is one tail bin

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.shape != self.logprobs.shape:
            raise ValueError(
                f"expected ids and log-probabilities [R, N], got {self.ids.shape}, {self.logprobs.shape}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKScores:
    """The top tokens at each position of one reply. The tuples have one entry per hint, in their order."""

    student: TopKLogprobs
    teachers: tuple[TopKLogprobs, ...]  # the teacher's own top tokens
    # [R, N] log-probabilities of the student's.
    teacher_on_student_topk: tuple[NDArray[np.floating[Any]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLogprobs:
    """Log-probabilities of a batch, computed before its step. B entries each."""

    samples: Sequence[Sample]
    student_logprobs: Sequence[Logprobs]  # [R] o: the current policy under the plain prompt
    # [R] T for each hint: the teacher under the hinted prompt.
    teacher_logprobs: Sequence[Sequence[Logprobs]]
    topk_scores: Sequence[TopKScores] = ()  # empty if the method needs none (its `topk_size` is 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """One part of the loss of a batch, with its own mask and its own denominator.

    B samples, R response tokens each. A sample is in the term if its mask has a token.
    """

    name: str  # "binary", "opd": only a label for the metrics; no code branches on it
    weight: float
    masks: tuple[Mask, ...]  # B times [R]; all False where the sample is not in the term
    metrics: Mapping[str, float] = field(default_factory=dict)  # additional metrics

    @property
    def sample_count(self) -> int:
        """Number of samples in the term."""
        return sum(bool(mask.any()) for mask in self.masks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradientTerm(LossTerm):
    """A term with one advantage per token."""

    advantages: tuple[NDArray[np.floating[Any]], ...]  # B times [R]

    @property
    def has_gradient(self) -> bool:
        """True if some advantage under the mask is not 0."""
        return any(
            bool(np.any(a[m] != 0)) for a, m in zip(self.advantages, self.masks, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillTerm(LossTerm):
    """A term with a divergence from target distributions at each position."""

    targets: tuple[TopKLogprobs | None, ...]  # B; None where the sample is not in the term
    divergence: Divergence
    # Upper bound of the importance ratio (trained / sampling policy) that weights a position.
    ratio_clip: float
    has_gradient: bool  # the teacher differs from the student
    # The mean over the replies of their means per token, so that long ones do not weigh more.
    per_reply: bool = False


AnyTerm = PolicyGradientTerm | DistillTerm


class LessonGap(NamedTuple):
    """How far a policy is from what a lesson asks for, over the trainable tokens of one reply, in nats.

    `missing` is 0 for the teacher, and equal to `effect` for a policy that the lesson has not changed.
    """

    missing: float
    effect: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one optimizer step."""

    # Adapter (PEFT layout), optimizer and trainer state, not yet published; None: no step was taken.
    folder: str | None
    digest: str  # of the weights
    # Name -> sha256 of each file of the folder.
    files: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float]
    memory: Mapping[str, Any]
    dropped: Mapping[str, Reason] = field(default_factory=dict)  # turn id -> why it had no gradient
    # Turn id of practice -> before the step.
    lesson_gaps: Mapping[str, LessonGap] = field(default_factory=dict)
    credit: Mapping[str, Credit] = field(default_factory=dict)  # turn id -> [R], see `token_credit`


class CreditMethod(Protocol):
    """Base class of the methods, which `registry.py` lists. Pure."""

    uses_reward: bool = False  # a sample with a score has a signal
    # A sample with a hinted prompt has a signal; the trainer then scores its teachers.
    uses_hints: bool = False
    # A sample of an episode with a known reward has a signal; conversations have none.
    uses_episodes: bool = False
    # Number of top tokens at each position in `BatchLogprobs.topk_scores`; 0: none.
    topk_size: int = 0

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> Sequence[AnyTerm]:
        """Return the terms of the loss on these samples."""

    def no_credit_reason(self, episode: EpisodeStep) -> Reason | None:
        """Return why the rewards of a group give this turn no signal; None if they do. For `uses_episodes`."""
        return None

    def update_state(
        self, samples: Sequence[Sample], method_state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the method state after training on these samples; unchanged unless the method has one."""
        return dict(method_state)
