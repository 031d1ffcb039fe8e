"""`openclaw-rl env train`: check the tasks of a source, start a system, play them, and train on them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.check_only import check_start
from openclaw_rl.cli.environments import (
    environment_commands,
    make_request,
    owner_key,
    show_fitness,
    take_task_options,
    task_options,
)
from openclaw_rl.cli.load_config import load_config, load_settings
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import FlagCommand, consent_option, settings_options

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config

# For the steps after the last episode.
_SETTLE_SECONDS = 3600.0


@environment_commands.command("train", cls=FlagCommand, shown=("model.", "engine.", "train."))
@click.argument("source")
@click.option("--group", "group_size", type=click.IntRange(2, 256), default=8, show_default=True, metavar="N",
              help="Episodes of a task whose rewards are compared.")  # fmt: skip
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Groups of each task.",
)
@click.option("--agent", metavar="NAME", help="Agent that plays, where a source has several.")
@task_options
@consent_option
@settings_options
def train_on_tasks(
    source: str, group_size: int, epochs: int, agent: str | None, yes: bool, **options: Any
) -> None:
    """Check the tasks, start a system, play them once, train on them, and end.

    It is `env check`, `up --method groups`, `env run` and the end of the system in one. Tasks that are unfit are left
    out. The home keeps the versions; `openclaw-rl serve --home HOME` serves the newest.
    """
    from openclaw_rl.common.gateway_address import running_address
    from openclaw_rl.common.terminal import TerminalConsole
    from openclaw_rl.environments.commands import (
        RunOptions,
        check_environment,
        count_tasks,
        run_environment,
    )
    from openclaw_rl.environments.run_plan import new_run_name
    from openclaw_rl.environments.run_report import print_summary
    from openclaw_rl.environments.types import PlayLimits
    from openclaw_rl.errors import ConfigError
    from openclaw_rl.supervisor.subprocess_system import SubprocessSystem
    from openclaw_rl.supervisor.supervisor import WORKERS, with_required_workers

    selected = take_task_options(options)
    config = load_group_config(**options)
    if running_address(config.home_dir) is not None:
        raise ConfigError(
            f"a system runs on {config.home_dir}: use `openclaw-rl env check` and `openclaw-rl env run` with it"
        )
    request = make_request(source, selected, config, agent=agent)
    limits = PlayLimits(seconds=selected["limit_seconds"], replies=config.rollout.episode_steps)
    parallel = selected["parallel"] or config.rollout.parallel_envs
    chosen = RunOptions(
        name=new_run_name(),
        split="train",
        group_size=group_size,
        parallel=parallel,
        epochs=epochs,
        seed=0,
        limits=limits,
        unchecked=False,
    )
    if config.run.check_only:
        check_start(
            load_settings(**(options | {"method": config.train.method})),
            with_required_workers(config, WORKERS),
            config=config,
            check_more=lambda: echo(f"{count_tasks(request)} tasks of {source}", err=True),
        )
        return
    system = SubprocessSystem(config, yes=yes)
    # Before the checks, which may take long.
    system.require_consent()
    try:
        results = check_environment(
            config.home_dir, owner_key(config), request, limits, parallel, show_fitness
        )
        if not any(fitness.fit for fitness in results):
            raise ConfigError(
                f"none of the {len(results)} tasks of {source} is fit to train on; the lines above say why"
            )
        with system:
            summary = run_environment(config.home_dir, system.api_key, request, chosen)
            version = system.wait_until_settled(timeout=_SETTLE_SECONDS)
    except KeyboardInterrupt:
        sys.exit(130)
    print_summary(TerminalConsole(), summary)
    echo(f"version {version} in {config.home_dir}")
    sys.exit(0 if summary.done else 1)


def load_group_config(**options: Any) -> Config:
    """Return the settings with `train.method: groups`. Raises `ConfigError` if another method is set anywhere."""
    from openclaw_rl.environments.commands import GROUP_METHOD
    from openclaw_rl.errors import ConfigError

    loaded = load_settings(**options)
    method = loaded.config.train.method
    key = "train.method"
    if key in loaded.sources and method != GROUP_METHOD:
        raise ConfigError(
            f"{loaded.sources[key]} is {method}, which learns nothing from outcomes of episodes. Expected "
            f"{GROUP_METHOD}, which is the default of `env train`: leave it out"
        )
    return load_config(**(options | {"method": GROUP_METHOD}), strict=True)
