"""`openclaw-rl rollout` and `test-rollout`: run rollouts against a gateway, and test their capture."""

from __future__ import annotations

import sys
from typing import Any

import click

from openclaw_rl.cli.check_only import check_start
from openclaw_rl.cli.load_config import load_config, load_running_config, load_settings
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import FlagCommand, Seconds, consent_option, settings_options


@click.command("rollout", cls=FlagCommand, shown=("rollout.",))
@click.option(
    "--tasks", metavar="FILE", help="File of tasks: a JSON list, JSON lines, or plain lines."
)
@click.option(
    "--prompt", "prompts", multiple=True, metavar="TEXT", help="A task (may be repeated)."
)
@click.option(
    "--num",
    type=click.IntRange(min=1),
    help="Number of rollouts. [default: rollout.per_prompt or 1 per task]",
)
@click.option(
    "--out",
    metavar="FOLDER",
    help="Folder for one result file per rollout. [default: <home>/rollouts]",
)
@settings_options
def run_rollout_function(
    tasks: str | None, prompts: tuple[str, ...], num: int | None, out: str | None, **options: Any
) -> None:
    """Run a rollout function as a client of the running gateway. Set it with --rollout-function-path FILE.

    Its conversations are stored, judged and trained on like any others. The file's code runs on this machine.
    """
    import asyncio
    from pathlib import Path

    from openclaw_rl.common.logging_metrics import setup_logging
    from openclaw_rl.errors import ConfigError
    from openclaw_rl.rollouts.runner import RolloutOutcome, RolloutTask, read_tasks, run_rollouts

    config = load_running_config(**options, strict=True)
    if config.rollout.function_path is None and config.rollout.generate_path is None:
        raise ConfigError(
            "no rollout function: set --rollout-function-path FILE (see docs/guides/plugins.md)"
        )
    wanted = [RolloutTask(text=text) for text in prompts] + (
        read_tasks(Path(tasks)) if tasks else []
    )
    if not wanted:
        raise ConfigError("no tasks: set --tasks FILE or --prompt TEXT")

    def print_outcome(outcome: RolloutOutcome) -> None:
        echo(f"{outcome.session}: {outcome.error or f'{outcome.replies} replies'}: {outcome.file}")

    setup_logging("rollout", config.logs_dir, config.run.log_level)
    folder = Path(out) if out else config.home_dir / "rollouts"
    outcomes = asyncio.run(run_rollouts(config, wanted, folder, num=num, seen=print_outcome))
    failed = sum(outcome.error is not None for outcome in outcomes)
    echo(f"{len(outcomes)} rollouts, {failed} failed")
    sys.exit(1 if failed else 0)


@click.command("test-rollout")
@click.option(
    "--num-samples",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Number of conversations.",
)
@click.option("--output-dir", required=True, metavar="DIR", help="New folder for the trajectories.")
@click.option(
    "--wait", type=Seconds(), default=60.0, show_default=True, help="Maximum seconds to wait."
)
@consent_option
@settings_options
def run_self_test(
    num_samples: int, output_dir: str, wait: float, yes: bool, **options: Any
) -> None:
    """Test that conversations become trajectories. Runs conversations and checks the written files.

    Starts a separate system on a scratch home, with the model and engine of the settings. Nothing is trained.
    """
    from pathlib import Path

    from openclaw_rl.common.logging_metrics import setup_logging
    from openclaw_rl.doctor import rollouts

    def print_progress(text: str) -> None:
        echo(text, err=True)

    config = load_config(**options)
    setup_logging("test-rollout", None, config.run.log_level)
    folder = Path(output_dir)
    if config.run.check_only:
        check_start(
            load_settings(**options),
            ("engine", "gateway", "collect", "data"),
            config=config,
            check_more=lambda: rollouts.check_folder(folder),
        )
        return
    sessions = rollouts.run_selftest(
        config, folder, num=num_samples, wait=wait, print_progress=print_progress, yes=yes
    )
    for session, turns in sessions.items():
        main = sum(turn["type"] == "main" for turn in turns)
        echo(f"{session}: {main} main turns, {len(turns) - main} side turns")
    echo(
        f"{len(sessions)} trajectories in {output_dir}, each with token ids, log-probabilities and a reaction"
    )
