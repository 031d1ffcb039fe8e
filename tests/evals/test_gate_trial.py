"""`make gate-trial` and `make learn-days`: classes, tables and pages; and one poisoned batch with real training."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from benchmarks import gate_trial_report, thirty_days_report
from benchmarks.gate_trial import LIVE_TURNS, Trial
from benchmarks.gate_trial_report import Phase, PoisonOutcome, Unit
from benchmarks.ideal_assistant import IdealMonth
from benchmarks.thirty_days import drift_argument
from benchmarks.thirty_days_report import Day, Month

pytestmark = pytest.mark.system


def phase_of(*states: str, failed: int = 0) -> Phase:
    return Phase(
        states=states,
        reasons=(),
        figures=(),
        trained_turns=0,
        replies=8,
        failed=failed,
        seconds=30.0,
    )


def outcome_of(kind: str, trained: int, rolled_back: int = 0, after: float = 0.9) -> PoisonOutcome:
    return PoisonOutcome(
        kind=kind,
        whole_refused=not trained,
        trained_turns=trained,
        rolled_back=rolled_back,
        satisfied={"before": 0.9, "poisoned": after, "end": 0.9},
        live=0.9,
        live_turns=30,
        poison=phase_of("live"),
        after=phase_of("live", "rolled_back"),
    )


UNIT = Unit(
    arm="default",
    seed=1,
    taste="short",
    honest=phase_of("live", "rejected", failed=1),
    outcomes=(outcome_of("inverted", 4, after=0.7), outcome_of("junk", 2, rolled_back=1)),
)


def test_the_class_of_a_poisoned_batch() -> None:
    assert outcome_of("junk", 0, after=0.1).result == "refused"
    assert outcome_of("junk", 1, rolled_back=1, after=0.1).result == "rolled back"
    assert outcome_of("junk", 1, after=0.895).result == "harmless"
    assert outcome_of("junk", 1, after=0.88).result == "worse"


def test_the_page_lists_regressions_and_false_alarms(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- begin: gate-trial -->\nold\n<!-- end: gate-trial -->\nbelow\n")
    gate_trial_report.write_page(page, [UNIT])
    text = page.read_text()
    assert "old" not in text
    assert "| default | inverted | 1 | 0 | 0 | 0 | 1 | 0 | 4 of 8 | 0.90 | 0.70 |" in text
    assert "| default | junk | 1 | 0 | 1 | 0 | 0 | 0 | 2 of 8 | 0.90 | 0.90 |" in text
    assert (
        "- default, inverted, person 1 (short): 0.90 before, 0.70 after the batch, 0.90 after the live turns"
        in text
    )
    assert "| default | 2 | 1 | 0 | 40 | 1 |" in text
    assert Unit.from_json(json.dumps(dataclasses.asdict(UNIT))) == UNIT


def month_of(arm: str, shares: list[float]) -> Month:
    days = [
        Day(
            number=n,
            subject="sum",
            drift=0.0,
            satisfied=s,
            untrained=0.4,
            version=n,
            rolled_back=1,
            rejected=2,
        )
        for n, s in enumerate(shares, 1)
    ]
    return Month(arm=arm, seed=1, tastes=("short", "long"), days=tuple(days))


def test_the_page_of_thirty_days_says_which_days_are_below(tmp_path: Path) -> None:
    months = [
        month_of("with", [0.3, 0.9, 0.9, 0.9, 0.9, 0.9]),
        month_of("without", [0.5, 0.2, 0.3, 0.9, 0.8, 0.9]),
    ]
    page = tmp_path / "page.md"
    page.write_text("<!-- begin: thirty-days -->\n<!-- end: thirty-days -->\n")
    ideal = {
        ("short", "long"): [
            IdealMonth(below=b, satisfied=0.9, worst_of_last=1.0) for b in (0, 0, 0, 2)
        ]
    }
    thirty_days_report.write_page(page, months, ideal)
    text = page.read_text()
    assert (
        "- With the gate: 1 of 6 days are below the untrained policy; 0 of the last 5 days are below 0.85."
        in text
    )
    assert (
        "- Without the gate: 2 of 6 days are below the untrained policy; 3 of the last 5 days are below 0.85."
        in text
    )
    assert "| short to long | 1 | with | 1 (1) | 0.80 | 0.90 | 2 | 1 |" in text
    assert "| 1 | sum | 0% | 0.40 | **0.30** | 2 | 1 | 0.50 |" in text
    assert "| short to long | 4 | 25% | 0.50 | 0.90 | 1.00 |" in text
    assert (tmp_path / "images" / "page.png").read_bytes().startswith(b"\x89PNG")
    thirty_days_report.write_page(page, months[:1], ideal, ["gate.budget=0"])
    assert "| 1 | sum | 0% | 0.40 | **0.30** | 2 | 1 | - |" in page.read_text()
    assert "Settings: `gate.budget=0`." in page.read_text()
    assert drift_argument("short:long") == ("short", "long")


@pytest.mark.timeout(180)
def test_a_batch_of_praised_junk_is_refused_with_the_default_settings(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "home", 4205, {"gate.budget": 0})
    honest = asyncio.run(trial.talk_honestly(4))
    assert honest.refused == 0
    outcome = asyncio.run(
        trial.run_poison("junk", shutil.copytree(tmp_path / "home", tmp_path / "junk"))
    )
    assert outcome.whole_refused
    assert "a praised reply of its batch is junk" in outcome.poison.reasons[0]
    assert (outcome.poison.failed, outcome.after.failed) == (0, 0)
    assert (outcome.live_turns >= LIVE_TURNS) == (outcome.trained_turns > 0)
