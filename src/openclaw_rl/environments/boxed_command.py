"""The source `command` with `--box`: each episode's program runs in a box, with the gateway as its only network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.environments.box_program import BoxProgram
from openclaw_rl.environments.command_source import read_outcome, write_task
from openclaw_rl.environments.program import ProgramEnd
from openclaw_rl.environments.types import EnvironmentTask, EpisodeTicket, PlayLimits, PlayOutcome
from openclaw_rl.errors import BoxLost, SandboxError
from openclaw_rl.sandbox.box import WORK_FOLDER, Box, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_TASK, _REWARD = f"{WORK_FOLDER}/task.json", f"{WORK_FOLDER}/reward.json"
_SIGNALS = 128  # what a shell adds to the number of a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxedCommandRunner:
    """Runs a program for each episode, in a box of its own. `granted`: further environment variables."""

    program: BoxProgram
    sandbox: SandboxConfig
    granted: Mapping[str, str] = field(default_factory=dict)

    def open_runner(self, folder: str) -> None:
        """Do nothing: the episodes share nothing."""

    async def close_runner(self) -> None:
        """Do nothing."""

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        """Run the program with the ticket and return its outcome."""
        return await self.run_in_folder(task, folder, limits, ticket)

    async def run_in_folder(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits, ticket: EpisodeTicket | None
    ) -> PlayOutcome:
        """Run the program and return its outcome. Without a ticket, its box has no network. Raises `SandboxError`."""
        await asyncio.to_thread(write_task, Path(folder, "task.json"), task)
        access = self.program.access_with(ticket)
        box = make_box(self.sandbox, BoxRoot(gateway=access.gateway, read_only=access.shown))
        try:
            await box.open()
            await box.put(Path(folder, "task.json"), _TASK)
            env = {**self.granted, "TASK_FILE": _TASK, "REWARD_FILE": _REWARD, "EPISODE_FOLDER": WORK_FOLDER}
            result = await self.program.run_in(box, ticket, cwd=WORK_FOLDER, env=env, seconds=limits.seconds)
            reward = Path(folder, "reward.json")
            await _take_reward(box, reward)
        finally:
            await asyncio.shield(box.close())
        return read_outcome(_end_of(result), reward, limits)


async def _take_reward(box: Box, to: Path) -> None:
    """Copy the reward out of the box, if there is one. Raises `BoxLost`."""
    try:
        await box.get(_REWARD, to)
    except BoxLost:
        raise
    except SandboxError:  # no such file
        return


def _end_of(result: CommandResult) -> ProgramEnd:
    code = None if result.timed_out else result.exit_code
    code = _SIGNALS - code if code is not None and code > _SIGNALS else code
    return ProgramEnd(code=code, output=(result.stdout + result.stderr).decode(errors="replace"))
