"""Data types of episodes, as the HTTP protocol states them (docs/concepts/episodes.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EpisodeOutcome = Literal["done", "void"]
"""Done: the reward counts, also that of a failure of the policy. Void: the environment failed; it trains nothing."""
EpisodeSplit = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReward:
    """Reward that the environment gave to one step, named by the turn or by the index of the step."""

    reward: float
    turn: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One attempt at a task of an environment; the episodes of a group are attempts at the same task."""

    id: str
    scope: str  # of the owner's API key, which opened it
    task: str
    group: str
    size: int  # number of episodes of the group
    split: EpisodeSplit
    agent: str = ""
    # Fields of `Sampling` in place of the client's.
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_steps: int | None = None  # replies that its ticket can get; None: no limit
    versions: tuple[int, ...] = ()  # that its ticket may name, besides the head
    started_at: float
    expires_at: float
    outcome: EpisodeOutcome | None = None  # None: it is running
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)  # of the reward, by name
    steps: tuple[StepReward, ...] = ()  # as the environment gave them
    reason: str | None = None  # text for a person
    ended_at: float | None = None
    settled_at: float | None = None  # when its waiting turns were closed and its steps counted

    def __post_init__(self) -> None:
        check_reward(self.id, self.outcome, self.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """The outcome of an episode, as the owner posts it."""

    id: str
    scope: str
    outcome: EpisodeOutcome
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[StepReward, ...] = ()
    reason: str | None = None
    at: float

    def __post_init__(self) -> None:
        check_reward(self.id, self.outcome, self.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeGroup:
    """The episodes of one task whose rewards are compared."""

    id: str
    scope: str
    task: str
    split: EpisodeSplit
    agent: str
    size: int
    expires_at: float  # when the last of its episodes expires
    completed_at: float | None = None  # None: some episodes are missing or running
    reason: str | None = None  # why it is not trained on, once it is complete


def check_reward(id: str, outcome: EpisodeOutcome | None, reward: float | None) -> None:
    """Raise `ValueError` unless an episode that is done has a finite reward, and any other has none."""
    if (outcome == "done") != (reward is not None) or (
        reward is not None and not math.isfinite(reward)
    ):
        raise ValueError(
            f"episode {id}: expected a finite reward with outcome done, and none otherwise; got {reward} with outcome "
            f"{outcome or 'unknown'}"
        )
