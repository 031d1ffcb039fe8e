"""`openclaw-rl evaluate lm-eval` and `openclaw-rl evaluate inspect`: evaluation programs of others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from openclaw_rl.cli.load_config import load_config, with_running_gateway
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import consent_option, settings_options

if TYPE_CHECKING:
    from openclaw_rl.evals.versions.harnesses import EvaluationHarness

_F = TypeVar("_F", bound=Callable[..., Any])


def _harness_options(function: _F) -> _F:
    """Add the options and arguments that both commands have."""
    for add in (
        click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]"),
        settings_options,
        consent_option,
        click.option(
            "--out",
            metavar="DIR",
            help="Folder of the results. [default: <home>/evaluations/PROGRAM-vN]",
        ),
        click.option("--program", metavar="PATH", help="The program. [default: the one on PATH]"),
        click.option(
            "--policy",
            metavar="VERSION",
            default="head",
            show_default=True,
            help="Version: a number, head or base.",
        ),
    ):
        function = add(function)
    return function


@click.command("lm-eval")
@click.option(
    "--tasks", required=True, metavar="LIST", help="Tasks of lm-eval, separated by commas."
)
@_harness_options
def run_lm_eval(tasks: str, **options: Any) -> None:
    """Run lm-eval, unmodified, on one version of the home.

    It asks the gateway of the system that runs on the home; if none runs, one is started meanwhile. The requests are
    side traffic: nothing is trained on them. Tasks that compare log-probabilities of choices cannot be scored.
    Arguments behind -- are passed on, e.g. -- --limit 20 --include_path my_tasks.
    """
    from openclaw_rl.evals.versions.harnesses import LM_EVAL

    _run_and_exit(LM_EVAL, tasks, **options)


@click.command("inspect")
@click.argument("task")
@_harness_options
def run_inspect(task: str, **options: Any) -> None:
    """Run a task of inspect_ai, unmodified, on one version of the home.

    TASK is a file, or a name such as inspect_evals/gsm8k. It asks the gateway of the system that runs on the home; if
    none runs, one is started meanwhile. The requests are side traffic: nothing is trained on them. Arguments behind --
    are passed on, e.g. -- --limit 20.
    """
    from openclaw_rl.evals.versions.harnesses import INSPECT

    _run_and_exit(INSPECT, task, **options)


def _run_and_exit(
    harness: EvaluationHarness,
    task: str,
    *,
    policy: str,
    program: str | None,
    out: str | None,
    more: tuple[str, ...],
    yes: bool,
    **options: Any,
) -> None:
    from openclaw_rl.evals.versions.harnesses import run_harness

    config = with_running_gateway(load_config(**options, strict=True))
    folder = None if out is None else Path(out)
    code, where = run_harness(
        harness, config, task, version=policy, program=program, out=folder, more=more, yes=yes
    )
    echo(f"Results: {where}" if code == 0 else f"{harness.program} ended with {code}", err=True)
    sys.exit(code)
