"""The command line. Commands import their modules when they run, so that `--help` is fast."""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl import __version__
from openclaw_rl.cli.data import data_commands
from openclaw_rl.cli.load_config import load_config, load_settings
from openclaw_rl.cli.recipes import make_method, run_evaluation
from openclaw_rl.cli.rollback import run_rollback
from openclaw_rl.cli.rollout import run_rollout_function, run_self_test
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.cli_options import UNKNOWN_FLAGS, Seconds, alias_flags, settings_options

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config


def _exit_with_parent(_context: click.Context, _option: click.Parameter, parent: int | None) -> None:
    if parent is not None:
        from openclaw_rl.common.parent_death import die_with_parent

        die_with_parent(parent)


_PARENT_OPTION: dict[str, Any] = {"type": int, "is_flag": False, "flag_value": 0, "hidden": True, "expose_value": False}
_with_parent_option = click.option("--with-parent", callback=_exit_with_parent, **_PARENT_OPTION)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Serve a model and train it while you talk to it.

    `openclaw-rl up` serves a model behind an OpenAI-compatible API and trains it on your next messages.
    """


_WORKER_COMMANDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "up": ("Run serve, collect, judge and train, supervised.", ("engine", "gateway", "collect", "judge", "train")),
    "serve": ("Run only the serve stage: engine and gateway.", ("engine", "gateway")),
    "collect": ("Run only the collect stage: link reactions to turns.", ("collect",)),
    "judge": ("Run only the judge stage: score turns that have a reaction.", ("judge",)),
    "train": ("Run only the train stage: train on judged turns.", ("train",)),
}
"""Command -> (its help, the workers that it starts)."""


def _add_worker_command(name: str, summary: str, workers: Sequence[str]) -> None:
    @cli.command(name, help=summary, context_settings=UNKNOWN_FLAGS)
    @settings_options
    @_with_parent_option
    @alias_flags
    def run_workers(**options: Any) -> None:
        _start_workers(load_config(command=name, workers=workers, **options), workers)


for _name, (_summary, _workers) in _WORKER_COMMANDS.items():
    _add_worker_command(_name, _summary, _workers)


def _start_workers(config: Config, workers: Sequence[str]) -> None:
    from openclaw_rl.plugins import loader
    from openclaw_rl.render.model_folder import ModelFiles
    from openclaw_rl.supervisor.supervisor import supervise, with_required_workers
    from openclaw_rl.train.resume import resolve_base

    config = resolve_base(config)
    ModelFiles.from_config(config.model)  # raises here for a missing model, before a worker is started and restarted
    loader.check_plugin_files(config)
    if "gateway" in workers:
        url = f"http://{config.serve.host}:{config.serve.port}/v1"
        click.echo(f"OpenClaw-RL {__version__}: {config.model.path} as {config.model.name!r} at {url}", err=True)
        click.echo(f"  home {config.home_dir}   key: `openclaw-rl key`   chat: `openclaw-rl chat`", err=True)
    supervise(config, with_required_workers(config, workers))


@cli.command("worker", hidden=True)
@click.argument("name", type=click.Choice(["engine", "gateway", "collect", "judge", "judge-engine", "train", "data"]))
@settings_options
@_with_parent_option
def run_one_worker(name: str, **options: Any) -> None:
    """Run one worker in this process (the supervisor starts this command)."""
    from openclaw_rl.supervisor.supervisor import prepare_home, run_worker

    config = load_config(**options)
    prepare_home(config)
    run_worker(name, config)


@cli.command()
@settings_options
def key(**options: Any) -> None:
    """Print the API key.

    Example: `export OPENAI_API_KEY=$(openclaw-rl key)`.
    """
    from openclaw_rl.supervisor.supervisor import read_key

    click.echo(read_key(load_config(**options)))


@cli.command()
@click.option("--watch", is_flag=True, help="Update the display until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def status(watch: bool, as_json: bool, **options: Any) -> None:
    """Show workers, what was learned, what was not, and why."""
    from openclaw_rl.status.report import show_status
    from openclaw_rl.status.watch import watch_status

    config = load_config(**options)
    if watch and not as_json:
        watch_status(config)
    else:
        show_status(config, as_json=as_json)


@cli.group()
def inspect() -> None:
    """Show what happened to sessions, turns and policies."""


@inspect.command("sessions")
@click.option("--limit", type=click.IntRange(min=1), default=30, show_default=True, help="Maximum number of sessions.")
@settings_options
def inspect_sessions(limit: int, **options: Any) -> None:
    """List the newest sessions, one per line."""
    from openclaw_rl.status.report import show_sessions

    show_sessions(load_config(**options), limit)


@inspect.command("session")
@settings_options
@click.argument("session_id")
def inspect_session(session_id: str, **options: Any) -> None:
    """Show every turn of a session: request, reply, verdict, training."""
    from openclaw_rl.status.report import show_session

    show_session(load_config(**options), session_id)


@inspect.command("turn")
@settings_options
@click.argument("turn_id")
def inspect_turn(turn_id: str, **options: Any) -> None:
    """Show one turn. Prints its text, tokens, reaction, verdict, and the policies that were trained on it."""
    from openclaw_rl.status.report import show_turn

    show_turn(load_config(**options), turn_id)


@inspect.command("policy")
@settings_options
@click.argument("version", type=click.IntRange(min=0))
def inspect_policy(version: int, **options: Any) -> None:
    """Show one policy version. Prints its parent, its metrics, and the turns that it was trained on."""
    from openclaw_rl.status.report import show_policy

    show_policy(load_config(**options), version)


@cli.command()
@click.option("--wait", type=Seconds(), default=120.0, show_default=True, help="Maximum seconds for each check.")
@click.option(
    "--engine",
    metavar="NAME",
    help="Test only this engine: streaming, exact ids, log-probabilities, stop, cancellation, versions, hot swaps.",
)
@click.option("--troubles", is_flag=True, help="Diagnose this home instead: list its problems, each with its cure.")
@settings_options
def doctor(wait: float, engine: str | None, troubles: bool, **options: Any) -> None:
    """Check the loop from a turn to a new served version. Uses a scratch store."""
    from openclaw_rl.doctor.pipeline import examine_engine, examine_home, examine_pipeline

    if engine is not None and options["backend"] not in (None, engine):
        raise click.UsageError(f"--engine is {engine} and --backend {options['backend']}. Leave --backend out.")
    config = load_config(**(options | {"backend": engine or options["backend"]}))
    if troubles:
        sys.exit(0 if examine_home(config) else 1)
    if not (examine_pipeline if engine is None else examine_engine)(config, wait=wait):
        sys.exit(1)


@cli.command()
@settings_options
def chat(**options: Any) -> None:
    """Chat with the model in the terminal and watch it learn. Starts the system if needed."""
    from openclaw_rl.cli.chat import run_chat

    run_chat(load_config(**options))


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

    commands.connect_openclaw(load_config(**options), write=write, into=Path(into) if into else None)


@connect.command("claude-code")
@settings_options
def connect_claude_code(**options: Any) -> None:
    """Print the environment variables for Claude Code."""
    from openclaw_rl.cli import connect as commands

    commands.connect_claude_code(load_config(**options))


@connect.command("codex")
@settings_options
def connect_codex(**options: Any) -> None:
    """Print the settings for Codex (~/.codex/config.toml)."""
    from openclaw_rl.cli import connect as commands

    commands.connect_codex(load_config(**options))


@cli.group("config")
def config_group() -> None:
    """Show or check settings."""


@config_group.command("show", context_settings=UNKNOWN_FLAGS)
@settings_options
@alias_flags
def config_show(**options: Any) -> None:
    """Show every setting, its value, and the source of the value."""
    from openclaw_rl.settings.reference import show_settings

    show_settings(load_settings(**options))


@config_group.command("check")
@click.argument("file")
def config_check(file: str) -> None:
    """Check a settings file. Prints every error, or the settings that it changes."""
    from openclaw_rl.settings.reference import check_file

    check_file(file)


for _command in (data_commands, run_rollout_function, run_rollback, run_self_test, make_method, run_evaluation):
    cli.add_command(_command)


_PATH_ERRNOS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS)
"""Errors of paths that the user gave. Any other `OSError` is a bug and keeps its traceback."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; `args` None: `sys.argv`. Our own errors print one line instead of a traceback."""
    try:
        cli(args, "openclaw-rl", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OpenClawError as error:
        click.echo(f"openclaw-rl: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if error.errno not in _PATH_ERRNOS or error.filename is None:
            raise
        click.echo(f"openclaw-rl: {error.filename}: {error.strerror}. Expected a path that this user can use", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
