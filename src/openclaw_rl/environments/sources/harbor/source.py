"""The source `harbor`: task folders, their checks, and their episodes in boxes of this machine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from openclaw_rl.environments.agents.chat_agent import ChatAgent, EpisodeOver, open_agent_session
from openclaw_rl.environments.sources.harbor.bash_agent import BoxAgent
from openclaw_rl.environments.sources.harbor.build_tasks import TaskBuilder
from openclaw_rl.environments.sources.harbor.task_box import TaskBox, UnfitTask
from openclaw_rl.environments.sources.harbor.task_folder import (
    HarborFolder,
    load_folder,
    load_tasks_below,
)
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
    TaskBuild,
    TaskFitness,
    void_outcome,
)
from openclaw_rl.errors import BoxLost, ConfigError, SandboxError
from openclaw_rl.sandbox.box_kinds import find_machine_problem
from openclaw_rl.settings.schema_sandbox import SandboxConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborSource:
    """Tasks of a folder. `granted`: variables that tasks may ask for. `packages`: where builds get packages from."""

    top: Path
    sandbox: SandboxConfig
    held_out_share: float = 0.0
    granted: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, list[str]] = field(default_factory=dict)
    name: str = "harbor"

    async def build_task(self, task: EnvironmentTask, note: Callable[[str], None]) -> TaskBuild:
        """Build the root of a task with a network, unless it is there or a box needs none."""
        builder = TaskBuilder(sandbox=self.sandbox, sources=self.packages, granted=self.granted)
        return await builder.build(task, note)

    def load_tasks(self) -> list[EnvironmentTask]:
        """Return the tasks of the folder. Raises `ConfigError`."""
        return load_tasks_below(self.top, self.held_out_share)

    async def check_task(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits
    ) -> TaskFitness:
        """Solve the task with its own solution, and do nothing; verify both as an episode is verified."""
        return await check_folder(task, folder, self._score_attempt)

    async def _score_attempt(self, folder: HarborFolder, name: str, results: Path) -> PlayOutcome:
        solve = name == "oracle"
        box = TaskBox(folder=folder, sandbox=self.sandbox, granted=self.granted)
        try:
            await box.open_box()
            return await play_steps(box, results, _solve_step if solve else _do_nothing)
        except BoxLost as error:
            raise UnfitTask(str(error)) from error
        except SandboxError as error:
            problem = await find_machine_problem(self.sandbox) if solve else None
            if problem is not None:
                raise ConfigError(problem) from error
            raise UnfitTask(str(error)) from error
        finally:
            await asyncio.shield(box.close_box())


@dataclass(slots=True, kw_only=True)
class HarborRunner:
    """Lets an agent work on each task in a box, and verifies its work in a fresh one."""

    agent: BoxAgent
    sandbox: SandboxConfig
    granted: Mapping[str, str] = field(default_factory=dict)
    _http: aiohttp.ClientSession | None = field(default=None, init=False)

    def open_runner(self, folder: str) -> None:
        """Open the HTTP session of all episodes."""
        self._http = open_agent_session()

    async def close_runner(self) -> None:
        """Close the HTTP session."""
        if self._http is not None:
            await self._http.close()

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        """Play one episode. A box that fails is void; what the policy does in its time, context and replies counts."""
        assert self._http is not None
        loaded = load_folder(Path(task.data["folder"]))
        client = ChatAgent(self._http, ticket)
        await asyncio.to_thread(Path(folder).mkdir, 0o700)
        end = time.monotonic() + limits.seconds
        try:
            access = self.agent.box_access(ticket)
            box = TaskBox(folder=loaded, sandbox=self.sandbox, granted=self.granted, access=access)
        except UnfitTask as error:
            return void_outcome(f"the task cannot be played here: {error}")
        try:
            await box.open_box()

            async def work(step: TaskBox) -> str | None:
                left = limits.seconds if not loaded.settings.steps else end - time.monotonic()
                seconds = min(max(left, 0.0), step.folder.agent.timeout_sec or 1e9)
                return await self._let_work(step, client, seconds)

            outcome = await play_steps(
                box, Path(folder, "results"), work, lambda: end - time.monotonic()
            )
        except UnfitTask as error:
            return void_outcome(f"the task cannot be played here: {error}")
        finally:
            await asyncio.shield(box.close_box())
        return outcome

    async def _let_work(self, box: TaskBox, client: ChatAgent, seconds: float) -> str | None:
        """Let the agent work; return why it was stopped, None if it ended by itself."""
        try:
            async with asyncio.timeout(seconds):
                await self.agent.work_on(box, client)
        except TimeoutError:
            return f"the agent was stopped after {seconds:g} s"
        except EpisodeOver as error:
            return str(error)
        return None


async def play_steps(
    box: TaskBox,
    results: Path,
    work: Callable[[TaskBox], Awaitable[str | None]],
    time_left: Callable[[], float] | None = None,
) -> PlayOutcome:
    """Let `work` take each step of the task in an open box, and verify each; return the outcome of all.

    `work`: returns why it was stopped, or None. `results`: a new path for the verifiers' files. After a step with less
    than its `min_reward`, none is taken; the steps that were not taken count as 0 in the mean.
    """
    steps = box.folder.list_steps()
    outcomes: list[PlayOutcome] = []
    for number, step in enumerate(steps):
        await box.begin_step(step)
        stopped = await work(box)
        outcome = await box.verify_task(
            results.with_name(f"{results.name}-{number}") if number else results,
            None if time_left is None else time_left(),
            continues=number + 1 < len(steps),
        )
        if outcome.status == "void":
            return outcome
        reason = "; ".join(filter(None, (stopped, outcome.reason))) or None
        outcomes.append(replace(outcome, reason=reason))
        if step.step is not None and _is_below(outcome, step.step.min_reward):
            break
    return outcomes[0] if box.folder.step is None else _join_outcomes(box.folder, outcomes)


def _is_below(outcome: PlayOutcome, least: float | Mapping[str, float] | None) -> bool:
    if least is None:
        return False
    assert outcome.reward is not None
    if isinstance(least, Mapping):
        rewards = {"reward": outcome.reward, **outcome.parts}
        return any(rewards.get(name, 0.0) < value for name, value in least.items())
    return outcome.reward < least


def _join_outcomes(folder: HarborFolder, outcomes: Sequence[PlayOutcome]) -> PlayOutcome:
    """Return the outcome of a task with steps: the mean of all, or the last one that was taken."""
    settings = folder.settings
    rewards = [outcome.reward or 0.0 for outcome in outcomes]
    total = rewards[-1]
    if settings.multi_step_reward_strategy == "mean":
        total = math.fsum(rewards) / len(settings.steps)
    names = [step.name for step in settings.steps]
    reasons = [
        f"{name}: {one.reason}" for name, one in zip(names, outcomes, strict=False) if one.reason
    ]
    return PlayOutcome(
        status="done",
        reward=total,
        parts=dict(zip(names, rewards, strict=False)),
        reason="; ".join(reasons) or None,
    )


async def _solve_step(box: TaskBox) -> None:
    await box.solve_task()


async def _do_nothing(box: TaskBox) -> None:
    """Leave the box as it is."""


async def check_folder(
    task: EnvironmentTask,
    scratch: str,
    attempt: Callable[[HarborFolder, str, Path], Awaitable[PlayOutcome]],
) -> TaskFitness:
    """Compare the attempts `oracle` and `nop` at a task.

    `attempt`: plays one of them, with a path that does not exist yet; raises `UnfitTask`. `scratch`: as for
    `EpisodeRunner.play_episode`.
    """
    results: dict[str, PlayOutcome] = {}
    loaded = load_folder(Path(task.data["folder"]))
    best = float(loaded.settings.metadata.get("best_reward", 1.0))
    await asyncio.to_thread(Path(scratch).mkdir, 0o700)
    reason: str | None = None
    try:
        for name in ("oracle", "nop"):
            results[name] = await attempt(loaded, name, Path(scratch, name))
            if results[name].status == "void":
                raise UnfitTask(f"{name}: {results[name].reason}")
        reason = _compare_rewards(
            results, best, allows_network=loaded.settings.environment.allows_network
        )
    except UnfitTask as error:
        reason = str(error)
    rewards = {name: outcome.reward for name, outcome in results.items()}
    return TaskFitness(
        task=task.id,
        digest=task.digest,
        fit=reason is None,
        reason=reason or "",
        oracle=rewards.get("oracle"),
        nop=rewards.get("nop"),
    )


def _compare_rewards(
    results: Mapping[str, PlayOutcome], best: float, *, allows_network: bool
) -> str | None:
    """Return why rewards say nothing about a policy; None if they do."""
    oracle = results["oracle"]
    nop = results["nop"]
    assert oracle.reward is not None
    assert nop.reward is not None
    if abs(oracle.reward - best) > 1e-9:
        network = ". The task allows a network, and a box has none" if allows_network else ""
        return (
            f"its solution got {oracle.reward:g}, not {best:g} (verifier: {oracle.reason}){network}"
        )
    if nop.reward >= oracle.reward:
        return f"doing nothing got {nop.reward:g}, not less than its solution"
    return None
