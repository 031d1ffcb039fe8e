"""`openclaw-rl new-method` and `openclaw-rl evaluate`: the recipes' commands except training."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from openclaw_rl.cli.evaluate_judge import EvaluateCommand, prepare_file, progress_bar
from openclaw_rl.cli.load_config import load_config
from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.printable import echo, to_printable_json
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.cli_options import settings_options


@click.command("new-method")
@click.argument("name")
@click.option("--into", default="recipes", show_default=True, metavar="DIR", help="Parent folder of the new folder.")
def make_method(name: str, into: str) -> None:
    """Create a folder for a custom method. It has a README, script, settings, loss and rollout, ready to run."""

    files = create_method(name, Path(into))
    for file in files:
        echo(str(file))
    script = next(file for file in files if file.suffix == ".sh")
    echo(f"Next: bash {script}", err=True)


@click.command("evaluate", cls=EvaluateCommand, shown=("model.", "engine.", "judge."))
@click.option(
    "--eval-tasks",
    "names",
    default="conversation,coding,tool-use",
    show_default=True,
    metavar="LIST",
    help="Kinds of tasks, separated by commas.",
)
@click.option("--num", type=click.IntRange(min=1), help="Maximum number of tasks of each kind. [default: all]")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), help="Token limit of every reply. [default: 256, 512 for coding]"
)
@click.option("--out", metavar="FILE", help="Write scores, tasks, replies and failures to this JSON file.")
@click.option("--json", "as_json", is_flag=True, help="Print the same JSON instead of the tables.")
@settings_options
def run_evaluation(
    names: str, num: int | None, max_tokens: int | None, out: str | None, as_json: bool, **options: Any
) -> None:
    """Score a checkpoint on small held-out tasks. Starts a separate gateway on a scratch home.

    With an llm judge (judge.kind llm) the judge scores the conversation tasks; otherwise measurable properties of the
    replies do. The exit code is 1 if a task has no score because of an error.

    The coding tasks run code that the model writes: in a process with limits, but without a sandbox.
    """
    from openclaw_rl.evals import task_report
    from openclaw_rl.evals.task_scores import evaluate_model

    config = load_config(**options, strict=True)
    if out:
        prepare_file(Path(out))
    if config.judge.kind in ("classifier", "plugin"):
        echo(
            f"note: judge.kind is {config.judge.kind}, which scores reactions. The tasks have none, so measurable "
            "properties score them",
            err=True,
        )
    with progress_bar() as show:
        result = evaluate_model(config, names.split(","), num=num, max_tokens=max_tokens, show=show)
    text = to_printable_json(task_report.report_json(result), indent=2)
    if out:
        Path(out).write_text(text + "\n", encoding="utf-8")
    echo(text if as_json else task_report.report_text(result))
    for error in result.errors:
        echo(f"openclaw-rl: a task has no score: {error}", err=True)
    sys.exit(1 if result.errors else 0)


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
