"""groups: group-relative advantages over several episodes of one task. For environments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from openclaw_rl.methods.spec import MethodSettings, MethodSpec
from openclaw_rl.methods.types import BatchLogprobs, CreditMethod, PolicyGradientTerm
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.types import EpisodeStep

GroupScale = Literal["none", "std"]
OutcomeMap = Literal["as_is", "signed"]
Branches = Literal["chain", "all"]


class GroupRelativeMethod(CreditMethod):
    """Advantage A = w_o (o - mean o) + w_s (s - mean s), with outcome o of the episode and reward s of the step.

    Outcomes are compared over the episodes of a group; each episode counts once, however many steps it has. Step
    rewards are compared over the episodes that have one at the same step index (arXiv:2603.10165, step-wise rewards;
    arXiv:2402.03300, groups). The default is no division by the standard deviation (reasons: arXiv:2503.20783); with
    `scale` "std" the divisor is at least `floor`. `outcome` "signed": o is 2r - 1 for a reward r.

    Each sample has the rewards of its whole group, so its advantage does not depend on what else is in the batch. A
    turn that is on no chain of steps has the outcome's part with `branches` "all", else none. A sample without an
    episode, without a part, or whose parts compare equal values, is in no term and in no denominator.
    """

    uses_episodes = True

    def __init__(
        self,
        *,
        w_outcome: float = 1.0,
        w_step: float = 1.0,
        outcome: OutcomeMap = "as_is",
        branches: Branches = "chain",
        scale: GroupScale = "none",
        floor: float = 0.1,
    ) -> None:
        """Raises `ValueError` if both weights are 0."""
        if w_outcome == 0 and w_step == 0:
            raise ValueError(
                "train.loss.w_outcome and train.loss.w_step are 0: no episode has an advantage"
            )
        self._w_outcome = w_outcome
        self._w_step = w_step
        self._outcome = outcome
        self._branches = branches
        self._scale = scale
        self._floor = floor

    def advantage(self, episode: EpisodeStep) -> float | None:
        """Return the advantage of a turn; None if its group says nothing about it."""
        if episode.step is None and self._branches == "chain":
            return None
        # The constant of 2r - 1 cancels.
        factor = 2.0 if self._outcome == "signed" else 1.0
        rewards = [factor * reward for reward in episode.rewards]
        parts = [self._relative_value(self._w_outcome, factor * episode.reward, rewards)]
        if episode.step_reward is not None:
            parts.append(
                self._relative_value(self._w_step, episode.step_reward, episode.step_rewards)
            )
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    def no_credit_reason(self, episode: EpisodeStep) -> Reason | None:
        """See `CreditMethod.no_credit_reason`."""
        if self.advantage(episode) is not None:
            return None
        if episode.step is None and self._branches == "chain":
            return Reason(
                ReasonCode.OTHER_BRANCH,
                "it is on a branch that the end of its episode does not follow",
            )
        return Reason(
            ReasonCode.EQUAL_REWARDS, "its group gives no signal: all its rewards are equal"
        )

    def loss_terms(
        self, evidence: BatchLogprobs, method_state: Mapping[str, Any]
    ) -> tuple[PolicyGradientTerm, ...]:
        """Return one term."""
        advantages = []
        masks = []
        rollouts = set()
        heard = set()
        for sample in evidence.samples:
            value = None
            if sample.episode is not None:
                value = self.advantage(sample.episode)
                rollouts.add(sample.episode.episode)
                if value is not None:
                    heard.add(sample.episode.episode)
            advantages.append(np.full(len(sample.mask), value or 0.0))
            masks.append(sample.mask & (value is not None))
        return (
            PolicyGradientTerm(
                name="groups",
                weight=1.0,
                advantages=tuple(advantages),
                masks=tuple(masks),
                metrics={
                    "groups/rollouts": float(len(rollouts)),
                    "groups/silent": float(len(rollouts - heard)),
                },
            ),
        )

    def _relative_value(
        self, weight: float, reward: float, rewards: Sequence[float]
    ) -> float | None:
        """Return the weighted, scaled distance to the group's mean; None if all are equal or the weight is 0."""
        # Up to rounding.
        if weight == 0 or math.isclose(min(rewards), max(rewards), rel_tol=1e-9, abs_tol=1e-12):
            return None
        divisor = max(float(np.std(rewards)), self._floor) if self._scale == "std" else 1.0
        return float(weight * (reward - np.mean(rewards)) / divisor)


def _create(train: MethodSettings) -> GroupRelativeMethod:
    return GroupRelativeMethod(
        w_outcome=train.loss.w_outcome,
        w_step=train.loss.w_step,
        outcome=train.loss.outcome,
        branches=train.branches,
        scale=train.loss.group_scale,
        floor=train.loss.group_floor,
    )


SPEC = MethodSpec(
    name="groups",
    summary="several episodes of one task (environments only)",
    create=_create,
    own_settings=(
        "train.loss.w_outcome",
        "train.loss.w_step",
        "train.loss.outcome",
        "train.loss.group_scale",
        "train.loss.group_floor",
        "train.branches",
        "train.batch.min_groups",
        "train.batch.max_groups",
    ),
)
