"""Data types and interfaces of the environments (docs/guides/environments.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol, runtime_checkable

TaskSplit = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTask:
    """A task. `digest`: hexadecimal SHA-256 of what the task says, independent of its name and its split."""

    id: str
    digest: str
    split: TaskSplit
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTicket:
    """Access of one episode to the gateway, as `PUT /v1/episodes/{id}` returned it."""

    episode: str
    base_url: str
    api_key: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayLimits:
    """Limits of one episode. `seconds`: wall time until all its processes are killed.

    `replies`: how many the gateway gives; None: as many as its settings allow.
    """

    seconds: float
    replies: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOutcome:
    """How an episode ended. Done: the reward counts. Void: the environment failed, and nothing is trained on.

    `steps`: rewards of single steps, as the gateway takes them: `{"turn" | "index", "reward"}`.
    """

    status: Literal["done", "void"]
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.status == "done") != (self.reward is not None and math.isfinite(self.reward)):
            raise ValueError(
                f"expected a finite reward with done and none with void, got {self.status} {self.reward}"
            )


def void_outcome(reason: str) -> PlayOutcome:
    """Return the outcome of an episode whose environment failed."""
    return PlayOutcome(status="void", reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFitness:
    """Result of a check: whether the oracle got the best reward and doing nothing got less, on this machine.

    `checkable`: False if nothing is known of the task, and nothing is kept: there is no answer to replay, or something
    that a check needs is not on this machine.
    """

    task: str
    digest: str
    fit: bool
    reason: str
    oracle: float | None = None
    nop: float | None = None
    checkable: bool = True


class BuildState(Enum):
    """How the build of a task ended."""

    BUILT = "built"
    PRESENT = "was built before"
    NOT_NEEDED = "needs no build"
    UNFIT = "unfit"
    FAILED = "not built"

    @property
    def is_failure(self) -> bool:
        return self in (BuildState.UNFIT, BuildState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBuild:
    """The end of a build. `message`: what stands in for the image of the task, or why it failed."""

    task: str
    state: BuildState
    message: str = ""


class TaskSource(Protocol):
    """Where tasks come from. It asks no model."""

    @property
    def name(self) -> str:
        """Name under which the checks are kept."""
        ...

    def load_tasks(self) -> Iterable[EnvironmentTask]:
        """Return the tasks. Raises `ConfigError` if they cannot be read."""
        ...

    async def check_task(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits
    ) -> TaskFitness:
        """Let the oracle and doing nothing work on the task, in the conditions in which it is played.

        `folder`: as for `EpisodeRunner.play_episode`, with the same promise.
        """
        ...


@runtime_checkable
class SharingSource(Protocol):
    """A source whose checks share something, such as a process of a library."""

    def open_source(self, folder: str) -> None:
        """Prepare for checks. `folder`: an existing folder; the caller removes it."""
        ...

    async def close_source(self) -> None:
        """End what the checks share."""
        ...


@runtime_checkable
class BuildingSource(Protocol):
    """A source whose tasks have roots that are built once, with a network."""

    async def build_task(self, task: EnvironmentTask, note: Callable[[str], None]) -> TaskBuild:
        """Build what a task needs, unless it is there. `note`: gets each step in words."""
        ...


class EpisodeRunner(Protocol):
    """Plays episodes. It knows nothing of tokens, training or the store."""

    def open_runner(self, folder: str) -> None:
        """Prepare for a run. `folder`: an existing folder for what all episodes share; the caller removes it."""
        ...

    async def close_runner(self) -> None:
        """End what all episodes share."""
        ...

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        """Work on the task and return the outcome. `folder`: a path that does not exist yet, for the episode's files.

        When it returns or is cancelled, no process of the episode is left. The caller removes the folder.
        """
        ...
