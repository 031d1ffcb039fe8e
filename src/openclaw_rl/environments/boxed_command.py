"""The source `command` with `--box`: each episode's program runs in a box, with the gateway as its only network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.environments.box_program import BoxProgram
from openclaw_rl.environments.command_source import FolderRunner, read_outcome, write_task
from openclaw_rl.environments.program import ProgramEnd
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
    void_outcome,
)
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import WORK_FOLDER, Box, BoxRoot, CommandResult
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.settings.schema_sandbox import SandboxConfig

_TASK = f"{WORK_FOLDER}/task.json"
_REWARD = f"{WORK_FOLDER}/reward.json"
# What a shell adds to the number of a signal, and the largest such number.
_SIGNALS = 128
_LAST_SIGNAL = 64
_LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxedCommandRunner(FolderRunner):
    """Runs a program for each episode, in a box of its own. `granted`: further environment variables."""

    program: BoxProgram
    sandbox: SandboxConfig
    granted: Mapping[str, str] = field(default_factory=dict)

    async def run_in_folder(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits, ticket: EpisodeTicket | None
    ) -> PlayOutcome:
        """Run the program and return its outcome. Without a ticket, its box has no network.

        Raises `SandboxError` if no box can be opened; what goes wrong in an open one makes the outcome void.
        """
        await asyncio.to_thread(write_task, Path(folder, "task.json"), task)
        access = self.program.access_with(ticket)
        box = make_box(self.sandbox, BoxRoot(gateway=access.gateway, read_only=access.shown))
        try:
            await box.open()
            return await self._run_in_box(box, folder, limits, ticket)
        finally:
            await asyncio.shield(box.close())

    async def _run_in_box(
        self, box: Box, folder: str, limits: PlayLimits, ticket: EpisodeTicket | None
    ) -> PlayOutcome:
        env = {
            **self.granted,
            "TASK_FILE": _TASK,
            "REWARD_FILE": _REWARD,
            "EPISODE_FOLDER": WORK_FOLDER,
        }
        reward = Path(folder, "reward.json")
        try:
            await box.put(Path(folder, "task.json"), _TASK)
            result = await self.program.run_in(
                box, ticket, cwd=WORK_FOLDER, env=env, seconds=limits.seconds
            )
            await _take_reward(box, reward)
        except SandboxError as error:
            return void_outcome(str(error))
        return read_outcome(_end_of(result), reward, limits)


async def _take_reward(box: Box, to: Path) -> None:
    """Copy the reward out of the box, if there is one. Raises `SandboxError` if it cannot be copied."""
    look = await box.run(f"[ -e {_REWARD} ] || [ -L {_REWARD} ]", time_limit=_LOOK_SECONDS)
    if look.timed_out:
        raise SandboxError(f"{_REWARD} was not looked for within {_LOOK_SECONDS:g} s")
    if look.exit_code == 0:
        await box.get(_REWARD, to)
        if not await asyncio.to_thread(to.is_file):
            raise SandboxError(f"{_REWARD} is not a plain file")


def _end_of(result: CommandResult) -> ProgramEnd:
    code = None if result.timed_out else result.exit_code
    if code is not None and _SIGNALS < code <= _SIGNALS + _LAST_SIGNAL:
        code = _SIGNALS - code
    return ProgramEnd(code=code, output=(result.stdout + result.stderr).decode(errors="replace"))
