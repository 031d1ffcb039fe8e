"""`openclaw-rl data`: import, check, score and export trajectories."""

from __future__ import annotations

import sys
from typing import Any

import click

from openclaw_rl.cli.load_config import load_config
from openclaw_rl.settings.cli_options import home_options, settings_options

_report_option = click.option(
    "--report", metavar="FILE", help="File for refused trajectories, one line of JSON each."
)
_partial_option = click.option(
    "--partial", is_flag=True, help="Exit with 0 even if trajectories were refused."
)
_paths_argument = click.argument("paths", metavar="PATH...", nargs=-1, required=True)


@click.group("data")
def data_commands() -> None:
    """Import, check, score and export conversations as files."""


@data_commands.command("check")
@_paths_argument
@_report_option
@_partial_option
def check_files(paths: tuple[str, ...], report: str | None, partial: bool) -> None:
    """Report errors in files or folders of trajectories. Changes nothing."""
    from openclaw_rl.trajectories import operations

    sys.exit(0 if operations.check_files(paths, report=report) or partial else 1)


@data_commands.command("import")
@_paths_argument
@click.option(
    "--no-score", is_flag=True, help="Do not compute log-probabilities now; run `data score` later."
)
@_report_option
@_partial_option
@settings_options
def import_files(
    paths: tuple[str, ...], no_score: bool, report: str | None, partial: bool, **options: Any
) -> None:
    """Import files or folders of trajectories. Existing ones are not imported again.

    Adds tokens and the newest policy's log-probabilities. Invalid trajectories are reported and skipped.
    """
    from openclaw_rl.supervisor.home_folder import prepare_home
    from openclaw_rl.trajectories import operations

    config = load_config(**options)
    prepare_home(config)
    sys.exit(
        0
        if operations.import_files(config, paths, score=not no_score, report=report) or partial
        else 1
    )


@data_commands.command("score")
@settings_options
def score_imported(**options: Any) -> None:
    """Compute missing log-probabilities of imported turns."""
    from openclaw_rl.trajectories import operations

    operations.score_imported(load_config(**options))


@data_commands.command("export")
@click.argument("target", metavar="FOLDER|FILE")
@click.option(
    "--session", "names", multiple=True, metavar="ID", help="Only this session (may be repeated)."
)
@click.option(
    "--since", metavar="WHEN", help="Only sessions with a call since then: 12h, 7d, or 2026-03-01."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["trajectories", "turns"]),
    default="trajectories",
    help="turns: one flat row per turn, for datasets.load_dataset. [default: trajectories]",
)
@click.option(
    "--redact",
    is_flag=True,
    help="Replace mail addresses, phone numbers, keys, tokens, IPs and home folders by placeholders.",
)
@home_options
def export_sessions(
    target: str, names: tuple[str, ...], since: str | None, form: str, redact: bool, **options: Any
) -> None:
    """Export the store's sessions. Writes one file per session into FOLDER, or all sessions into FILE.

    The name of FILE must end with .jsonl, .json or .parquet.
    """
    from openclaw_rl.trajectories import operations

    operations.export_sessions(
        load_config(**options), target, names=names, since=since, form=form, redact=redact
    )


@data_commands.command("stream")
@click.option(
    "--name", default="data stream", show_default=True, help="Name of the trainer in the logs."
)
@home_options
def stream_batches(name: str, **options: Any) -> None:
    """Stream batches of judged turns to a trainer. Needs a system with train.trainer=external.

    Writes a line of JSON for each batch, and waits for its answer on stdin, {"done": {"id": 1}}, with the weights in
    the folder of the batch. A batch without an answer is free again.
    """
    from openclaw_rl.common.printable import echo, echo_error, to_printable_json
    from openclaw_rl.errors import OpenClawError
    from openclaw_rl.other_trainers.batch_relay import BatchRelay
    from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded

    # Started with `<&-`.
    if sys.stdin is None:
        raise OpenClawError(
            "standard input is closed, and `data stream` reads the answers from it. Leave it open"
        )
    # `>&-`.
    if sys.stdout is None:
        raise OpenClawError(
            "standard output is closed, and `data stream` writes the batches to it. Leave it open"
        )
    try:
        with BatchStream.connect(load_config(**options).home_dir, name=name) as stream:
            ends = sys.stdin.fileno(), sys.stdout.fileno()
            BatchRelay(
                stream, *ends, lambda message: echo(to_printable_json(message)), echo_error
            ).relay_batches()
    except StreamEnded as error:
        raise OpenClawError(str(error)) from error
