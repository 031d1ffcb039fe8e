"""`openclaw-rl evaluate judge`, and the class by which it is a part of `openclaw-rl evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import click

from openclaw_rl.cli.evaluate_harness import run_inspect, run_lm_eval
from openclaw_rl.cli.load_config import load_config
from openclaw_rl.common.printable import echo, echo_error, to_printable_json
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.cli_options import FlagCommand, settings_options


@click.command("judge", cls=FlagCommand, shown=("judge.",))
@click.option(
    "--reactions",
    metavar="FILE",
    help="Labelled reactions of your own (JSON lines). [default: shipped set]",
)
@click.option(
    "--language",
    "languages",
    multiple=True,
    metavar="CODE",
    help="Only this language (may be repeated).",
)
@click.option(
    "--half",
    type=click.Choice(["held_out", "calibration"]),
    default="held_out",
    show_default=True,
    help="Half of the set. Judges may be tuned on the calibration half.",
)
@click.option(
    "--out",
    metavar="FILE",
    help="Write the counts and every verdict with its reason to this JSON file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the same JSON instead of the tables.")
@settings_options
def run_judge_evaluation(
    reactions: str | None,
    languages: tuple[str, ...],
    half: str,
    out: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure the judge on labelled reactions. Prints right, abstained and wrong by class and by language.

    The judge is the one of the settings: the rules by default, an endpoint with --set judge.base_url and --set
    judge.model, a classifier with --set judge.reward_path, a plug-in with --set judge.plugin_path. It judges
    judge.workers reactions at once. The exit code is 1 if a reaction has no verdict because of an error.
    """
    from openclaw_rl.evals import judge_report
    from openclaw_rl.evals.judge_scores import evaluate_judge
    from openclaw_rl.evals.labelled_reactions import Half, load_reactions

    config = load_config(**options, strict=True)
    if out:
        prepare_file(Path(out))
    file = Path(reactions) if reactions else None
    labelled = load_reactions(file, half=Half(half)).in_languages(languages)
    with progress_bar() as show:
        result = evaluate_judge(config, labelled, show=show)
    write_report(
        judge_report.report_json(result), None if as_json else judge_report.report_text(result), out
    )
    exit_with_errors(f"a reaction has no verdict: {error}" for error in result.errors)


class EvaluateCommand(FlagCommand):
    """Command whose first word may name a command of its own; any other words are flags of the settings."""

    subcommands: ClassVar[Mapping[str, click.Command]] = {
        "judge": run_judge_evaluation,
        "lm-eval": run_lm_eval,
        "inspect": run_inspect,
    }

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the subcommand that the first word names, else of this command."""
        if args and args[0] in self.subcommands:
            name = f"{info_name} {args[0]}"
            return self.subcommands[args[0]].make_context(name, args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(60)) for name, one in self.subcommands.items()]
            )
        super().format_options(ctx, formatter)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar if stderr is a terminal. Yields the function that updates it (`ShowProgress`)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from openclaw_rl.common.terminal import TerminalConsole

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = TerminalConsole(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=None)
        yield lambda what, done, total: progress.update(
            bar, description=what, completed=done, total=total
        )


def write_report(data: Mapping[str, Any], text: str | None, out: str | None) -> None:
    """Print the text, or without one the data as JSON. `out`: a file that gets the JSON, too."""
    raw = to_printable_json(data, indent=2)
    if out:
        Path(out).write_text(raw + "\n", encoding="utf-8")
    echo(raw if text is None else text)


def exit_with_errors(errors: Iterable[str]) -> NoReturn:
    """Print the errors, and exit with 1 if there are any, else with 0."""
    listed = list(errors)
    for error in listed:
        echo_error(f"openclaw-rl: {error}")
    sys.exit(1 if listed else 0)


def prepare_file(file: Path) -> None:
    """Create the folder of the output file, before the evaluation starts. Raise `ConfigError` if it cannot be used."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out {file}: its folder cannot be created ({error.strerror}). Choose another."
        ) from None
    if file.is_dir():
        raise ConfigError(f"--out {file}: expected a file, got a folder")
