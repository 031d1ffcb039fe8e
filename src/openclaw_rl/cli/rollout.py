"""`openclaw-rl rollout`: the owner's rollouts against the running gateway."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.settings.cli_options import Seconds, option

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def command(common: Decorator, words: Decorator, load: Callable[..., Config]) -> click.Command:
    """`common`, `words`: the shared options; `load`: from what they give to the settings."""

    @click.command("rollout", context_settings={"ignore_unknown_options": True})
    @option("--tasks", metavar="FILE", help="Tasks: a JSON list, JSON lines, or plain lines.")
    @option("--prompt", "prompts", multiple=True, metavar="TEXT", help="A task (may be given again).")
    @option("--num", type=click.IntRange(min=1), help="Rollouts [each task once, or rollout.per_prompt times].")
    @option("--out", metavar="FOLDER", help="A result file for each rollout [<home>/rollouts].")
    @common
    @words
    def rollout(
        tasks: str | None, prompts: tuple[str, ...], num: int | None, out: str | None, file: str | None, **rest: Any
    ) -> None:
        """Run a rollout function as a client of the running gateway. It is that of --rollout-function-path FILE.

        What it says is captured, judged and trained as any other conversation. The file's code runs on this machine.
        """
        import asyncio
        from pathlib import Path

        from openclaw_rl.errors import ConfigError
        from openclaw_rl.rollouts.runner import Outcome, Task, read_tasks, run

        config = load(file, **rest)
        if config.rollout.function_path is None and config.rollout.generate_path is None:
            raise ConfigError("which rollout? Say --rollout-function-path FILE (see docs/guides/plugins.md)")
        wanted = [Task(words=text) for text in prompts] + (read_tasks(Path(tasks)) if tasks else [])
        if not wanted:
            raise ConfigError("no tasks: say --tasks FILE or --prompt TEXT")

        def tell(outcome: Outcome) -> None:
            click.echo(f"{outcome.session}: {outcome.error or f'{outcome.replies} replies'}: {outcome.file}")

        folder = Path(out) if out else config.home_dir / "rollouts"
        outcomes = asyncio.run(run(config, wanted, folder, num=num, seen=tell))
        failed = sum(outcome.error is not None for outcome in outcomes)
        click.echo(f"{len(outcomes)} rollouts, {failed} failed")
        sys.exit(1 if failed else 0)

    return rollout


def self_test(common: Decorator, load: Callable[..., Config]) -> click.Command:
    """`common`: the shared options; `load`: from what they give to the settings."""

    @click.command("test-rollout")
    @option("--num-samples", type=click.IntRange(min=1), default=3, show_default=True, help="Conversations.")
    @option("--output-dir", required=True, metavar="DIR", help="A new folder for their trajectories.")
    @option("--wait", type=Seconds(), default=60.0, show_default=True, help="Seconds at most.")
    @common
    def command(num_samples: int, output_dir: str, wait: float, file: str | None, **rest: Any) -> None:
        """Prove that conversations become trajectories. Some are held, captured, written and looked at.

        With a system and a home of its own; the model and the engine are those of the settings. Nothing is trained.
        """
        from pathlib import Path

        from openclaw_rl.doctor import rollouts

        def said(words: str) -> None:
            click.echo(words, err=True)

        found = rollouts.run(load(file, **rest), Path(output_dir), num=num_samples, wait=wait, said=said)
        for session, turns in found.items():
            main = sum(turn["type"] == "main" for turn in turns)
            click.echo(f"{session}: {main} main turns, {len(turns) - main} side turns")
        click.echo(f"{len(found)} trajectories in {output_dir}, each with token ids, log-probabilities and a reaction")

    return command
