"""`openclaw-rl new-method` and `openclaw-rl evaluate`: the recipes' commands except training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.check_only import check_start
from openclaw_rl.cli.evaluate_judge import (
    EvaluateCommand,
    exit_with_errors,
    prepare_file,
    progress_bar,
    write_report,
)
from openclaw_rl.cli.load_config import load_config, load_settings, with_running_gateway
from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.printable import echo
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.cli_options import consent_option, settings_options

if TYPE_CHECKING:
    from openclaw_rl.evals.task_scores import EvalResult


@click.command("new-method")
@click.argument("name")
@click.option(
    "--into",
    default="recipes",
    show_default=True,
    metavar="DIR",
    help="Parent folder of the new folder.",
)
def make_method(name: str, into: str) -> None:
    """Create a folder for a custom method. It has a README, script, settings, loss and rollout, ready to run."""

    files = create_method(name, Path(into))
    for file in files:
        echo(str(file))
    script = next(file for file in files if file.suffix == ".sh")
    echo(f"Next: bash {script}", err=True)


@click.command("evaluate", cls=EvaluateCommand, shown=("model.", "engine.", "judge."))
@click.option(
    "--tasks",
    "--eval-tasks",
    "names",
    default="conversation,coding,tool-use",
    metavar="LIST",
    help="Kinds: conversation, coding, tool-use, personal. [default: all but personal]",
)
@click.option(
    "--policy", metavar="VERSION", help="Score this version of the home: a number, head or base."
)
@click.option(
    "--against", metavar="VERSION", help="Compare it with this version on the same tasks."
)
@click.option(
    "--with-lessons",
    is_flag=True,
    help="Ask with the lessons of the home in the prompt, as people are.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    help="Samples of each task. [default: a greedy reply]",
)
@click.option(
    "--num", type=click.IntRange(min=1), help="Maximum number of tasks of each kind. [default: all]"
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Token limit of every reply. [default: 256, 512 for coding]",
)
@click.option(
    "--person-url",
    metavar="URL",
    help="Endpoint of a model that simulates the people of personal tasks.",
)
@click.option("--person-model", metavar="NAME", help="Name of that model.")
@click.option(
    "--out", metavar="FILE", help="Write scores, tasks, replies and failures to this JSON file."
)
@click.option(
    "--report",
    metavar="DIR",
    help="Write a comparison side by side to this folder: HTML, PNG and JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the same JSON instead of the tables.")
@consent_option
@settings_options
def run_evaluation(
    names: str,
    policy: str | None,
    against: str | None,
    person_url: str | None,
    person_model: str | None,
    out: str | None,
    report: str | None,
    as_json: bool,
    with_lessons: bool,
    yes: bool,
    seeds: int,
    num: int | None,
    max_tokens: int | None,
    **options: Any,
) -> None:
    """Score a checkpoint on small held-out tasks. Starts a separate gateway on a scratch home.

    With --policy and --against, score versions of the home, through its gateway. If no system runs on the home, one
    without judge and trainer is started meanwhile. The requests are side traffic: nothing is trained on them.

    With an llm judge (judge.kind llm) the judge scores the conversation tasks; otherwise measurable properties of the
    replies do. The exit code is 1 if a task has no score because of an error.

    The coding tasks run code that the model writes: in a process with limits, but without a sandbox.
    """
    from openclaw_rl.evals.personalisation.people import PersonEndpoint
    from openclaw_rl.evals.task_scores import EvalPlan, evaluate_model, evaluate_versions
    from openclaw_rl.evals.versions import comparison_report
    from openclaw_rl.evals.versions.gateway_access import ask_consent
    from openclaw_rl.train.resume import resolve_base

    _check_evaluation(policy, against, report, person_url, person_model)
    if with_lessons and policy is None:
        raise click.UsageError("--with-lessons needs --policy: a checkpoint alone has no lessons")
    config = load_config(**options, strict=True)
    if config.run.check_only:
        check_start(load_settings(**options), ("engine", "gateway"), config=resolve_base(config))
        return
    if out:
        prepare_file(Path(out))
    if report:
        comparison_report.prepare_folder(Path(report))
    if config.judge.kind in ("classifier", "plugin"):
        echo(
            f"note: judge.kind is {config.judge.kind}, which scores reactions. The tasks have none, so measurable "
            "properties score them",
            err=True,
        )
    person = PersonEndpoint(url=person_url, model=person_model) if person_url else None
    plan = EvalPlan(
        kinds=names.split(","), num=num, max_tokens=max_tokens, seeds=seeds, person=person
    )
    plan = replace(plan, with_lessons=with_lessons)
    # Before the progress bar, which would hide the question.
    ask_consent(config, on_scratch_home=policy is None, yes=yes)
    with progress_bar() as show:
        if policy is None:
            results = [evaluate_model(config, plan, show=show)]
        else:
            versions = [policy, against] if against else [policy]
            results = evaluate_versions(with_running_gateway(config), plan, versions, show=show)
    _write_results(results, out, report, as_json=as_json)
    exit_with_errors(
        f"a task has no score: {error}" for result in results for error in result.errors
    )


def _write_results(
    results: Sequence[EvalResult], out: str | None, report: str | None, *, as_json: bool
) -> None:
    """Print and write the scores of one version, or the comparison of two."""
    from openclaw_rl.evals import task_report
    from openclaw_rl.evals.versions import comparison_report

    if len(results) == 1:
        data = task_report.report_json(results[0])
        text = task_report.report_text(results[0])
    else:
        new, old = results
        data = comparison_report.comparison_json(new, old)
        text = comparison_report.comparison_text(new, old)
    write_report(data, None if as_json else text, out)
    if report:
        comparison_report.write_folder(Path(report), *results)
        echo(f"Report: {Path(report) / comparison_report.PAGE}", err=True)


def _check_evaluation(
    policy: str | None,
    against: str | None,
    report: str | None,
    person_url: str | None,
    person_model: str | None,
) -> None:
    """Raise `ConfigError` for options that do not go together."""
    if against is not None and policy is None:
        raise ConfigError(
            "--against needs --policy: expected two versions, e.g. --policy head --against base"
        )
    if report is not None and against is None:
        raise ConfigError(
            "--report writes a comparison: expected --policy and --against. For one model, use --out"
        )
    if (person_url is None) != (person_model is None):
        raise ConfigError("--person-url and --person-model go together: expected both, or neither")


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
        raise ConfigError(
            f"{folder} already exists, and nothing is overwritten. Choose another name."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be created ({error.strerror}). Choose another --into."
        ) from None
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
