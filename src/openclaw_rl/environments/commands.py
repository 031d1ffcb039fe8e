"""`openclaw-rl env`: check the tasks of a source, and run them at the gateway of a home."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.common.printable import echo_error
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.environments.episode_client import EpisodeClient, open_session
from openclaw_rl.environments.leftovers import remove_leftovers
from openclaw_rl.environments.reaper import reap_leases, start_reaper
from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.run_loop import EpisodeLoop, gather_tasks
from openclaw_rl.environments.run_plan import RunPlan, new_run_name, record_run
from openclaw_rl.environments.run_report import RunProgress, RunSummary
from openclaw_rl.environments.runner_lease import EpisodeLease, LeaseFolder, hold_leases
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.task_checks import CheckedTasks, CheckFile, sort_by_check
from openclaw_rl.environments.types import (
    BuildingSource,
    EnvironmentTask,
    PlayLimits,
    SharingSource,
    TaskBuild,
    TaskFitness,
    TaskSource,
)
from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.sandbox.package_settings import read_package_sources

GROUP_METHOD = "groups"
"""`train.method` that trains on episodes."""
# Tasks that an error names.
_NAMED = 3
# That a gateway may take to end the episodes of earlier runners.
_GATEWAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `env run`. `unchecked`: play tasks of the train split that were never checked."""

    name: str
    split: Literal["train", "held_out", "all"]
    group_size: int
    parallel: int
    epochs: int
    seed: int
    limits: PlayLimits
    unchecked: bool


def run_environment(
    home: Path, key: str, request: SourceRequest, options: RunOptions
) -> RunSummary:
    """Play the tasks of a source at the gateway that runs on the home, and return what became of the episodes.

    Raises `ConfigError` for a request that does not fit, `OpenClawError` if no gateway answers, `KeyboardInterrupt` for
    SIGINT and SIGTERM; by then no process, folder or running episode is left.
    """
    kind = find_source(request)
    runner = kind.make_runner(request)
    source = kind.make_source(request)
    address = running_address(home)
    if address is None:
        raise OpenClawError(
            f"no gateway runs on {home}. Start one with `openclaw-rl up --method groups`, or name its --home"
        )
    if options.split != "held_out" and address.method not in ("", GROUP_METHOD):
        echo_error(
            f"note: the system on {home} trains with {address.method}, which learns nothing from outcomes of episodes. "
            f"To train on them, start it with --method {GROUP_METHOD}"
        )
    tasks = _choose_tasks(home, source, request, options)
    plan = RunPlan(
        name=options.name,
        tasks=tasks,
        group_size=options.group_size,
        epochs=options.epochs,
        seed=options.seed,
    )
    console = TerminalConsole(stderr=True)

    async def play(leases: LeaseFolder, progress: RunProgress) -> None:
        async with open_session(key) as http:
            loop = EpisodeLoop(
                plan=plan,
                runner=runner,
                client=EpisodeClient(http, address.url),
                leases=leases,
                limits=options.limits,
                parallel=options.parallel,
                gateway_pid=lambda: getattr(running_address(home), "pid", None),
                on_result=progress.add_result,
            )
            await _until_signal(loop.play_all(continued=continued))

    _clean_up_earlier(home, key)
    with hold_leases(home, plan.name) as leases, start_reaper(home, plan.name, key):
        continued = record_run(home, plan, _settings_of(request))
        echo_error(
            f"run {plan.name}: {plan.count_episodes()} episodes of {len(tasks)} tasks"
            + (", continued" if continued else "")
        )
        with RunProgress(plan.count_episodes(), plan.group_size, console) as progress:
            try:
                asyncio.run(play(leases, progress))
            except KeyboardInterrupt:
                echo_error(
                    f"interrupted; the same command with --run {plan.name} continues the run"
                )
                raise
    return progress.summary


def _clean_up_earlier(home: Path, key: str) -> None:
    """Clean up after runners that were killed. A gateway that runs, but does not answer, is asked for some seconds."""
    note = reap_leases(home, key, seconds=_GATEWAY_SECONDS if running_address(home) else 0.0)
    if note:
        echo_error(f"note: {note}")


def _settings_of(request: SourceRequest) -> dict[str, object]:
    """Return what may not change when a run is continued, besides its tasks. Existing paths are made absolute."""
    argument, mark, query = request.argument.partition("?")
    identity = {
        "argument": f"{_absolute_path(argument)}{mark}{query}",
        "python": _absolute_path(request.python or ""),
        "agent": request.agent,
        "box": request.box,
        "shown": list(request.shown),
    }
    if request.source == "tools":
        config = Path(request.argument) if request.argument else request.tools_config
        if config is not None:
            identity["tools_config"] = hashlib.sha256(config.read_bytes()).hexdigest()
    present = {name: value for name, value in identity.items() if value}
    return {"source": request.source, "command": list(request.command), **present}


def _absolute_path(word: str) -> str:
    file, at, task = word.partition("@")
    return f"{Path(file).absolute()}{at}{task}" if file and Path(file).exists() else word


def _print_check_notes(checked: CheckedTasks, source: str) -> None:
    if checked.unchecked:
        echo_error(
            f"note: {len(checked.unchecked)} tasks were not checked: a verifier that is broken is not noticed"
        )
    if checked.unfit:
        listed = _name_some([f"{one.task} ({one.reason})" for one in checked.unfit])
        echo_error(
            f"note: {len(checked.unfit)} tasks are left out, because their check failed: {listed}. "
            f"Once that is mended, check them again with `openclaw-rl env check {source} ...`"
        )


def _unchecked_error(checked: CheckedTasks, count: int, source: str) -> ConfigError:
    named = _name_some([task.id for task in checked.unchecked])
    return ConfigError(
        f"{len(checked.unchecked)} of {count} tasks were not checked on this machine: {named}. Check them with "
        f"`openclaw-rl env check {source} ...`, or train on them nevertheless with --unchecked"
    )


def note_empty_split(tasks: Sequence[EnvironmentTask], share: float) -> None:
    """Say so if a share of the tasks was to be held out, and none is, or nothing else is left."""
    if not share or not tasks:
        return
    held_out = sum(task.split == "held_out" for task in tasks)
    if held_out == 0:
        echo_error(
            f"warning: --held-out {share:g} holds out none of {len(tasks)} tasks: whether a task is, its digest "
            "decides, and with few tasks none may be. Nothing will measure what was learned. Raise the share, or set "
            "the split of single tasks to held_out"
        )
    elif held_out == len(tasks):
        echo_error(
            f"warning: --held-out {share:g} holds out all of {len(tasks)} tasks: none is left to train on. Lower the "
            "share, or set the split of single tasks to train"
        )


def _choose_tasks(
    home: Path, source: TaskSource, request: SourceRequest, options: RunOptions
) -> list[EnvironmentTask]:
    """Return the tasks of the split. Those of the train split must have been found fit, unless `unchecked`."""
    everything = list(source.load_tasks())
    note_empty_split(everything, request.held_out_share)
    tasks = [task for task in everything if options.split in ("all", task.split)]
    if not tasks:
        raise ConfigError(
            f"no task to play in the split {options.split} of {source.name}: {len(everything)} are in the other. Set "
            "the split of tasks, or choose another share with --held-out"
        )
    trained_on = [task for task in tasks if task.split == "train"]
    checked = sort_by_check(trained_on, CheckFile(home, source.name).read_checks())
    if checked.unchecked and not options.unchecked:
        raise _unchecked_error(checked, len(tasks), source.name)
    _print_check_notes(checked, source.name)
    unfit = {one.digest for one in checked.unfit}
    chosen = [task for task in tasks if task.split == "held_out" or task.digest not in unfit]
    if not chosen:
        raise ConfigError(
            f"no task to play in the split {options.split} of {source.name}: {len(checked.unfit)} unfit"
        )
    return chosen


def count_tasks(request: SourceRequest) -> int:
    """Return the number of tasks of a source. Raises `ConfigError` if it or its agent cannot be made here."""
    kind = find_source(request)
    kind.make_runner(request)
    return sum(1 for _ in kind.make_source(request).load_tasks())


def build_environment(
    request: SourceRequest,
    variables: Mapping[str, str],
    parallel: int,
    note: Callable[[str, str], None],
    seen: Callable[[TaskBuild], None],
) -> list[TaskBuild]:
    """Build the roots of the tasks of a source. `note`: gets the id of a task and a step of it, in words.

    `variables`: the environment of this program, with the settings of package managers. Raises `ConfigError`.
    """
    request = replace(request, packages=read_package_sources(variables))
    source = find_source(request).make_source(request)
    if not isinstance(source, BuildingSource):
        raise ConfigError(
            f"{request.source} has nothing to build: expected task folders, e.g. `harbor:tasks/terminal`"
        )
    waiting = iter(list(source.load_tasks()))
    results = list[TaskBuild]()

    async def build_next() -> None:
        for task in waiting:
            result = await source.build_task(task, partial(note, task.id))
            seen(result)
            results.append(result)

    asyncio.run(_until_signal(gather_tasks(build_next() for _ in range(parallel))))
    return results


def check_environment(
    home: Path,
    key: str,
    request: SourceRequest,
    limits: PlayLimits,
    parallel: int,
    seen: Callable[[TaskFitness], None],
) -> list[TaskFitness]:
    """Check every task of a source on this machine and keep the results in the home. Raises `ConfigError`."""
    source = find_source(request).make_source(request)
    tasks = list(source.load_tasks())
    note_empty_split(tasks, request.held_out_share)
    checks = CheckFile(home, source.name)
    waiting = iter(tasks)
    results = list[TaskFitness]()

    async def check_next(leases: LeaseFolder) -> None:
        for task in waiting:
            lease = EpisodeLease(episode=f"check-{task.digest}", folder=new_scratch_folder("check"))
            leases.add_lease(lease)
            try:
                fitness = await source.check_task(task, lease.folder, limits)
            finally:
                if await asyncio.shield(asyncio.to_thread(remove_leftovers, lease.folder)):
                    leases.remove_lease(lease.episode)
            if fitness.checkable:
                checks.add_check(fitness)
            seen(fitness)
            results.append(fitness)

    async def check_all(leases: LeaseFolder) -> None:
        async with _shared_checks(source, leases):
            await _until_signal(gather_tasks(check_next(leases) for _ in range(parallel)))

    _clean_up_earlier(home, key)
    name = new_run_name()
    with hold_leases(home, name) as leases, start_reaper(home, name, key):
        asyncio.run(check_all(leases))
    return results


@contextlib.asynccontextmanager
async def _shared_checks(source: TaskSource, leases: LeaseFolder) -> AsyncIterator[None]:
    """Keep what the checks of a source share within the block; no process or folder of it is left."""
    if not isinstance(source, SharingSource):
        yield
        return
    shared = EpisodeLease(episode="check-shared", folder=new_scratch_folder("checks"))
    leases.add_lease(shared)
    await asyncio.to_thread(Path(shared.folder).mkdir, 0o700)
    source.open_source(shared.folder)
    try:
        yield
    finally:
        await asyncio.shield(source.close_source())
        if await asyncio.to_thread(remove_leftovers, shared.folder):
            leases.remove_lease(shared.episode)


async def _until_signal(work: Awaitable[None]) -> None:
    """Wait for the work. SIGINT and SIGTERM cancel it, and raise `KeyboardInterrupt` once it has cleaned up."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if task.cancelled():
            raise KeyboardInterrupt
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )
