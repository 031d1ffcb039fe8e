"""The command line. Commands import their modules when they run, so that `--help` is fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl import __version__
from openclaw_rl.cli import environment_training  # noqa: F401 - it adds a command to the next
from openclaw_rl.cli.check_only import check_start
from openclaw_rl.cli.connect_feedback import add_feedback_commands
from openclaw_rl.cli.data import data_commands
from openclaw_rl.cli.environments import environment_commands
from openclaw_rl.cli.errors import describe_error, show_unknown_option, show_usage_error
from openclaw_rl.cli.fireworks import fireworks_commands
from openclaw_rl.cli.help_sections import SectionGroup
from openclaw_rl.cli.inspect_commands import inspect_commands
from openclaw_rl.cli.learned import show_learned
from openclaw_rl.cli.lessons import lesson_commands
from openclaw_rl.cli.load_config import (
    home_flag,
    load_config,
    load_running_config,
    load_settings,
    load_with_sources,
)
from openclaw_rl.cli.page import open_page
from openclaw_rl.cli.policies import policy_commands
from openclaw_rl.cli.recipes import make_method, run_evaluation
from openclaw_rl.cli.rollback import run_rollback
from openclaw_rl.cli.rollout import run_rollout_function, run_self_test
from openclaw_rl.cli.undo import run_undo
from openclaw_rl.common.printable import echo, echo_error
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.cli_options import (
    FlagCommand,
    Seconds,
    consent_option,
    home_options,
    settings_options,
)

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config, LoadedSettings


_STARTED_BY_PROGRAM = "openclaw_rl.started_by_program"


def _exit_with_parent(context: click.Context, _option: click.Parameter, parent: int | None) -> None:
    if parent is not None:
        from openclaw_rl.common.parent_death import die_with_parent

        context.meta[_STARTED_BY_PROGRAM] = True
        die_with_parent(parent)


_PARENT_OPTION: dict[str, Any] = {
    "type": int,
    "is_flag": False,
    "flag_value": 0,
    "hidden": True,
    "expose_value": False,
}
_with_parent_option = click.option("--with-parent", callback=_exit_with_parent, **_PARENT_OPTION)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


_SECTIONS = (
    (
        "Start here",
        ("up", "chat", "open", "status", "learned", "lessons", "undo", "doctor", "connect", "env"),
    ),
    ("One stage alone", ("serve", "collect", "judge", "train")),
    ("Look closer, and take back", ("inspect", "policies", "rollback", "evaluate")),
    ("Files and settings", ("data", "config", "key", "new-method")),
    ("Programs and services", ("rollout", "test-rollout", "fireworks")),
)
"""Title -> commands, as `--help` lists them."""


@click.group(
    cls=SectionGroup,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__)
def cli() -> None:
    """Serve a model and train it while you talk to it.

    `openclaw-rl up` serves a model behind an OpenAI-compatible API and trains it on your next messages.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerCommand:
    """A command that runs workers. `flags`: prefixes of the settings whose flags its help lists."""

    summary: str
    workers: Sequence[str]
    flags: Sequence[str]


_WORKER_COMMANDS: Mapping[str, _WorkerCommand] = {
    "up": _WorkerCommand(
        summary="Run serve, collect, judge and train, supervised.",
        workers=("engine", "gateway", "collect", "judge", "train"),
        flags=("model.", "serve.", "engine.", "judge.", "train.", "data."),
    ),
    "serve": _WorkerCommand(
        summary="Run only the serve stage: engine and gateway.",
        workers=("engine", "gateway"),
        flags=("model.", "serve.", "engine.", "data.export_dir"),
    ),
    "collect": _WorkerCommand(
        summary="Run only the collect stage: link reactions to turns.",
        workers=("collect",),
        flags=("data.export_dir",),
    ),
    "judge": _WorkerCommand(
        summary="Run only the judge stage: score turns that have a reaction.",
        workers=("judge",),
        flags=("judge.",),
    ),
    "train": _WorkerCommand(
        summary="Run only the train stage: train on judged turns.",
        workers=("train",),
        flags=("train.", "data.path", "data.watch_dir"),
    ),
}


def _add_worker_command(name: str, command: _WorkerCommand) -> None:
    @cli.command(name, cls=FlagCommand, shown=command.flags, help=command.summary)
    @consent_option
    @settings_options
    @_with_parent_option
    def run_workers(yes: bool, **options: Any) -> None:
        loaded = load_with_sources(command=name, workers=command.workers, strict=True, **options)
        _start_workers(loaded, command.workers, yes=yes)


for _name, _command in _WORKER_COMMANDS.items():
    _add_worker_command(_name, _command)


def _start_workers(loaded: LoadedSettings, workers: Sequence[str], *, yes: bool) -> None:
    from openclaw_rl.settings.sources_file import write_sources
    from openclaw_rl.supervisor.supervisor import supervise, with_required_workers
    from openclaw_rl.train.resume import resolve_base

    config = resolve_base(loaded.config)
    workers = with_required_workers(config, workers)
    if config.run.check_only:
        check_start(loaded, workers, config=config)
        return

    def announce() -> None:
        announce_start(config, workers)
        if "gateway" in workers:
            write_sources(config, loaded.sources)

    # What a program starts writes to a log, where no link belongs.
    is_log = click.get_current_context().meta.get(_STARTED_BY_PROGRAM, False)
    supervise(
        config,
        workers,
        yes=yes,
        announce=announce,
        on_page=lambda: None if is_log else announce_page(config),
    )


STARTER_NOTE = (
    "the starter is a toy that knows capitals, colours and sums. A real model: --model-path smollm2, "
    "a folder or a hub id"
)


def announce_start(config: Config, workers: Sequence[str]) -> None:
    """Print what starts, and which parts of it are experimental."""
    from openclaw_rl.common.assets import STARTER
    from openclaw_rl.settings.registry import experimental_parts, judge_spec

    # The gateway's first line says where it listens, once it does.
    if "gateway" in workers:
        echo(f"OpenClaw-RL {__version__}: {config.model.path} as {config.model.name!r}", err=True)
        if config.model.path == STARTER:
            echo(f"  {STARTER_NOTE}", err=True)
        echo(f"  home: {config.home_dir}", err=True)
        for command in ("key", "chat"):
            echo(f"  {command}: openclaw-rl {command}{home_flag(config)}", err=True)
    if "judge" in workers and (judge := judge_spec(config).describe(config)):
        echo(f"  judge: {judge}", err=True)
    for part in experimental_parts(config, workers):
        echo(f"  experimental: {part}, which never ran with its real counterpart", err=True)


def announce_page(config: Config) -> None:
    """Print a link to the page."""
    from openclaw_rl.cli.page import create_link

    echo(f"  page: {create_link(config)}", err=True)


@cli.command("worker", hidden=True)
@click.argument(
    "name",
    type=click.Choice(
        ["engine", "gateway", "collect", "judge", "judge-engine", "train", "data", "page"]
    ),
)
@settings_options
@_with_parent_option
@click.option("--listen-on", type=click.IntRange(min=0), multiple=True, hidden=True)
def run_one_worker(name: str, listen_on: tuple[int, ...], **options: Any) -> None:
    """Run one worker in this process (the supervisor starts this command)."""
    import traceback

    from openclaw_rl.common.process_guard import end_process
    from openclaw_rl.supervisor.home_folder import prepare_home
    from openclaw_rl.supervisor.run_worker import run_worker

    status = 1
    try:
        config = load_config(**options)
        prepare_home(config)
        run_worker(name, config, listen_on=listen_on)
        status = 0
    except OpenClawError as error:
        echo_error(f"openclaw-rl: {error}")
    except Exception:  # noqa: BLE001 - any bug: the supervisor shows the reason, the log of the worker the traceback
        traceback.print_exc()
    end_process(status)


@cli.command()
@home_options
def key(**options: Any) -> None:
    """Print the API key.

    Example: `export OPENAI_API_KEY=$(openclaw-rl key)`.
    """
    from openclaw_rl.supervisor.supervisor import read_key

    echo(read_key(load_running_config(**options)))


@cli.command()
@click.option("--watch", is_flag=True, help="Update the display until interrupted.")
@_json_option
@home_options
def status(watch: bool, as_json: bool, **options: Any) -> None:
    """Show workers, what was learned, what was not, and why."""
    from openclaw_rl.status.report import show_status
    from openclaw_rl.status.watch import watch_status

    config = load_config(**options)
    if watch and not as_json:
        watch_status(config)
    else:
        show_status(config, as_json=as_json)


cli.add_command(inspect_commands)


@cli.command()
@click.option(
    "--wait",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="Limit of each check without progress.",
)
@click.option(
    "--engine",
    metavar="NAME",
    help="Check only this engine: ids, log-probabilities, versions and others.",
)
@click.option(
    "--troubles", is_flag=True, help="Diagnose the home instead: its problems, each with its cure."
)
@click.option(
    "--sandbox",
    is_flag=True,
    help="Check only the sandbox for a model's commands, and each of its limits.",
)
@click.option(
    "--trainer",
    type=click.Choice(["slime"]),
    help="Check only this trainer: its version, and what it calls.",
)
@click.option(
    "--trainer-python",
    metavar="PATH",
    help="Python of the trainer's environment; default: this one.",
)
@settings_options
def doctor(
    wait: float,
    engine: str | None,
    troubles: bool,
    sandbox: bool,
    trainer: str | None,
    trainer_python: str | None,
    **options: Any,
) -> None:
    """Check the loop from a turn to a new served version. Uses a scratch store."""
    from openclaw_rl.doctor.pipeline import examine_engine, examine_home, examine_pipeline
    from openclaw_rl.doctor.sandbox import examine_sandbox
    from openclaw_rl.doctor.slime import examine_slime

    if engine is not None and options["backend"] not in (None, engine):
        raise click.UsageError(
            f"--engine is {engine} and --backend {options['backend']}. Leave --backend out."
        )
    backend = engine or options["backend"] or ("sglang" if trainer else None)
    config = load_config(**(options | {"backend": backend}), strict=not troubles)
    if troubles:
        sys.exit(0 if examine_home(config) else 1)
    if sandbox:
        sys.exit(0 if examine_sandbox(config) else 1)
    if trainer is not None:
        sys.exit(0 if examine_slime(config, python=trainer_python, wait=wait) else 1)
    if not (examine_pipeline if engine is None else examine_engine)(config, wait=wait):
        sys.exit(1)


@cli.command()
@consent_option
@settings_options
def chat(yes: bool, **options: Any) -> None:
    """Chat with the model in the terminal and watch it learn. Starts the system if needed."""
    from openclaw_rl.cli.chat import run_chat

    config = load_config(**options)
    if config.run.check_only:
        from openclaw_rl.supervisor.supervisor import WORKERS, with_required_workers

        workers = with_required_workers(config, WORKERS)
        check_start(load_settings(**options), workers, config=config)
        return
    run_chat(config, before_start=lambda: load_settings(**options), yes=yes)


@cli.group()
def connect() -> None:
    """Connect another program to the gateway. Prints the settings to add."""


@connect.command("openclaw")
@click.option("--write", is_flag=True, help="Add the entry by running `openclaw config patch`.")
@click.option("--into", metavar="FILE", help="Add the entry to this file instead.")
@settings_options
def connect_openclaw(write: bool, into: str | None, **options: Any) -> None:
    """Print the provider entry for OpenClaw, or install it."""
    from pathlib import Path

    from openclaw_rl.cli import connect as commands

    commands.connect_openclaw(
        load_running_config(**options), write=write, into=Path(into) if into else None
    )


@connect.command("claude-code")
@settings_options
def connect_claude_code(**options: Any) -> None:
    """Print the environment variables for Claude Code."""
    from openclaw_rl.cli import connect as commands

    commands.connect_claude_code(load_running_config(**options))


@connect.command("codex")
@settings_options
def connect_codex(**options: Any) -> None:
    """Print the settings for Codex (~/.codex/config.toml)."""
    from openclaw_rl.cli import connect as commands

    commands.connect_codex(load_running_config(**options))


add_feedback_commands(connect)


@cli.group("config")
def config_group() -> None:
    """Show or check settings."""


@config_group.command("show", cls=FlagCommand)
@settings_options
def config_show(**options: Any) -> None:
    """Show every setting, its value, and the source of the value."""
    from openclaw_rl.settings.reference import show_settings

    show_settings(load_settings(**options))


@config_group.command("check")
@click.argument("file")
def config_check(file: str) -> None:
    """Check a settings file. Prints every error, or the settings that it changes.

    Also checks that the plug-ins and the libraries that the settings need are installed here.
    """
    from openclaw_rl.settings.load import load
    from openclaw_rl.settings.reference import check_file
    from openclaw_rl.supervisor.preflight import check_installation
    from openclaw_rl.supervisor.supervisor import WORKERS, with_required_workers

    check_file(file)
    config = load(file=file, environ={})
    check_installation(config, with_required_workers(config, WORKERS))


_GROUPS = (
    data_commands,
    environment_commands,
    policy_commands,
    lesson_commands,
    fireworks_commands,
)
_CHANGES = (open_page, run_rollback, run_undo, show_learned)
for _more in (
    *_GROUPS,
    *_CHANGES,
    run_rollout_function,
    run_self_test,
    make_method,
    run_evaluation,
):
    cli.add_command(_more)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; `args` None: `sys.argv`. Our own errors print one line instead of a traceback."""
    try:
        cli(args, "openclaw-rl", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.NoSuchOption as error:
        show_unknown_option(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        show_usage_error(error)
        sys.exit(error.exit_code)
    except OpenClawError as error:
        echo_error(f"openclaw-rl: {error}")
        sys.exit(1)
    except BrokenPipeError:
        # E.g. `openclaw-rl status | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - any bug: a user gets one line, and the traceback in a file
        echo_error(f"openclaw-rl: {describe_error(error)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
