"""`openclaw-rl env`: tasks of environments, their checks, and episodes at the running gateway."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.load_config import load_running_config
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import Seconds, home_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from openclaw_rl.environments.registry import SourceRequest
    from openclaw_rl.environments.types import TaskBuild, TaskFitness
    from openclaw_rl.settings.load import Config


def task_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--env",
            "granted",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Variable for the programs.",
        ),
        click.option(
            "--parallel",
            type=click.IntRange(1, 1024),
            metavar="N",
            help="Programs at the same time. [default: rollout.parallel_envs]",
        ),
        click.option(
            "--limit-seconds",
            type=Seconds(),
            default=600.0,
            show_default=True,
            help="Limit of a program.",
        ),
        click.option(
            "--held-out",
            type=click.FloatRange(0, 1),
            default=0.0,
            metavar="SHARE",
            help="Share of the tasks without a split that is held out.",
        ),
        click.option(
            "--box",
            is_flag=True,
            help="Run the programs in boxes, with the gateway as their only network.",
        ),
        click.option(
            "--show",
            "shown",
            multiple=True,
            metavar="PATH",
            help="File or folder that a program in a box can read.",
        ),
        click.option("--tasks", metavar="FILE", help="Tasks: one JSON object per line."),
        click.option(
            "--python",
            metavar="FILE",
            help="Python with the libraries of the environment. [default: this one]",
        ),
    ):
        function = option(function)
    return function


@click.group("env")
def environment_commands() -> None:
    """Let programs work on tasks with the model: environments."""


@environment_commands.command("list")
def list_sources() -> None:
    """List the sources of tasks."""
    from openclaw_rl.environments import registry

    for name, summary in registry.list_sources():
        echo(f"{name}: {summary}")


@environment_commands.command("check")
@click.argument("source")
@click.option("--oracle", metavar="COMMAND", help="Program that solves a task.")
@click.option("--nop", metavar="COMMAND", help="Program that does nothing, and is scored.")
@task_options
@home_options
def check_tasks(source: str, oracle: str | None, nop: str | None, **options: Any) -> None:
    """Check that each task can be solved here, and is not solved by doing nothing.

    The results are kept in the home. `env run` trains on no task that was not checked.
    """
    from openclaw_rl.environments.commands import check_environment
    from openclaw_rl.environments.types import PlayLimits
    from openclaw_rl.supervisor.home_folder import prepare_home

    programs = {"oracle": _split_command("--oracle", oracle), "nop": _split_command("--nop", nop)}
    selected = take_task_options(options)
    config = load_running_config(**options)
    request = make_request(source, selected, config, **programs)
    prepare_home(config)

    parallel = selected["parallel"] or config.rollout.parallel_envs
    limits = PlayLimits(seconds=selected["limit_seconds"])
    try:
        results = check_environment(
            config.home_dir, owner_key(config), request, limits, parallel, show_fitness
        )
    except KeyboardInterrupt:
        sys.exit(130)
    unknown = sum(not fitness.checkable for fitness in results)
    unfit = sum(not fitness.fit for fitness in results) - unknown
    echo(f"{len(results)} tasks, {unfit} unfit" + (f", {unknown} not checked" if unknown else ""))
    if unknown:
        echo("Tasks that were not checked are trained on only with `env run --unchecked`", err=True)
    sys.exit(1 if unfit or unknown else 0)


@environment_commands.command("build")
@click.argument("source")
@click.option("--env", "granted", multiple=True, metavar="NAME[=VALUE]", help="Variable for tasks.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Builds at the same time.",
)
@home_options
def build_tasks(source: str, granted: tuple[str, ...], parallel: int, **options: Any) -> None:
    """Build what tasks need that this machine does not have, once, with a network.

    The commands of the tasks run in boxes, as root, and reach servers of the network, but nothing of this machine.
    """
    from openclaw_rl.environments.commands import build_environment
    from openclaw_rl.settings.load import foreign_environment

    config = load_running_config(**options)
    nothing = {"python": None, "tasks": None, "held_out": 0.0, "box": False, "shown": ()}
    request = make_request(source, {**nothing, "granted": granted}, config)
    try:
        results = build_environment(
            request,
            foreign_environment({}, loads_models=True),
            parallel,
            lambda task, step: echo(f"{task}: {step}", err=True),
            show_build,
        )
    except KeyboardInterrupt:
        sys.exit(130)
    failed = sum(result.state.is_failure for result in results)
    echo(f"{len(results)} tasks, {failed} cannot be built")
    sys.exit(1 if failed else 0)


@environment_commands.command("run")
@click.argument("source")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--group",
    "group_size",
    type=click.IntRange(2, 256),
    default=8,
    show_default=True,
    metavar="N",
    help="Episodes of a task whose rewards are compared.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "held_out", "all"]),
    default="train",
    show_default=True,
    help="Tasks to play.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Groups of each task.",
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    metavar="N",
    help="Replies that an episode can get. [default: rollout.episode_steps]",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the order of tasks.",
)
@click.option(
    "--run",
    "name",
    metavar="NAME",
    help="Name of the run; a run of this name that was interrupted is continued.",
)
@click.option("--agent", metavar="NAME", help="Agent that plays, where a source has several.")
@click.option("--unchecked", is_flag=True, help="Train on tasks that were not checked, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@task_options
@home_options
def run_tasks(
    source: str,
    command: tuple[str, ...],
    group_size: int,
    split: Any,
    epochs: int,
    max_steps: int | None,
    seed: int,
    name: str | None,
    agent: str | None,
    unchecked: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Play tasks as episodes at the running gateway. The program follows `--`.

    Example: `openclaw-rl env run command --tasks tasks.jsonl -- python my_agent.py`.
    """
    from openclaw_rl.common.logging_metrics import setup_logging
    from openclaw_rl.common.terminal import TerminalConsole, print_json
    from openclaw_rl.environments.commands import RunOptions, run_environment
    from openclaw_rl.environments.run_plan import check_run_name, new_run_name
    from openclaw_rl.environments.run_report import print_summary
    from openclaw_rl.environments.types import PlayLimits

    selected = take_task_options(options)
    config = load_running_config(**options)
    request = make_request(source, selected, config, command=command, agent=agent)
    setup_logging("env", config.logs_dir if config.home_dir.exists() else None, "warning")
    chosen = RunOptions(
        name=check_run_name(name) if name else new_run_name(),
        split=split,
        group_size=group_size,
        parallel=selected["parallel"] or config.rollout.parallel_envs,
        epochs=epochs,
        seed=seed,
        limits=PlayLimits(
            seconds=selected["limit_seconds"], replies=max_steps or config.rollout.episode_steps
        ),
        unchecked=unchecked,
    )
    try:
        summary = run_environment(config.home_dir, owner_key(config), request, chosen)
    except KeyboardInterrupt:
        sys.exit(130)
    if as_json:
        print_json({"run": chosen.name} | summary.to_json())
    else:
        print_summary(TerminalConsole(), summary)
    sys.exit(0 if summary.done else 1)


def _split_command(option: str, text: str | None) -> list[str]:
    from openclaw_rl.errors import ConfigError

    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise ConfigError(
            f"{option}: a quotation of the command does not end ({error}): {text}"
        ) from None


def show_fitness(fitness: TaskFitness) -> None:
    """Print the result of a check."""
    problem = "unfit" if fitness.checkable else "not checked"
    echo(f"{fitness.task}: {'fit' if fitness.fit else f'{problem}: {fitness.reason}'}")


def show_build(result: TaskBuild) -> None:
    """Print the end of a build."""
    message = f": {result.message}" if result.message else ""
    echo(f"{result.task}: {result.state.value}{message}")


def owner_key(config: Config) -> str:
    """Return the API key; empty if no gateway has run on the home yet, so that there are no episodes either."""
    from openclaw_rl.errors import OpenClawError
    from openclaw_rl.supervisor.supervisor import read_key

    try:
        return read_key(config)
    except OpenClawError:
        return ""


def take_task_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `task_options` out of `options`."""
    names = ("tasks", "held_out", "limit_seconds", "parallel", "granted", "python", "box", "shown")
    return {name: options.pop(name) for name in names}


def make_request(
    source: str, selected: dict[str, Any], config: Config, **more: Any
) -> SourceRequest:
    """Return the request for SOURCE: a name or name:argument. `selected`: of `take_task_options`."""
    from pathlib import Path

    from openclaw_rl.environments.registry import SourceRequest
    from openclaw_rl.errors import ConfigError
    from openclaw_rl.settings.load import foreign_environment

    ours = foreign_environment({}, loads_models=True)
    granted = {}
    for word in selected["granted"]:
        name, has_value, value = word.partition("=")
        if not has_value and name not in ours:
            raise ConfigError(
                f"--env {name}: no such variable here, or one of this program. Give it as {name}=VALUE"
            )
        granted[name] = value if has_value else ours[name]
    kind, _, argument = source.partition(":")
    return SourceRequest(
        source=kind,
        argument=argument,
        python=selected["python"],
        sandbox=config.sandbox,
        tools_config=Path(config.rollout.tools_config) if config.rollout.tools_config else None,
        tasks=Path(selected["tasks"]) if selected["tasks"] else None,
        held_out_share=selected["held_out"],
        box=selected["box"],
        shown=selected["shown"],
        granted=granted,
        search_path=ours.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
        **more,
    )
