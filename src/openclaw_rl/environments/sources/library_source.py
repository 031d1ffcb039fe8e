"""Sources that are other people's libraries. Each runs unmodified under its own Python, by a program in `foreign/`.

Requests beside `play`, as JSON lines (`foreign_process`):

    {"id": 1, "tasks": {"name", "args", "start"}}        -> {"tasks": [{"id", "digest", "split"?, "data"}], "count"}
    {"id": 2, "check": {"task", "data", "seconds", "folder"}}   -> {"oracle", "nop", "reason", "checkable"}
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from openclaw_rl.environments.foreign_process import ForeignError, ForeignProcess, ForeignRunner
from openclaw_rl.environments.leftovers import remove_leftovers
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.task_file import split_by_digest
from openclaw_rl.environments.types import EnvironmentTask, PlayLimits, TaskFitness
from openclaw_rl.errors import ConfigError

_FOREIGN = Path(__file__).parents[1] / "foreign"
# For a data set that is downloaded.
_LOAD_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLibrary:
    """A library as a source. `program`: its file in `foreign/`. `requirement`: the words after `pip install`.

    `argument`: what follows the name of the source, for errors. `python`: which versions the library takes.
    `variables`: set for its process, unless others are granted.
    """

    name: str
    summary: str
    program: str
    requirement: str
    argument: str
    python: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryAccess:
    """How a library is reached. `python`: its interpreter; None: this one. The rest as for `CommandRunner`."""

    library: ForeignLibrary
    python: str | None
    search_path: str
    granted: Mapping[str, str] = field(default_factory=dict)

    def make_process(self) -> ForeignProcess:
        """Return the process of the library, not yet started. Raises `ConfigError` if there is no such Python."""
        program = shutil.which(self.python or sys.executable, path=self.search_path)
        if program is None:
            raise ConfigError(
                f"--python {self.python}: no such program. Expected a Python that has {self._words()}"
            )
        # Not resolved: a symbolic link is how a virtual environment's Python finds its packages.
        command = (str(Path(program).absolute()), str(_FOREIGN / self.library.program))
        return ForeignProcess(command, self.search_path, {**self.library.variables, **self.granted})

    def explain_error(self, error: ForeignError) -> ConfigError:
        """Return the error of a request as one of the configuration, with the line that installs what is missing."""
        python = self.python or sys.executable
        if error.missing_module is not None:
            return ConfigError(
                f"{python} has no module {error.missing_module}. Install it in an environment of its own (Python "
                f"{self.library.python}) and name its interpreter with --python: python -m pip install {self._words()}"
            )
        return ConfigError(f"{self.library.name}: {error}")

    def _words(self) -> str:
        return self.library.requirement


def parse_library_argument(library: ForeignLibrary, argument: str) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of `NAME?key=value&key=value`; values are JSON where they can be read as such.

    A name that is an existing path is made absolute. Raises `ConfigError` without a name.
    """
    name, _, query = argument.partition("?")
    if not name:
        raise ConfigError(
            f"{library.name}: nothing is named. Expected {library.name}:{library.argument}"
        )
    file, at, task = name.partition("@")
    may_be_path = "/" in file or file.endswith(".py")
    if may_be_path and Path(file).exists():
        name = f"{Path(file).absolute()}{at}{task}"
    pairs = parse_qsl(query, keep_blank_values=True)
    return name, {key: _parse_value(value) for key, value in pairs}


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class LibrarySource:
    """Tasks of a library. One process lists and checks them."""

    def __init__(self, access: LibraryAccess, argument: str, held_out_share: float = 0.0) -> None:
        """`argument`: as for `parse_library_argument`. `held_out_share`: of the tasks without a split."""
        self._access = access
        self._held_out_share = held_out_share
        self._asked, self._args = parse_library_argument(access.library, argument)
        self._process = access.make_process()

    @property
    def name(self) -> str:
        return self._access.library.name

    def load_tasks(self) -> list[EnvironmentTask]:
        """Start the library and return its tasks. Raises `ConfigError`, also if the library is not installed."""
        tasks = asyncio.run(self._list_tasks())
        if not tasks:
            raise ConfigError(f"{self.name}:{self._asked}: no tasks")
        seen: dict[str, str] = {}
        for task in tasks:
            if seen.setdefault(task.digest, task.id) != task.id:
                raise ConfigError(
                    f"{task.id}: has the same content as {seen[task.digest]}. Remove one of them"
                )
        return tasks

    async def _list_tasks(self) -> list[EnvironmentTask]:
        folder = new_scratch_folder("tasks")
        await asyncio.to_thread(Path(folder).mkdir, 0o700)
        process = self._access.make_process()
        process.use_folder(folder)
        tasks: list[EnvironmentTask] = []
        try:
            while True:
                body = {"name": self._asked, "args": self._args, "start": len(tasks)}
                page = await process.send_request("tasks", body, _LOAD_SECONDS)
                tasks += [self._make_task(row) for row in page["tasks"]]
                if len(tasks) >= page["count"] or not page["tasks"]:
                    return tasks
        except ForeignError as error:
            raise self._access.explain_error(error) from None
        finally:
            await process.close()
            remove_leftovers(folder)

    def _make_task(self, row: Mapping[str, Any]) -> EnvironmentTask:
        split = row.get("split") or split_by_digest(row["digest"], self._held_out_share)
        return EnvironmentTask(id=row["id"], digest=row["digest"], split=split, data=row["data"])

    def open_source(self, folder: str) -> None:
        """Prepare for checks."""
        self._process.use_folder(folder)

    async def close_source(self) -> None:
        """End the process of the checks."""
        await self._process.close()

    async def check_task(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits
    ) -> TaskFitness:
        """Let the library replay the answer, and do nothing. A failure of the library makes the task unfit."""
        body = {
            "task": task.id,
            "data": dict(task.data),
            "seconds": limits.seconds,
            "folder": folder,
        }
        try:
            # Several plays.
            reply = await self._process.send_request("check", body, limits.seconds * 4)
        except ForeignError as error:
            return TaskFitness(
                task=task.id, digest=task.digest, fit=False, reason=f"the check failed: {error}"
            )
        return TaskFitness(
            task=task.id,
            digest=task.digest,
            fit=not reply["reason"],
            reason=reply["reason"],
            oracle=reply.get("oracle"),
            nop=reply.get("nop"),
            checkable=reply.get("checkable", True),
        )


def make_library_runner(access: LibraryAccess) -> ForeignRunner:
    """Return the runner of a library's episodes. Raises `ConfigError` if there is no such Python."""
    return ForeignRunner(access.make_process())


LIBRARIES = (
    ForeignLibrary(
        name="verifiers",
        summary="environments of verifiers, e.g. verifiers:reasoning-gym?gym=leg_counting",
        program="verifiers_worker.py",
        requirement="'verifiers[rg]>=0.3.1,<0.4'",
        argument="NAME, the name of an installed environment or the path of its file",
        python="3.11 to 3.13",
    ),
    ForeignLibrary(
        name="verifiers-v1",
        summary="tasksets of verifiers 0.4, its second generation: verifiers-v1:NAME",
        program="verifiers_v1_worker.py",
        requirement="'verifiers>=0.4,<0.5'",
        argument="NAME, the name of an installed taskset or the path of its file",
        python="3.11 to 3.14",
    ),
    ForeignLibrary(
        name="browsergym",
        summary="web pages in a browser, e.g. browsergym:miniwob.click-test-2, or a folder of pages",
        program="browsergym_worker.py",
        requirement="'browsergym-miniwob>=0.14.3,<0.15' 'miniwob>=1.1,<2'",
        argument="TASK, e.g. miniwob.click-test-2, miniwob for all, or a folder such as tasks/web",
        python="3.10 to 3.12",
    ),
    ForeignLibrary(
        name="inspect",
        summary="tasks of Inspect, e.g. inspect:my_eval.py@my_task",
        program="inspect_worker.py",
        requirement="'inspect_ai>=0.3.285,<0.4' 'openai>=2'",
        argument="TASK, e.g. FILE.py, FILE.py@task, or PACKAGE/task",
        python="3.10 or newer",
    ),
    ForeignLibrary(
        name="openenv",
        summary="a running OpenEnv server on this machine, e.g. openenv:http://127.0.0.1:8001",
        program="openenv_worker.py",
        requirement="'openenv>=0.10,<0.11'",
        argument="URL, e.g. http://127.0.0.1:8001",
        python="3.10 or newer",
    ),
)
