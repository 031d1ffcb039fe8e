"""Evidence on whether a candidate is worse than the head, and the decision. Pure.

Each kind of evidence is a sequence of differences in [-1, 1], candidate less head, with a sequential test of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from openclaw_rl.common.statistics.sequential_test import Decision, MeanTest
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.types import Logprobs, Mask

LIKELIHOOD_SCALE = 0.02
"""Nats per token: a reply whose mean log-probability changes by this much counts as a difference of 0.76."""
MIN_COUNT = 8
"""Differences of a kind below which a mean says nothing where its test has not decided."""
MAX_OUTLIER_DISTANCE = 1.4
MAX_SUSPECT_DISTANCE = 1.0
"""Standard deviations by which the praised replies of a batch may be less likely than held-out replies; the second one
for turns of a batch that was refused before."""
MAX_JUNK_DISTANCE = 3.0
MIN_JUNK_NATS = 10.0
"""Standard deviations, and nats in all, by which a praised reply must be less likely than usual ones, under the head
and under the base, to be junk. A style that is new to the head is likely under the base; a short reply with one rare
word is not unlikely enough in all."""
MIN_AGREEMENT = -0.5
MIN_VERDICTS = 3
"""Mean agreement of a batch with what was learned at or below which it is refused, and verdicts that this needs."""
MIN_SUSPECT_AGREEMENT = 0.0
"""The same for turns of a batch that was refused for it: each of them has to agree, however few they are."""
# Nats per token: smallest standard deviation; praise of a rare reply teaches most.
_MIN_SPREAD = 0.3


@dataclass(slots=True)
class Evidence:
    """The differences of one kind."""

    name: str  # of the metric, such as "held_out"
    words: str  # what is compared, for people
    margin: float
    error: float
    is_complete: bool = False  # whether all differences are added at once
    differences: list[float] = field(default_factory=list)
    test: MeanTest = field(init=False)

    def __post_init__(self) -> None:
        self.test = MeanTest(margin=self.margin, error=self.error)

    def add(self, differences: Iterable[float]) -> None:
        """Add differences; those after the decision of the test count for the mean alone."""
        for difference in differences:
            self.differences.append(difference)
            if self.decision is None:
                self.test.add([difference])

    @property
    def decision(self) -> Decision | None:
        return self.test.decision

    @property
    def mean(self) -> float:
        return float(np.mean(self.differences)) if self.differences else 0.0

    @property
    def _points_down(self) -> bool:
        """Whether the mean is below the margin by more than its standard error."""
        count = len(self.differences)
        return (
            count >= MIN_COUNT
            and self.mean + float(np.std(self.differences)) / math.sqrt(count) < -self.margin
        )

    def rejection_reason(self, *, is_spent: bool) -> Reason | None:
        """Return why the candidate is refused, or None. `is_spent`: no further difference will come."""
        count = len(self.differences)
        figures = f"mean difference {self.mean:+.2f} over {count}, with gate.margin {self.margin:g}"
        if self.decision == "worse":
            detail = (
                f"it is worse than the head in {self.words} ({figures}, gate.error {self.error:g})"
            )
            return Reason(ReasonCode.WORSE, detail)
        if self.decision is not None or not self._points_down:
            return None
        if is_spent or self.is_complete:
            detail = f"it looks worse than the head in {self.words} ({figures}, without certainty)"
            return Reason(ReasonCode.WORSE, detail)
        return None


def likelihood_difference(after: Logprobs, before: Logprobs, mask: Mask) -> float | None:
    """Return how much likelier a reply has become, squashed to [-1, 1]; None if no token counts.

    All arrays [R]. The mean difference per token that may train is divided by `LIKELIHOOD_SCALE`, then tanh.
    """
    if not mask.any():
        return None
    shift = float(np.mean(after[mask].astype(np.float64) - before[mask]))
    return math.tanh(shift / LIKELIHOOD_SCALE) if math.isfinite(shift) else -1.0


def outlier_distance(praised: Sequence[float], held_out: Sequence[float]) -> float | None:
    """Return by how many standard deviations praised replies are less likely under the head than held-out ones.

    The values are mean log-probabilities per token, one a reply. None without praise or with few held-out replies.
    """
    if not praised or len(held_out) < MIN_COUNT:
        return None
    spread = max(float(np.std(held_out)), _MIN_SPREAD)
    return (float(np.mean(held_out)) - float(np.mean(praised))) / spread


def junk_distance(logprobs: Sequence[Logprobs], usual: Sequence[float]) -> float | None:
    """Return by how many standard deviations the least likely of some replies is less likely than usual replies.

    `logprobs`: of each reply [R]; a reply that is less so by fewer than `MIN_JUNK_NATS` has distance 0. `usual`: mean
    log-probabilities per token, one a reply; median and median deviation count, so that a few of them may be junk, too.
    None without replies or with few usual ones.
    """
    if not logprobs or len(usual) < MIN_COUNT:
        return None
    middle = float(np.median(usual))
    deviation = float(np.median(np.abs(np.array(usual) - middle)))
    spread = max(1.4826 * deviation, _MIN_SPREAD)
    distance = 0.0
    for reply in logprobs:
        gap = middle - float(np.mean(reply))
        if gap * len(reply) >= MIN_JUNK_NATS:
            distance = max(distance, gap / spread)
    return distance


def junk_reason(distance: float | None) -> Reason | None:
    """Return why a batch with a praised reply at this distance is refused, or None."""
    if distance is None or distance <= MAX_JUNK_DISTANCE:
        return None
    return Reason(
        ReasonCode.JUNK,
        f"a praised reply of its batch is junk: {distance:.1f} standard deviations less likely than usual replies, "
        f"under the head and under the base, above {MAX_JUNK_DISTANCE:g}",
    )


def outlier_reason(distance: float | None, *, is_retry: bool) -> Reason | None:
    """Return why a batch whose praised replies lie at this distance is refused, or None.

    `is_retry`: the turns were part of a refused batch, so that each of them is suspected.
    """
    limit = MAX_SUSPECT_DISTANCE if is_retry else MAX_OUTLIER_DISTANCE
    if distance is None or distance <= limit:
        return None
    return Reason(
        ReasonCode.OUTLIER,
        f"the praised replies of its batch are not such as the head gives: {distance:.1f} standard deviations less "
        f"likely than held-out replies, above {limit:g}",
    )


def verdict_agreement(scores: Sequence[float], learned: Sequence[float]) -> float | None:
    """Return how far the verdicts of a batch agree with what the head has learned, from -1 to 1; None without any.

    `learned`: by how much the head has made each reply likelier than the base, in nats per token (the implicit reward
    of arXiv:2305.18290), squashed like a difference of likelihoods.
    """
    if not scores:
        return None
    agreements = []
    for score, nats in zip(scores, learned, strict=True):
        agreements.append(score * math.tanh(nats / LIKELIHOOD_SCALE))
    return float(np.mean(agreements))


def disagreement_reason(agreement: float | None, count: int, *, is_suspect: bool) -> Reason | None:
    """Return why a batch whose `count` verdicts agree so little is refused, or None.

    `is_suspect`: the turns were part of a batch that was refused for this, so that each of them has to agree.
    """
    if agreement is None:
        return None
    if count < MIN_VERDICTS and not is_suspect:
        return None
    bound = MIN_SUSPECT_AGREEMENT if is_suspect else MIN_AGREEMENT
    if agreement > bound:
        return None
    return Reason(
        ReasonCode.CONTRADICTION,
        "the verdicts of its batch contradict what the head has learned: "
        f"agreement {agreement:+.2f} over {count} turns, not above {bound:g}",
    )


def decide(
    evidence: Sequence[Evidence], *, is_spent: bool
) -> tuple[Literal["promote", "reject"] | None, Reason | None]:
    """Return the decision, None if more evidence is needed, and the reason of a rejection.

    One kind that is worse rejects. The candidate is promoted when every kind that can still grow is not worse, or when
    the budget is spent and no kind points below its margin.
    """
    for kind in evidence:
        reason = kind.rejection_reason(is_spent=is_spent)
        if reason is not None:
            return "reject", reason
    if is_spent:
        return "promote", None
    undecided = [kind for kind in evidence if not kind.is_complete]
    if undecided and all(kind.decision == "not worse" for kind in undecided):
        return "promote", None
    return None, None
