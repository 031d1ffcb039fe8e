"""The source `command`: any program is an environment.

It runs in a new folder, with an environment that has nothing but what it needs. `OPENAI_BASE_URL`, `OPENAI_API_KEY` and
`OPENAI_MODEL` lead to the policy, `TASK_FILE` is the task as JSON. The result is the file `REWARD_FILE`, or the exit
status.
"""

from __future__ import annotations

import asyncio
import json
import math
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from openclaw_rl.common.http.proxy_rule import with_direct_hosts
from openclaw_rl.environments.leftovers import FOLDER_VARIABLE, remove_leftovers
from openclaw_rl.environments.program import ProgramEnd, run_program
from openclaw_rl.environments.reward_file import parse_reward, read_reward_file
from openclaw_rl.environments.task_file import read_task_file
from openclaw_rl.environments.types import (
    EnvironmentTask,
    EpisodeRunner,
    EpisodeTicket,
    PlayLimits,
    PlayOutcome,
    TaskFitness,
    void_outcome,
)
from openclaw_rl.errors import ConfigError


class FolderRunner(EpisodeRunner, Protocol):
    """Base of runners of separate programs, which also run without a policy, to check tasks."""

    def open_runner(self, folder: str) -> None:
        """Do nothing: the episodes share nothing."""
        return

    async def close_runner(self) -> None:
        """Do nothing."""
        return

    async def play_episode(
        self, task: EnvironmentTask, ticket: EpisodeTicket, folder: str, limits: PlayLimits
    ) -> PlayOutcome:
        """Run the program with the ticket and return its outcome."""
        return await self.run_in_folder(task, folder, limits, ticket)

    async def run_in_folder(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits, ticket: EpisodeTicket | None
    ) -> PlayOutcome:
        """Run the program and return its outcome. `folder`: as for `play_episode`. `ticket`: None for a check."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSource:
    """Tasks from a file, and the programs that check them.

    `oracle`, `nop`: the program that solves a task and the one that does nothing, with the same ways to give a reward
    as the program that is played; fields of the same names in a task come first. `make_runner`: returns what runs a
    command, in the conditions in which tasks are played; raises `ConfigError`.
    """

    tasks: Path
    held_out_share: float = 0.0
    oracle: Sequence[str] = ()
    nop: Sequence[str] = ()
    make_runner: Callable[[Sequence[str]], FolderRunner]
    name: str = "command"

    def load_tasks(self) -> list[EnvironmentTask]:
        """Return the tasks of the file. Raises `ConfigError`."""
        return read_task_file(self.tasks, self.held_out_share)

    async def check_task(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits
    ) -> TaskFitness:
        """Run oracle and nop. The task is fit if the oracle gets the field `best` (1) and nop less."""
        results: dict[str, PlayOutcome] = {}
        for name, default in (("oracle", self.oracle), ("nop", self.nop)):
            command = _command_of(task, name) or default
            if not command:
                reason = f"no {name}: set --{name} COMMAND, or the field {name!r} of the task"
                return replace(_fitness(task, reason, results), checkable=False)
            results[name] = await self.make_runner(command).run_in_folder(
                task, folder, limits, None
            )
            await asyncio.to_thread(remove_leftovers, folder)
        return _fitness(task, _unfit_reason(task, results), results)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRunner(FolderRunner):
    """Runs a program for each episode. `command`: from `resolve_command`."""

    command: Sequence[str]
    granted: Mapping[str, str] = field(default_factory=dict)
    search_path: str

    async def run_in_folder(
        self, task: EnvironmentTask, folder: str, limits: PlayLimits, ticket: EpisodeTicket | None
    ) -> PlayOutcome:
        """Make the folder, run the program there and return its outcome."""
        access = {} if ticket is None else ticket_variables(ticket, ticket.base_url)
        files = {"TASK_FILE": Path(folder, "task.json"), "REWARD_FILE": Path(folder, "reward.json")}
        named = {name: str(path) for name, path in files.items()}
        environment = {
            **plain_environment(folder, self.search_path, self.granted),
            **named,
            **access,
        }
        try:
            write_task(files["TASK_FILE"], task)
            end = await run_program(
                self.command, folder=folder, environment=environment, seconds=limits.seconds
            )
        except OSError as error:
            return void_outcome(f"the program cannot be started: {error}")
        return read_outcome(end, files["REWARD_FILE"], limits)


def ticket_variables(ticket: EpisodeTicket, url: str) -> dict[str, str]:
    """Return the variables with the way to the policy. `url`: of the gateway, as the program reaches it."""
    named = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": ticket.api_key, "OPENAI_MODEL": ticket.model}
    return named | {"EPISODE_ID": ticket.episode}


def plain_environment(folder: str, search_path: str, granted: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that works in `folder`: nothing of ours but what is granted."""
    ours = {"PATH": search_path, "LANG": "C.UTF-8", "HOME": folder, "TMPDIR": folder}
    return with_direct_hosts({**ours, **granted, FOLDER_VARIABLE: folder})


def read_outcome(end: ProgramEnd, reward_file: Path, limits: PlayLimits) -> PlayOutcome:
    """Return the outcome of a program: what it wrote, else what its end means.

    Without a file, exit status 0 is reward 1, and 1 or the time limit is reward 0: a policy that makes the program
    fail or dawdle has failed. Any other end is void.
    """
    summary = _summarise_end(end, limits)
    if end.code is not None and end.code < 0:
        return void_outcome(f"the program was ended by signal {-end.code}")
    try:
        written = read_reward_file(reward_file)
    except FileNotFoundError:
        return _outcome_of_status(end.code, summary)
    except OSError as error:
        return void_outcome(f"reward.json cannot be read: {error}")
    try:
        return parse_reward(written, None if end.code == 0 else summary)
    except ValueError as error:
        return void_outcome(f"reward.json: {error}")


def _outcome_of_status(code: int | None, summary: str) -> PlayOutcome:
    """Return the outcome of a program that wrote no reward. `code`: None at the time limit."""
    if code == 0:
        return PlayOutcome(status="done", reward=1.0, reason=summary)
    if code in (1, None):
        return PlayOutcome(status="done", reward=0.0, reason=summary)
    return void_outcome(f"no reward.json, and {summary}")


def _summarise_end(end: ProgramEnd, limits: PlayLimits) -> str:
    """Return how a program ended, with its last line unless it succeeded."""
    summary = f"exit status {end.code}"
    if end.code is None:
        summary = f"killed after {limits.seconds:g} s"
    if end.last_line and end.code != 0:
        summary += f": {end.last_line}"
    return summary


def resolve_command(command: Sequence[str], search_path: str) -> tuple[str, ...]:
    """Return the command for another working folder: the program is found, and words that name a file are absolute.

    Raises `ConfigError` if there is no such program.
    """
    program = shutil.which(command[0], path=search_path)
    if program is None:
        raise ConfigError(
            f"{command[0]}: no such program. Expected a program on PATH or a path to one"
        )
    # Not resolved: a symbolic link may be how a virtual environment's Python finds its packages.
    arguments = [str(Path(word).absolute()) if _is_file(word) else word for word in command[1:]]
    return str(Path(program).absolute()), *arguments


def write_task(task_file: Path, task: EnvironmentTask) -> None:
    """Write a task as JSON into a new folder."""
    task_file.parent.mkdir(mode=0o700)
    task_file.write_text(json.dumps({**task.data, "id": task.id}), encoding="utf-8")


def _is_file(word: str) -> bool:
    try:
        return Path(word).exists()
    except OSError:
        # E.g. longer than a name may be.
        return False


def _command_of(task: EnvironmentTask, name: str) -> list[str]:
    value = task.data.get(name)
    if value is None:
        return []
    try:
        command = shlex.split(value) if isinstance(value, str) else value
    except ValueError:
        # A quotation that does not end.
        command = None
    is_command = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not command or not is_command:
        raise ConfigError(
            f"task {task.id}: {name}: expected a command as a text or a list of texts, got {value!r}"
        )
    return list(command)


def _unfit_reason(task: EnvironmentTask, results: Mapping[str, PlayOutcome]) -> str | None:
    oracle = results["oracle"]
    nop = results["nop"]
    best = float(task.data.get("best", 1.0))
    for name, result in results.items():
        if result.status == "void":
            return f"{name}: {result.reason}"
    assert oracle.reward is not None
    assert nop.reward is not None
    if not math.isclose(oracle.reward, best):
        reason = f"the oracle got {oracle.reward:g}, not {best:g}"
        if oracle.reason:
            reason += f" ({oracle.reason})"
        return reason
    if nop.reward >= oracle.reward:
        return f"doing nothing got {nop.reward:g}, not less than the oracle"
    return None


def _fitness(
    task: EnvironmentTask, reason: str | None, results: Mapping[str, PlayOutcome]
) -> TaskFitness:
    oracle, nop = (results[name].reward if name in results else None for name in ("oracle", "nop"))
    return TaskFitness(
        task=task.id,
        digest=task.digest,
        fit=reason is None,
        reason=reason or "",
        oracle=oracle,
        nop=nop,
    )
