"""Print the diagnoses of a home, each with its evidence and its cure."""

from __future__ import annotations

import time
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.settings.load import Config
from openclaw_rl.status.diagnose import find_diagnoses
from openclaw_rl.status.health import Diagnosis
from openclaw_rl.status.program_checks import check_engine, check_ray_head, check_trainer


def print_diagnoses(config: Config, conn: Connection | None) -> bool:
    """Print each diagnosis with its cure. Returns whether none is found.

    Without `conn`: only of the engine, the trainer and Ray.
    """
    console = TerminalConsole()
    checked = (check_engine(config), check_trainer(config), check_ray_head(config))
    # An engine and a trainer of one service have the same trouble.
    by_evidence = {each.evidence: each for each in reversed(checked) if each is not None}
    diagnoses = list(reversed(by_evidence.values()))
    if conn is not None:
        diagnoses += find_diagnoses(config, conn, time.time(), examine=True)
    for diagnosis in diagnoses:
        console.print(Text(diagnosis.name, "red"))
        console.print(Padding(_diagnosis_table(diagnosis), (0, 0, 0, 2)))
    if not diagnoses:
        where = "the settings; no store"
        if conn is not None:
            where = "the store, the metrics and the logs of the last hour"
        console.print(f"no problems found in {where}")
    return not diagnoses


def _diagnosis_table(diagnosis: Diagnosis) -> Table:
    """Return a table of the evidence and the cure: settings, and the advice."""
    cure = [f"--set {key}={format_setting(value)}" for key, value in diagnosis.settings.items()]
    table = Table.grid(padding=(0, 4, 0, 0))
    table.add_row("seen", Text(diagnosis.evidence))
    for number, text in enumerate([*cure, diagnosis.advice]):
        table.add_row("" if number else "cure", Text(text))
    return table


def format_setting(value: Any) -> str:
    """Return the value as `--set` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
