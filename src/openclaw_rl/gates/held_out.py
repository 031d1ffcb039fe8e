"""Evidence from held-out turns: the person's newest judged ones outside of the batch. No reply is generated for it.

Does the candidate make liked replies likelier, and disliked ones less likely, than the head? Does a step on its batch
alone? And of the batch: are the praised replies such as the head gives, and do its verdicts agree with earlier ones?
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np

from openclaw_rl.errors import ModelError, PluginError
from openclaw_rl.gates.evidence import (
    MIN_COUNT,
    Evidence,
    disagreement_reason,
    junk_distance,
    junk_reason,
    likelihood_difference,
    outlier_distance,
    outlier_reason,
    verdict_agreement,
)
from openclaw_rl.methods.types import Sample, make_sample
from openclaw_rl.reasons import Reason
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.types import JudgedTurn, Logprobs, Policy

log = logging.getLogger(__name__)
CANDIDATE_WORDS = "held-out turns: liked replies became less likely, or disliked ones likelier"
LIKED_WORDS = "held-out replies that were liked: they became less likely"
CONFIRMING_TURNS = 4
"""Newest judged turns of other batches that have to contradict what was learned, if a batch may that does."""
ALONE_WORDS = (
    "held-out turns after a step on its batch alone: its verdicts contradict the earlier ones, so that liked replies "
    "became less likely, or disliked ones likelier"
)


class VersionScorer(Protocol):
    """Scores replies under a version, which the trainer loads."""

    def score(self, policy: Policy, samples: Sequence[Sample]) -> list[Logprobs]:
        """Return the log-probabilities [R] of each sample's reply."""
        ...

    def score_after_step_alone(
        self, head: Policy, batch: Sequence[Sample], samples: Sequence[Sample]
    ) -> list[Logprobs] | None:
        """Return those after a step on `batch` from the head without moments; None if it has no gradient."""
        ...


class HeldOutEvidence:
    """The evidence from held-out turns on one candidate, and the figures of its batch."""

    def __init__(self, settings: GateConfig) -> None:
        def make(name: str, description: str) -> Evidence:
            return Evidence(name, description, settings.margin, settings.error, is_complete=True)

        self.candidate = make("held_out", CANDIDATE_WORDS)
        self.liked = make("liked", LIKED_WORDS)
        self.alone = make("batch_alone", ALONE_WORDS)
        self._is_strict = settings.strict
        # Comparisons that raised.
        self._failures = 0
        # Of the held-out replies, under the head.
        self._before: Sequence[Logprobs] = ()
        # See `outlier_distance`.
        self.distance: float | None = None
        # See `junk_distance`.
        self.junk: float | None = None
        # See `verdict_agreement`.
        self.agreement: float | None = None
        # Of the newest `CONFIRMING_TURNS` turns of other batches.
        self.others_agreement: float | None = None
        self._verdicts = 0

    @property
    def evidence(self) -> list[Evidence]:
        """The kinds that have any difference."""
        return [kind for kind in (self.candidate, self.alone, self.liked) if kind.differences]

    def compare(
        self,
        items: Sequence[JudgedTurn],
        usual: Sequence[JudgedTurn],
        others: Sequence[JudgedTurn],
        batch: Sequence[Sample],
        candidate: Policy,
        head: Policy,
        base: Policy,
        scorer: VersionScorer,
    ) -> None:
        """Score the held-out replies. Turns of another base model are left out; all if they do not fit into memory.

        `usual`: turns whose replies are such as the policy gives, whatever the person thought of them. `others`: those
        of them that were in no refused batch with turns of this one, newest first. `batch`: the samples that the
        candidate was trained on, without replays and imported turns.
        """
        samples = _samples_of(items, head)
        if samples:
            with self._recording_failure(candidate):
                self._compare_held_out(samples, candidate, head, scorer)
        praised = [s for s in batch if (s.reward or 0.0) > 0]
        likely = _samples_of(usual, head)
        if praised and len(likely) >= MIN_COUNT:
            with self._recording_failure(candidate):
                self._find_junk(praised, likely, head, base, scorer)
        if head.path is not None:
            with self._recording_failure(candidate):
                self._compare_with_learned(batch, others, head, base, scorer)
        if self._is_strict and head.path is not None:
            with self._recording_failure(candidate):
                self._examine_batch(samples, batch, head, base, scorer)

    @contextmanager
    def _recording_failure(self, candidate: Policy) -> Iterator[None]:
        """Leave out a comparison that fails, and count it in the metrics: the version is decided on without it."""
        try:
            yield
        except (ModelError, PluginError, ValueError) as error:
            self._failures += 1
            log.warning(
                "version %d is not compared on all held-out turns: %s", candidate.version, error
            )

    def _compare_held_out(
        self, samples: Sequence[Sample], candidate: Policy, head: Policy, scorer: VersionScorer
    ) -> None:
        after = scorer.score(candidate, samples)
        self._before = scorer.score(head, samples)
        self._add(samples, after, self._before, self.candidate, self.liked)

    def _find_junk(
        self,
        praised: Sequence[Sample],
        usual: Sequence[Sample],
        head: Policy,
        base: Policy,
        scorer: VersionScorer,
    ) -> None:
        """Compare praised replies with usual ones under the head, and those that are unlikely also under the base."""
        plain = [replace(sample, temperature=1.0) for sample in (*praised, *usual)]
        scores = scorer.score(head, plain)
        of_praised = scores[: len(praised)]
        means = _mean_logprobs(scores[len(praised) :])
        self.junk = junk_distance(of_praised, means)
        if head.path is None:
            return
        suspects = []
        for sample, logprobs in zip(plain, of_praised, strict=False):
            if junk_reason(junk_distance([logprobs], means)) is not None:
                suspects.append(sample)
        if suspects:
            self.junk = junk_distance(scorer.score(base, suspects), means)

    def _examine_batch(
        self,
        samples: Sequence[Sample],
        batch: Sequence[Sample],
        head: Policy,
        base: Policy,
        scorer: VersionScorer,
    ) -> None:
        """Examine the feedback itself (`gate.strict`)."""
        self._measure_praise(samples, batch, head, scorer)
        if batch and self._before and (self.agreement is None or self.agreement <= 0):
            alone = scorer.score_after_step_alone(head, batch, samples)
            if alone is not None:
                self._add(samples, alone, self._before, self.alone)

    def rejection_reason(self, *, is_retry: bool, is_suspect: bool) -> Reason | None:
        """Return why the batch itself is refused, or None. `is_retry`: its turns were in a refused batch before.

        `is_suspect`: in one whose verdicts contradict what was learned.
        """
        junk = junk_reason(self.junk)
        if junk is not None:
            return junk
        suspected = is_suspect or (is_retry and self._is_strict)
        contradiction = disagreement_reason(self.agreement, self._verdicts, is_suspect=suspected)
        if self._is_strict:
            return outlier_reason(self.distance, is_retry=is_retry) or contradiction
        return None if self._is_confirmed else contradiction

    @property
    def _is_confirmed(self) -> bool:
        """Whether the newest turns of other batches contradict what was learned, too: then a taste has changed."""
        return (
            disagreement_reason(self.others_agreement, CONFIRMING_TURNS, is_suspect=False)
            is not None
        )

    def _compare_with_learned(
        self,
        batch: Sequence[Sample],
        others: Sequence[JudgedTurn],
        head: Policy,
        base: Policy,
        scorer: VersionScorer,
    ) -> None:
        scored = [s for s in batch if s.reward]
        if not scored:
            return
        beside = _samples_of(others, head)[:CONFIRMING_TURNS]
        both = [*scored, *beside]
        base_logprobs = scorer.score(base, both)
        head_logprobs = scorer.score(head, both)
        learned = []
        for sample, old, new in zip(both, base_logprobs, head_logprobs, strict=True):
            learned.append(float(np.mean((new - old)[sample.mask])))
        self.agreement = verdict_agreement(_rewards(scored), learned[: len(scored)])
        self._verdicts = len(scored)
        if len(beside) == CONFIRMING_TURNS:
            self.others_agreement = verdict_agreement(_rewards(beside), learned[len(scored) :])

    def metrics(self) -> dict[str, float]:
        """Return the figures of the batch, and the number of comparisons that failed."""
        failures = float(self._failures) if self._failures else None
        figures = {
            "gate/outlier_distance": self.distance,
            "gate/junk_distance": self.junk,
            "gate/agreement": self.agreement,
            "gate/others_agreement": self.others_agreement,
            "gate/failures": failures,
        }
        return {name: value for name, value in figures.items() if value is not None}

    @staticmethod
    def _add(
        samples: Sequence[Sample],
        after: Sequence[Logprobs],
        before: Sequence[Logprobs],
        scored: Evidence,
        liked: Evidence | None = None,
    ) -> None:
        for sample, new, old in zip(samples, after, before, strict=True):
            change = likelihood_difference(new, old, sample.mask)
            score = sample.reward or 0.0
            if change is not None:
                scored.add([score * change])
                if liked is not None and score > 0:
                    liked.add([change])

    def _measure_praise(
        self,
        samples: Sequence[Sample],
        batch: Sequence[Sample],
        head: Policy,
        scorer: VersionScorer,
    ) -> None:
        praised = [s for s in batch if (s.reward or 0.0) > 0]
        plain = [replace(sample, temperature=1.0) for sample in (*praised, *samples)]
        means = _mean_logprobs(scorer.score(head, plain))
        self.distance = outlier_distance(means[: len(praised)], means[len(praised) :])


def _samples_of(items: Sequence[JudgedTurn], head: Policy) -> list[Sample]:
    samples = [_scoring_sample(item, head) for item in items]
    return [sample for sample in samples if sample is not None]


def _mean_logprobs(logprobs: Sequence[Logprobs]) -> list[float]:
    return [float(np.mean(of_reply)) for of_reply in logprobs]


def _rewards(samples: Sequence[Sample]) -> list[float]:
    return [sample.reward or 0.0 for sample in samples]


def _scoring_sample(item: JudgedTurn, head: Policy) -> Sample | None:
    request = item.exchange.request
    reply = item.exchange.reply
    if reply is None or request.identity != head.identity:
        return None
    try:
        return make_sample(
            item,
            reply,
            temperature=request.sampling.temperature or 1.0,
            version=request.version,
            reward=float(item.verdict.score or 0),
        )
    except ValueError:
        # A broken engine recorded bad values.
        return None
