"""`openclaw-rl new-method` and `openclaw-rl evaluate`: what the recipes need besides training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.options import option

if TYPE_CHECKING:
    from openclaw_rl.config import Config

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def new_method() -> click.Command:
    @click.command("new-method")
    @click.argument("name")
    @option("--into", default="recipes", show_default=True, metavar="DIR", help="Where its folder is made.")
    def command(name: str, into: str) -> None:
        """Make a folder for a method of your own. README, script, settings, loss and rollout. It runs as it stands."""
        from openclaw_rl.scaffold import new_method

        files = new_method(name, Path(into))
        for file in files:
            click.echo(str(file))
        script = next(file for file in files if file.suffix == ".sh")
        click.echo(f"Next: bash {script}", err=True)

    return command


def evaluate(common: Decorator, words: Decorator, load: Callable[..., Config]) -> click.Command:
    """`common`, `words`: the shared options; `load`: from what they give to the settings."""

    @click.command("evaluate", context_settings={"ignore_unknown_options": True})
    @option("--eval-tasks", "names", default="conversation,coding,tool-use", show_default=True, metavar="LIST")
    @option("--num", type=click.IntRange(min=1), help="At most so many tasks of each kind [all].")
    @option("--out", metavar="FILE", help="Every task, reply and reason, as JSON.")
    @common
    @words
    def command(names: str, num: int | None, out: str | None, file: str | None, **rest: Any) -> None:
        """Score a checkpoint on small held-out tasks. Through a gateway of its own, on a scratch home.

        Coding runs what the model writes: in a process with limits, and without a sandbox.
        """
        from openclaw_rl.evaluate import scoring

        config = load(file, **rest)
        result = scoring.evaluate(config, names.split(","), num=num)
        click.echo(scoring.table(result))
        if out:
            scoring.write(result, Path(out))
        sys.exit(0 if result.answered else 1)

    return command
