"""`make learn-protocol`: a whole run in one process, its tables and its page."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from benchmarks import personalisation_report
from benchmarks.personalisation import ProtocolCell, ProtocolRunner, arguments
from benchmarks.personalisation_report import FirstReplies, ProtocolRun

pytestmark = pytest.mark.system


def run_of(arm: str, seed: int, satisfied: str, after: float) -> ProtocolRun:
    return ProtocolRun(
        name=f"{arm}-{seed}",
        arm=arm,
        person="student",
        seed=seed,
        satisfied=tuple(one == "1" for one in satisfied),
        reactions=9,
        before=FirstReplies(satisfied=0.5, correct=1.0),
        after=FirstReplies(satisfied=after, correct=0.9),
        versions=2,
        seconds=1.0,
    )


RUNS = [
    run_of("memory", 1, "111", 0.9),
    run_of("memory", 2, "0111", 0.8),
    run_of("combine", 1, "00111", 1.0),
    run_of("combine", 2, "101010", 0.8),
]


def test_a_run_that_is_never_satisfied_counts_as_the_most_sessions() -> None:
    table = personalisation_report.result_table(RUNS)
    assert (
        "| memory | all | 2 | 3.5 (3.0 to 4.0) | 0.50 (0.50 to 0.50) | 0.85 (0.80 to 0.90) |"
        in table
    )
    assert "| combine | all | 2 | 38.5 (5.0 to 72.0) |" in table
    assert table.splitlines()[-1].endswith("| 1 |")


def test_differences_are_paired_by_person_and_seed() -> None:
    table = personalisation_report.difference_table(RUNS)
    assert "| combine | 2 | +35.0 (+2.0 to +68.0) | +0.05 (+0.00 to +0.10) |" in table
    assert "| memory |" not in table


def test_the_page_gets_tables_and_picture_and_a_run_survives_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "above\n<!-- begin: personalisation -->\nold\n<!-- end: personalisation -->\nbelow\n"
    )
    personalisation_report.write_document(page, RUNS, arguments().parse_args([]))
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert "old" not in text
    assert "![sessions and satisfaction by arm](images/page.png)" in text
    assert (tmp_path / "images" / "page.png").read_bytes().startswith(b"\x89PNG")
    assert [ProtocolRun.from_json(json.dumps(dataclasses.asdict(run))) for run in RUNS] == RUNS


def test_a_run_of_other_options_has_another_name() -> None:
    cells = [
        ProtocolCell(arm="opd", person="student", seed=1, more={}, options={"sessions": n})
        for n in (8, 9)
    ]
    assert cells[0].name != cells[1].name
    assert cells[0].settings == cells[1].settings


@pytest.mark.timeout(120)
def test_noted_lessons_change_first_replies(tmp_path: Path) -> None:
    given = arguments().parse_args(["--sessions", "3", "--questions", "30"])
    cell = ProtocolCell(arm="memory", person="student", seed=1, more={}, options={})
    run = asyncio.run(ProtocolRunner(cell, given).run(tmp_path / "home"))
    assert run.versions == 0, "nothing is trained"
    assert run.after.satisfied > run.before.satisfied + 0.2
    assert run.after.correct >= 0.9
    assert len(run.satisfied) >= 3
