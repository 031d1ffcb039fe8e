"""`openclaw-rl new-method` and `openclaw-rl evaluate`: the recipes' commands except training."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from openclaw_rl.cli.load_config import load_config
from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.cli_options import UNKNOWN_FLAGS, alias_flags, settings_options


@click.command("new-method")
@click.argument("name")
@click.option("--into", default="recipes", show_default=True, metavar="DIR", help="Parent folder of the new folder.")
def make_method(name: str, into: str) -> None:
    """Create a folder for a custom method. It has a README, script, settings, loss and rollout, ready to run."""

    files = create_method(name, Path(into))
    for file in files:
        click.echo(str(file))
    script = next(file for file in files if file.suffix == ".sh")
    click.echo(f"Next: bash {script}", err=True)


@click.command("evaluate", context_settings=UNKNOWN_FLAGS)
@click.option(
    "--eval-tasks",
    "names",
    default="conversation,coding,tool-use",
    show_default=True,
    metavar="LIST",
    help="Kinds of tasks, separated by commas.",
)
@click.option("--num", type=click.IntRange(min=1), help="Maximum number of tasks of each kind. [default: all]")
@click.option("--out", metavar="FILE", help="Write tasks, replies and failures to this JSON file.")
@settings_options
@alias_flags
def run_evaluation(names: str, num: int | None, out: str | None, **options: Any) -> None:
    """Score a checkpoint on small held-out tasks. Starts a separate gateway on a scratch home.

    The coding tasks run code that the model writes: in a process with limits, but without a sandbox.
    """
    from openclaw_rl.evals import task_scores

    config = load_config(**options)
    result = task_scores.evaluate_model(config, names.split(","), num=num)
    click.echo(task_scores.score_table(result))
    if out:
        task_scores.write_scores(result, Path(out))
    sys.exit(0 if result.has_replies else 1)


_TEMPLATE_DIR = ASSETS / "method"
_METHOD_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_NAME_CHARS = 60


def create_method(name: str, into: Path) -> list[Path]:
    """Write the folder `into`/`name` with README, script, settings, loss and rollout. Returns the files.

    Raises `ConfigError` for an invalid name, or if the folder exists: nothing is overwritten.
    """
    if not _METHOD_NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS:
        raise ConfigError(
            f"new-method {name!r}: expected at most {_MAX_NAME_CHARS} lower-case letters and digits, in parts "
            "joined by -, e.g. my-method"
        )
    folder = into.expanduser() / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder} already exists, and nothing is overwritten. Choose another name.") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}). Choose another --into.") from None
    return [_write_template(template, folder, name) for template in sorted(_TEMPLATE_DIR.iterdir())]


def _write_template(template: Path, folder: Path, name: str) -> Path:
    """Write one file of the template. Scripts are made executable."""
    snake = name.replace("-", "_")
    file = folder / template.name.removesuffix(".txt").replace("SNAKE", snake)
    text = template.read_text(encoding="utf-8").replace("SNAKE", snake).replace("NAME", name)
    file.write_text(text, encoding="utf-8")
    if file.suffix == ".sh":
        file.chmod(0o755)
    return file
