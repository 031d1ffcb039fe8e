"""Builds the roots of the tasks that a box cannot have by the programs of this machine alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.environments.sources.harbor.compose_file import ComposeError
from openclaw_rl.environments.sources.harbor.dockerfile import DockerfileError
from openclaw_rl.environments.sources.harbor.task_box import TaskBox, UnfitTask
from openclaw_rl.environments.sources.harbor.task_folder import HarborFolder, load_folder
from openclaw_rl.environments.sources.harbor.task_root import (
    RootBuildFailed,
    TaskRoots,
    installs_for_tests,
    needs_stand_in,
)
from openclaw_rl.environments.sources.harbor.task_settings import list_refusals
from openclaw_rl.environments.types import BuildState, EnvironmentTask, TaskBuild
from openclaw_rl.errors import ConfigError, SandboxError
from openclaw_rl.settings.schema_sandbox import SandboxConfig

# shutil.Error of a copy is an OSError, and text in another encoding a ValueError.
_FAILURES = (
    RootBuildFailed,
    DockerfileError,
    ComposeError,
    SandboxError,
    ConfigError,
    OSError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBuilder:
    """Builds roots. `sources`: of packages. `granted`: variables that tasks may ask for."""

    sandbox: SandboxConfig
    sources: Mapping[str, list[str]] = field(default_factory=dict)
    granted: Mapping[str, str] = field(default_factory=dict)

    async def build(self, task: EnvironmentTask, note: Callable[[str], None]) -> TaskBuild:
        """Build the root of a task, unless it is there or not needed. `note`: gets each step in words.

        A task that cannot be read, or whose files cannot be written, has failed with the reason.
        """
        try:
            return await self._build(task, note)
        except _FAILURES as error:
            return TaskBuild(task=task.id, state=BuildState.FAILED, message=str(error))

    async def _build(self, task: EnvironmentTask, note: Callable[[str], None]) -> TaskBuild:
        folder = await asyncio.to_thread(load_folder, Path(task.data["folder"]))
        reasons = list_refusals(folder.settings, folder.path)
        if reasons:
            return TaskBuild(task=task.id, state=BuildState.UNFIT, message="; ".join(reasons))
        roots = TaskRoots(sandbox=self.sandbox, sources=self.sources)
        root = await asyncio.to_thread(roots.find_root, folder)
        state = BuildState.PRESENT
        if root is None and not await self._needs_build(folder):
            return TaskBuild(task=task.id, state=BuildState.NOT_NEEDED)
        if root is None:
            state = BuildState.BUILT
            root = await roots.build_root(folder, note)
        return TaskBuild(task=task.id, state=state, message=root.stand_in)

    async def _needs_build(self, folder: HarborFolder) -> bool:
        """Return whether a box without a root of its own cannot have the task."""
        if installs_for_tests(folder) or needs_stand_in(folder):
            return True
        try:
            box = TaskBox(folder=folder, sandbox=self.sandbox, granted=self.granted)
        except UnfitTask:
            return True
        try:
            await box.open_box()
        except UnfitTask:
            return True
        finally:
            await asyncio.shield(box.close_box())
        return False
