"""`openclaw-rl new-method` and `openclaw-rl evaluate`: what the recipes need besides training."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.cli_options import option

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def new_method_command() -> click.Command:
    @click.command("new-method")
    @click.argument("name")
    @option("--into", default="recipes", show_default=True, metavar="DIR", help="Where its folder is made.")
    def command(name: str, into: str) -> None:
        """Make a folder for a method of your own. README, script, settings, loss and rollout. It runs as it stands."""

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
        from openclaw_rl.evals import task_scores

        config = load(file, **rest)
        result = task_scores.evaluate(config, names.split(","), num=num)
        click.echo(task_scores.table(result))
        if out:
            task_scores.write(result, Path(out))
        sys.exit(0 if result.answered else 1)

    return command


_TEMPLATES = ASSETS / "method"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 60


def new_method(name: str, into: Path) -> list[Path]:
    """Write `into`/`name`: README, script, settings, loss and rollout. Returns the files.

    Raises `ConfigError` for a name that is no plain word, or a folder that is there: nothing is ever overwritten.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"new-method {name!r}: expected at most {_LONGEST} small letters and digits, words joined by -, "
            "e.g. my-method"
        )
    folder = into.expanduser() / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder} is there already, and nothing is overwritten. Choose another name.") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}). Choose another --into.") from None
    return [_write(template, folder, name) for template in sorted(_TEMPLATES.iterdir())]


def _write(template: Path, folder: Path, name: str) -> Path:
    """A script may be run as it is."""
    snake = name.replace("-", "_")
    file = folder / template.name.removesuffix(".txt").replace("SNAKE", snake)
    text = template.read_text(encoding="utf-8").replace("SNAKE", snake).replace("NAME", name)
    file.write_text(text, encoding="utf-8")
    if file.suffix == ".sh":
        file.chmod(0o755)
    return file
