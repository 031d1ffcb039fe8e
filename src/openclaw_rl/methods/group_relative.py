"""groups: group-relative advantages over several episodes of one task. For environments."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from openclaw_rl.methods.spec import MethodSettings, MethodSpec
from openclaw_rl.methods.types import BatchLogprobs, CreditMethod, EpisodeStep, PolicyGradientTerm, Sample

GroupScale = Literal["none", "std"]
DivisorFunction = Callable[[Sequence[float]], float]
StepKey = tuple[str, str, int]  # group, episode, step


class GroupRelativeMethod(CreditMethod):
    """Advantage A = (o - mean o) + (s - mean s), with the outcome o of the episode and the reward s of the step.

    Outcomes are compared over the episodes of a group; each episode counts once, however many steps it has. Step
    rewards are compared over the episodes that have one at the same step index (arXiv:2603.10165, step-wise rewards;
    arXiv:2402.03300, groups). The default is no division by the standard deviation (reasons: arXiv:2503.20783); with
    `scale` "std" the divisor is at least `floor`.

    A group is the part of it in this batch; a group split over two batches is two groups, each with its own mean. An
    episode that is alone in its group, or in a group of equal values, has no advantage: it is in no term and in no
    denominator. An episode with unknown outcome (a broken environment) is in no group, nor are its step rewards.
    A sample without an episode is in no term.
    """

    uses_episodes = True

    def __init__(self, *, scale: GroupScale = "none", floor: float = 0.1) -> None:
        self._scale, self._floor = scale, floor

    def loss_terms(self, evidence: BatchLogprobs, memory: Mapping[str, Any]) -> tuple[PolicyGradientTerm, ...]:
        """Return one term. Raises `ValueError` if an episode has two outcomes, or the same step twice."""
        episodes = [_comparable_episode(sample) for sample in evidence.samples]
        credit = _step_advantages([e for e in episodes if e is not None], self._group_divisor)
        values = [None if e is None else credit.get((e.group, e.episode, e.step)) for e in episodes]
        pairs = list(zip(evidence.samples, values, strict=True))
        everyone = {(e.group, e.episode) for e in episodes if e is not None}
        spoke = {(e.group, e.episode) for e, v in zip(episodes, values, strict=True) if e is not None and v is not None}
        return (
            PolicyGradientTerm(
                name="groups",
                weight=1.0,
                advantages=tuple(np.full(len(s.mask), v or 0.0) for s, v in pairs),
                masks=tuple(s.mask & (v is not None) for s, v in pairs),
                metrics={"groups/rollouts": float(len(everyone)), "groups/silent": float(len(everyone - spoke))},
            ),
        )

    def _group_divisor(self, values: Sequence[float]) -> float:
        return max(float(np.std(values)), self._floor) if self._scale == "std" else 1.0


def _comparable_episode(sample: Sample) -> EpisodeStep | None:
    """Return the sample's episode if its outcome is known."""
    return sample.episode if sample.episode is not None and sample.episode.outcome is not None else None


def _step_advantages(episodes: Sequence[EpisodeStep], spread: DivisorFunction) -> dict[StepKey, float]:
    """Return the advantage of each step that has one."""
    outcomes = _outcomes_by_group(episodes)
    rewards = _step_rewards(episodes)
    out: dict[StepKey, float] = {}
    for e in episodes:
        parts = (
            _relative_value(outcomes[e.group], e.episode, spread),
            _relative_value(rewards.get((e.group, e.step), {}), e.episode, spread),
        )
        if known := [part for part in parts if part is not None]:
            out[e.group, e.episode, e.step] = sum(known)
    return out


def _outcomes_by_group(episodes: Sequence[EpisodeStep]) -> dict[str, dict[str, float]]:
    """Return group -> episode -> outcome. Raises `ValueError` for an episode with two outcomes."""
    out: dict[str, dict[str, float]] = defaultdict(dict)
    for e in episodes:
        assert e.outcome is not None, "_comparable_episode() ensures it"
        before = out[e.group].setdefault(e.episode, e.outcome)
        if before != e.outcome:
            raise ValueError(
                f"group {e.group}, episode {e.episode}: expected one outcome at all its steps, "
                f"got {before:g} and {e.outcome:g}"
            )
    return out


def _step_rewards(episodes: Sequence[EpisodeStep]) -> dict[tuple[str, int], dict[str, float]]:
    """Return (group, step) -> episode -> step reward. Raises `ValueError` for a repeated step."""
    out: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    seen: set[StepKey] = set()
    for e in episodes:
        if (e.group, e.episode, e.step) in seen:
            raise ValueError(f"group {e.group}, episode {e.episode}: expected step {e.step} once, got it twice")
        seen.add((e.group, e.episode, e.step))
        if e.step_reward is not None:
            out[e.group, e.step][e.episode] = e.step_reward
    return out


def _relative_value(group: Mapping[str, float], episode: str, spread: DivisorFunction) -> float | None:
    """Return the episode's value minus the group's mean, scaled; None without a value or if all are equal."""
    values = list(group.values())
    if episode not in group or math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12):  # up to rounding
        return None
    return float((group[episode] - np.mean(values)) / spread(values))


def _create(train: MethodSettings) -> GroupRelativeMethod:
    return GroupRelativeMethod(scale=train.loss.group_scale, floor=train.loss.group_floor)


SPEC = MethodSpec(
    name="groups",
    summary="several episodes of one task (environments only)",
    create=_create,
    own_settings=("train.loss.group_scale", "train.loss.group_floor"),
)
