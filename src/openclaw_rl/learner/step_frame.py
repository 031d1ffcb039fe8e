"""The frame of a step: what the trainers that run here do before and after it, so that all of them count alike.

A trainer scores a batch and takes the step. Which samples have credit, which turns are left out and why, the averages
that a method keeps, and the counts of steps and turns are the same for each, and are here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.learner.loss.length_ema import LengthEma
from openclaw_rl.learner.loss.scored_batch import ScoredBatch
from openclaw_rl.learner.optim.optimizer import scheduled_learning_rate
from openclaw_rl.learner.staleness import no_signal_reason, stale_turns
from openclaw_rl.methods.teacher_replies import TeacherReplies, follows_teacher
from openclaw_rl.methods.token_credit import credit_by_token
from openclaw_rl.methods.types import AnyTerm, BatchLogprobs, CreditMethod, Sample, StepResult
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrainConfig

NO_ADVANTAGE = Reason(ReasonCode.NO_SIGNAL, "the batch gives no signal: every advantage is 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedBatch:
    """A scored batch with its credit. It names the sets of its samples; each is a list of their places in the batch."""

    scored: ScoredBatch
    evidence: BatchLogprobs
    """The scores as the method takes them."""
    terms: Sequence[AnyTerm]
    credited: list[int]
    """Samples that are in a term of the loss."""
    left_out: Mapping[str, Reason]
    """Turns of which no sample is in a term, each with its reason."""
    stale: int
    """Those of them that are too stale, without replays, which were trained on before."""

    @property
    def new(self) -> list[int]:
        """Credited samples of turns that were never trained on."""
        return [i for i in self.credited if not self.scored.samples[i].replay]

    @property
    def sampled(self) -> list[int]:
        """Credited samples whose tokens a policy sampled; all if the teacher sampled each of them.

        The change of the policy is measured on these: over the teacher's tokens it would be no estimate of a KL
        divergence of the policy.
        """
        by_policy = [i for i in self.credited if not self.scored.samples[i].from_teacher]
        return by_policy or self.credited

    @property
    def turns(self) -> set[str]:
        """The turns of the credited samples; one may have two."""
        return self._turns_of(self.credited)

    @property
    def new_turns(self) -> set[str]:
        return self._turns_of(self.new)

    @property
    def has_gradient(self) -> bool:
        return any(term.has_gradient for term in self.terms)

    @property
    def counts(self) -> dict[str, float]:
        """Metrics of the turns that are left out."""
        return {"dropped/stale": float(self.stale)}

    def credit(self) -> Mapping[str, Any]:
        """Return the credit of each token, by turn, for `why`."""
        return credit_by_token(self.terms, self.evidence)

    def _turns_of(self, places: Sequence[int]) -> set[str]:
        return {self.scored.samples[i].turn for i in places}


class StepFrame:
    """The method with its state, and the counts of steps and turns over all ancestors of the loaded version."""

    def __init__(self, method: CreditMethod, settings: TrainConfig, *, top: int) -> None:
        """`top`: how many of the teacher's likeliest tokens practice learns from; 0: from the sampled ones alone."""
        self._method = method
        self._settings = settings
        self._top = top
        self.method_state: Mapping[str, Any] = {}
        self.steps = 0
        self.turns_seen = 0

    def load(self, method_state: Mapping[str, Any], *, steps: int = 0, turns_seen: int = 0) -> None:
        """Continue from a version."""
        self.method_state = dict(method_state)
        self.steps = steps
        self.turns_seen = turns_seen

    def method_for(self, samples: Sequence[Sample]) -> CreditMethod:
        """Return the method, with a term on the teacher's replies if there are any."""
        if not any(follows_teacher(sample) for sample in samples):
            return self._method
        return TeacherReplies(self._method, top=self._top)

    def credit_batch(
        self,
        samples: Sequence[Sample],
        scored: ScoredBatch,
        unusable: Mapping[str, Reason],
    ) -> CreditedBatch:
        """Return the scored batch with the credit of its method.

        `samples`: the whole batch; `unusable`: why turns of it are not in `scored`. A turn with two samples is left
        out only if neither is in a term.
        """
        evidence = scored.batch_logprobs()
        terms = self.method_for(samples).loss_terms(evidence, self.method_state)
        credited = _samples_in_terms(len(scored.samples), terms)
        credited_turns = {scored.samples[i].turn for i in credited}
        left_out = {turn: reason for turn, reason in unusable.items() if turn not in credited_turns}
        new_turns = {sample.turn for sample in samples if not sample.replay}
        stale = len(stale_turns(left_out) & new_turns)
        for sample in scored.samples:
            if sample.turn not in credited_turns:
                left_out[sample.turn] = no_signal_reason(sample)
        return CreditedBatch(
            scored=scored,
            evidence=evidence,
            terms=terms,
            credited=credited,
            left_out=left_out,
            stale=stale,
        )

    def learning_rate(self) -> float:
        """Return the scheduled learning rate of the next step."""
        return scheduled_learning_rate(self._settings, steps=self.steps, samples=self.turns_seen)

    def average_length(self, batch: CreditedBatch) -> float:
        """Return the average number of tokens of a reply, before the batch."""
        return self._lengths().average_length(batch.scored.trainable_tokens(batch.credited))

    def finish_step(self, batch: CreditedBatch) -> dict[str, float]:
        """Count the step. Averages and counts take each turn once: replays change none. Returns its metrics."""
        state = self._lengths().updated_state(batch.scored.trainable_tokens(batch.new))
        new_samples = [batch.scored.samples[i] for i in batch.new]
        method = self.method_for(batch.scored.samples)
        self.method_state = method.update_state(new_samples, state)
        self.steps += 1
        self.turns_seen += len(batch.new_turns)
        return batch.counts | {"step": float(self.steps), "turns": float(len(batch.turns))}

    def no_step(
        self, batch: CreditedBatch, reason: Reason, metrics: Mapping[str, float]
    ) -> StepResult:
        """Return the result of a batch without a step: no turn of it is trained on, and nothing has changed."""
        reasons = dict(batch.left_out) | dict.fromkeys(sorted(batch.turns), reason)
        return self.unchanged(reasons, batch.counts | dict(metrics))

    def unchanged(self, reasons: Mapping[str, Reason], metrics: Mapping[str, float]) -> StepResult:
        """Return a result without a step. `reasons`: why each turn is left out."""
        return StepResult(
            folder=None, digest="", metrics=metrics, memory=self.method_state, dropped=reasons
        )

    def _lengths(self) -> LengthEma:
        return LengthEma(self.method_state, decay=self._settings.loss.length_ema_decay)


def _samples_in_terms(count: int, terms: Sequence[AnyTerm]) -> list[int]:
    """Return the numbers of those of `count` samples that have a token in a term."""
    numbers = []
    for i in range(count):
        if any(term.masks[i].any() for term in terms):
            numbers.append(i)
    return numbers
