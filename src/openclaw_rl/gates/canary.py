"""The canary: a candidate that passed the gate answers a share of the conversations before it becomes the head.

People's scores under it are compared with those under the head in the same time, by a sequential test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openclaw_rl.common.statistics.sequential_test import MeanTest
from openclaw_rl.gates.candidate_gate import GateResult
from openclaw_rl.gates.wide_evidence import counter_checks, without_people
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store.lineage.live_scores import ScoredTurn
from openclaw_rl.types import Policy

MAX_PER_SCORE = 4
"""Scores of the head that are compared with one of the candidate, at most: their mean has less noise."""


def _scores_of_head(share: float) -> int:
    """Return how many scores of the head are compared with one of a canary with this share of the conversations."""
    return int(np.clip((1 - share) / share, 1, MAX_PER_SCORE))


def score_limit(share: float, settings: GateConfig) -> int:
    """Return how many newest scores to read: twice those that bring `gate.canary_turns` comparisons on average.

    Fewer than those since the canary began would be other ones at each look.
    """
    return math.ceil(
        2 * settings.canary_turns * max(1 / share, _scores_of_head(share) / (1 - share))
    )


class CanaryEvidence:
    """The scores since the canary began: of the candidate, and of the head, each in the order of their verdicts."""

    def __init__(
        self,
        scores: Sequence[ScoredTurn],
        candidate: Policy,
        share: float,
        settings: GateConfig,
        *,
        is_shared: bool = False,
    ) -> None:
        """`share`: of the conversations that the candidate answers. `is_shared`: whether it answers several people."""
        self._settings = settings
        self._is_shared = is_shared
        self._candidate = candidate
        self._share = share
        self._scores = scores
        self.new = [score.satisfied for score in scores if score.version == candidate.version]
        self.old = [score.satisfied for score in scores if score.version == candidate.parent]
        per_score = _scores_of_head(share)
        self.compared = min(len(self.new), len(self.old) // per_score)
        new = np.array(self.new[: self.compared], np.float64)
        old = np.array(self.old[: self.compared * per_score], np.float64).reshape(-1, per_score)
        self._differences = new - old.mean(axis=1)

    @property
    def metrics(self) -> dict[str, float]:
        """Figures for the version's metrics: numbers of scores, and the mean difference if there is one."""
        counts = {
            "gate/canary/count": float(len(self.new)),
            "gate/canary/count/head": float(len(self.old)),
        }
        return counts | ({"gate/canary": float(self._differences.mean())} if self.compared else {})

    def describe(self) -> str:
        """Return the counts as a sentence."""
        return (
            f"people were satisfied with {sum(self.new)} of its {len(self.new)} scored turns and with "
            f"{sum(self.old)} of {len(self.old)} of the head"
        )

    def decide(self, seconds: float) -> GateResult | None:
        """Return the decision, or None while more turns are needed. `seconds`: since the canary began.

        At `gate.canary_turns` or after `gate.canary_hours` the mean decides, with no error stated. If nobody scored
        anything, the candidate is promoted: nothing speaks against it. It is rejected only if it is worse without those
        people, too, who speak most against it.
        """
        has_ended = seconds >= self._settings.canary_hours * 3600
        worse = self._is_worse(has_ended=has_ended)
        if worse is None:
            return None
        if worse and not self._is_worse_without_loudest(has_ended=has_ended):
            if not has_ended:
                return None
            worse = False
        reason = None
        if worse:
            reason = Reason(ReasonCode.WORSE, f"canary: {self.describe()}")
        return GateResult(promotes=not worse, reason=reason, metrics=self.metrics)

    def _is_worse(self, *, has_ended: bool) -> bool | None:
        """Return whether the candidate is worse, or None while more turns are needed."""
        test = MeanTest(margin=self._settings.max_fall, error=self._settings.error)
        test.add(self._differences)
        if test.decision is not None:
            return test.decision == "worse"
        if self.compared < self._settings.canary_turns and not has_ended:
            return None
        return bool(self.compared) and float(self._differences.mean()) < -self._settings.max_fall

    def _is_worse_without_loudest(self, *, has_ended: bool) -> bool:
        """Return whether it is also worse without those who speak most for it (`wide_evidence`)."""
        new = [score for score in self._scores if score.version == self._candidate.version]
        old = [score for score in self._scores if score.version == self._candidate.parent]
        checks = counter_checks(old, new)
        if not checks and self._is_shared:
            return False
        for left_out in checks:
            others = without_people(self._scores, left_out)
            evidence = CanaryEvidence(others, self._candidate, self._share, self._settings)
            if not evidence._is_worse(has_ended=has_ended):
                return False
        return True
