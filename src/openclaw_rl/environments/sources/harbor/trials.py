"""Task folders by Harbor's own runner and agents: it runs in a process, and works in boxes of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.environments.foreign_process import ForeignError, ForeignProcess
from openclaw_rl.environments.leftovers import remove_leftovers
from openclaw_rl.environments.reward_file import parse_reward
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.sources.harbor.source import check_folder
from openclaw_rl.environments.sources.harbor.task_box import TaskBox, UnfitTask
from openclaw_rl.environments.sources.harbor.task_folder import (
    HarborFolder,
    load_folder,
    load_tasks_below,
)
from openclaw_rl.environments.sources.library_source import ForeignLibrary, LibraryAccess
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
    TaskFitness,
    void_outcome,
)
from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.settings.schema_sandbox import SandboxConfig

TRIAL_AGENTS = ("terminus-2", "oracle", "nop")
"""Agents of Harbor that need no network."""
HARBOR_LIBRARY = ForeignLibrary(
    name="harbor",
    summary="Harbor's own runner",
    program="harbor_worker.py",
    requirement="'harbor>=0.25,<0.26'",
    argument="FOLDER, e.g. tasks/terminal",
    python="3.12 or newer",
    # Nothing is fetched or sent.
    variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HARBOR_TELEMETRY": "0"},
)
# To import the library, on a busy machine.
_START_SECONDS = 120.0
# Of a trial, beside the build, the agent and the verifier.
_OTHER_SECONDS = 600.0


@dataclass(slots=True, kw_only=True)
class BoxCalls:
    """Answers what Harbor's environment asks of the box of one trial. `failed`: why the box was lost, or not built.

    A command that Harbor gave up, such as a verifier that takes too long, ends with the box; this is no failure.
    """

    box: TaskBox
    failed: UnfitTask | SandboxError | None = None
    _closed: int = field(default=0, init=False)

    async def answer_call(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call. Raises `OpenClawError`, `ValueError`."""
        self._closed += asked["box"] in ("move", "close")
        closed = self._closed
        try:
            return await self._take_call(asked)
        except SandboxError as error:
            is_lost = isinstance(error, BoxLost) and closed == self._closed
            # A file that is missing is no failure.
            if is_lost or asked["box"] in ("open", "move"):
                self.failed = self.failed or error
            raise
        except UnfitTask as error:
            self.failed = error
            raise ForeignError(str(error)) from error

    async def _take_call(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        match asked["box"]:
            case "open":
                await self.box.open_box()
            case "move":
                await self.box.move_to_fresh()
            case "close":
                await self.box.close_box()
            case "put":
                await self.box.box.put(Path(asked["source"]), asked["target"])
            case "get":
                await self.box.box.get(asked["source"], Path(asked["target"]))
            case "run":
                return await self._run_command(asked)
            case other:
                raise ForeignError(f"a box cannot {other!r}")
        return {}

    async def _run_command(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        result = await self.box.box.run(
            asked["command"],
            cwd=asked["cwd"] or self.box.plan.cwd,
            env={**asked["env"], **self.box.fixed_variables},
            time_limit=asked["seconds"] or self.box.sandbox.lifetime,
        )
        return {
            "exit_code": result.exit_code,
            "stdout": result.stdout.decode("utf-8", "replace"),
            "stderr": result.stderr.decode("utf-8", "replace"),
            "timed_out": result.timed_out,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProcess:
    """Harbor's runner in a process of its own, and the boxes of its trials. `granted`: variables for tasks."""

    process: ForeignProcess
    sandbox: SandboxConfig
    granted: Mapping[str, str] = field(default_factory=dict)

    async def run_trial(
        self,
        folder: HarborFolder,
        agent: str,
        scratch: Path,
        limits: PlayLimits,
        access: Mapping[str, Any],
    ) -> PlayOutcome:
        """Let Harbor run a trial. Raises `UnfitTask` if no box can have the task.

        `scratch`: a folder for Harbor's files. `access`: to the policy, as for `foreign_process`.
        """
        if folder.settings.steps:
            raise UnfitTask(
                "it has several steps ([[steps]]), and Harbor's own runner would need one box for all: choose "
                "another --agent, and leave out --python"
            )
        calls = BoxCalls(box=TaskBox(folder=folder, sandbox=self.sandbox, granted=self.granted))
        settings = folder.settings
        agent_seconds = min(limits.seconds, settings.agent.timeout_sec or limits.seconds)
        whole = (
            agent_seconds
            + settings.verifier.timeout_sec
            + settings.environment.build_timeout_sec
            + _OTHER_SECONDS
        )
        body = {
            "agent": agent,
            "task_folder": str(folder.path.absolute()),
            "agent_seconds": agent_seconds,
            "folder": str(scratch),
            "seconds": limits.seconds,
            **access,
        }
        try:
            answer = await self.process.send_request("play", body, whole, calls.answer_call)
            outcome = parse_reward(json.dumps(answer.get("outcome")).encode())
        except (ForeignError, ValueError) as error:
            outcome = void_outcome(f"Harbor's runner failed: {error}")
        finally:
            await asyncio.shield(calls.box.close_box())
        if isinstance(calls.failed, UnfitTask):
            raise calls.failed
        return (
            void_outcome(f"the box failed: {calls.failed}") if calls.failed is not None else outcome
        )


@dataclass(slots=True, kw_only=True)
class TrialRunner:
    """Plays episodes by an agent of Harbor. A failure that the agent did not cause is void."""

    agent: str
    trials: TrialProcess

    def open_runner(self, folder: str) -> None:
        """Use the folder of the run for the process."""
        self.trials.process.use_folder(folder)

    async def close_runner(self) -> None:
        """End the process."""
        await self.trials.process.close()

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        """Play an episode as a trial."""
        access = {"base_url": ticket.base_url, "api_key": ticket.api_key, "model": ticket.model}
        await asyncio.to_thread(Path(folder).mkdir, 0o700)
        try:
            loaded = load_folder(Path(task.data["folder"]))
            return await self.trials.run_trial(loaded, self.agent, Path(folder), limits, access)
        except UnfitTask as error:
            return void_outcome(f"the task cannot be played here: {error}")


@dataclass(slots=True, kw_only=True)
class TrialSource:
    """Tasks of a folder, checked by Harbor's own agents `oracle` and `nop`. `access`: to its Python."""

    top: Path
    access: LibraryAccess
    trials: TrialProcess
    held_out_share: float = 0.0
    name: str = "harbor"

    def load_tasks(self) -> list[EnvironmentTask]:
        """Return the tasks of the folder. Raises `ConfigError`, also if Harbor is not installed."""
        tasks = load_tasks_below(self.top, self.held_out_share)
        asyncio.run(self._ensure_library())
        return tasks

    async def _ensure_library(self) -> None:
        folder = new_scratch_folder("tasks")
        await asyncio.to_thread(Path(folder).mkdir, 0o700)
        process = self.access.make_process()
        process.use_folder(folder)
        try:
            await process.send_request("hello", {}, _START_SECONDS)
        except ForeignError as error:
            raise self.access.explain_error(error) from None
        finally:
            await process.close()
            await asyncio.to_thread(remove_leftovers, folder)

    def open_source(self, folder: str) -> None:
        """Use the folder of the checks for the process."""
        self.trials.process.use_folder(folder)

    async def close_source(self) -> None:
        """End the process."""
        await self.trials.process.close()

    async def check_task(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits
    ) -> TaskFitness:
        """Let Harbor solve the task with its own solution, and do nothing."""

        async def attempt(loaded: HarborFolder, name: str, scratch: Path) -> PlayOutcome:
            await asyncio.to_thread(scratch.mkdir, 0o700)
            return await self.trials.run_trial(loaded, name, scratch, limits, {})

        return await check_folder(task, folder, attempt)
