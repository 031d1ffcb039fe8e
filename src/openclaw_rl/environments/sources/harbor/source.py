"""The source `harbor`: task folders, their checks, and their episodes in boxes of this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
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
            if solve:
                await box.solve_task()
            return await box.verify_task(results)
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
            stopped = await self._let_work(
                box, client, min(limits.seconds, loaded.settings.agent.timeout_sec or 1e9)
            )
            outcome = await box.verify_task(Path(folder, "results"), end - time.monotonic())
        except UnfitTask as error:
            return void_outcome(f"the task cannot be played here: {error}")
        finally:
            await asyncio.shield(box.close_box())
        if outcome.status == "void":
            return outcome
        reason = "; ".join(filter(None, (stopped, outcome.reason)))
        return PlayOutcome(
            status="done", reward=outcome.reward, parts=outcome.parts, reason=reason or None
        )

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
