"""The measurement of learning at one person's rate: the whole system in one process, and its reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks import sample_efficiency, sample_efficiency_report
from benchmarks.sample_efficiency import Setting
from benchmarks.sample_efficiency_report import Point, Run

from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies


def setting(**changes: Any) -> Setting:
    values: dict[str, Any] = {
        "method": "combine", "batch": 2, "replay": True, "taste": "short", "seed": 3, "more": {}, **changes
    }  # fmt: skip
    return Setting(**values)


def test_a_talk_is_the_same_each_time(tmp_path: Path) -> None:
    """Real stages, and nothing races: same versions after the same reactions, measured alike to the last digit."""
    runs = [sample_efficiency.one(setting(), tmp_path / name, reactions=8, questions=4) for name in "ab"]
    assert runs[0].points == runs[1].points
    first, second, third = runs[0].points[:3]
    assert (first.version, first.reactions, first.judged) == (0, 0, 0)
    assert (second.judged, third.judged) == (2, 4), "a batch is two fresh judged turns"
    assert 8 <= runs[0].reactions < 12
    assert runs[0].agreed <= runs[0].judged < runs[0].reactions
    store = Store.open(tmp_path / "a" / "store.db", create=False)
    with store.read() as conn:
        numbers = [sorted(use.number for use in policies.uses_of_version(conn, version)) for version in (1, 2)]
    store.close()
    assert numbers == [[1, 1], [1, 1, 2, 2]]


@pytest.mark.parametrize("replay", [True, False])
def test_a_cell_is_its_settings(replay: bool) -> None:
    made = setting(replay=replay, batch=8, more={"train.optimizer.learning_rate": 0.003})
    train = from_flat(made.settings).train
    assert (train.batch.min_turns, train.batch.max_turns, train.batch.max_uses) == ((8, 16, 2) if replay else (8, 8, 1))
    assert train.optimizer.learning_rate == 0.003
    assert made.name == f"combine-8{'-replay' if replay else ''}-short-3-learning_rate=0.003"


def test_a_lesson_is_practised_and_a_taste_may_change(tmp_path: Path) -> None:
    """The weights alone follow the person after a few reactions, and the next reply does at once."""
    changes: dict[str, Any] = {"batch": 4, "replay": False, "practice": True, "lessons": True, "seed": 1}
    made = setting(**changes, then="long", more={"practice.step_limit": 2, "practice.replies": 4})
    run = sample_efficiency.one(made, tmp_path, reactions=4, questions=4)
    assert made.name == "combine-4-practice-lessons-short-long-1-replies=4-step_limit=2"
    assert run.changed is not None
    assert run.changed < run.reactions
    assert run.next_reply is not None
    assert run.points[-1].version > 0
    assert run.points[-1].entropy is not None
    assert run.points[-1].distinct > 0


def run_of(curve: Mapping[int, tuple[float, float]], **changes: Any) -> Run:
    """`curve`: reactions -> (satisfied, correct) of the version that came into use then."""
    points = tuple(
        Point(version=n, reactions=at, judged=at // 2, satisfied=satisfied, correct=correct)
        for n, (at, (satisfied, correct)) in enumerate(curve.items())
    )
    values: dict[str, Any] = {
        "name": "x", "method": "combine", "batch": 4, "replay": False, "taste": "short", "seed": 1, "points": points,
        "reactions": 40, "judged": 20, "agreed": 18, "seconds": 1.0, **changes,
    }  # fmt: skip
    return Run(**values)


QUICK = run_of({0: (0.5, 1.0), 10: (0.7, 0.95), 20: (0.92, 0.9), 30: (0.88, 1.0)})
SLOW = run_of({0: (0.4, 1.0), 30: (0.6, 1.0)})


def test_the_report_of_a_run() -> None:
    assert QUICK.reached == QUICK.points[2]
    assert (QUICK.after(0).version, QUICK.after(19).version, QUICK.after(20).version) == (0, 1, 2)
    assert QUICK.fall == pytest.approx(0.1)
    assert SLOW.reached is None
    assert Run.read(json.dumps(asdict(QUICK))) == QUICK
    assert "0.9 after 20 reactions (10 judged)" in sample_efficiency_report.line(QUICK)
    assert "0.9 after not in 40" in sample_efficiency_report.line(SLOW)


def test_the_mean_curve_is_what_was_in_use() -> None:
    curve = sample_efficiency_report.mean_curve([QUICK, SLOW], 30)
    assert len(curve) == 31
    assert [curve[n] for n in (0, 9, 10, 20, 30)] == pytest.approx([0.45, 0.45, 0.55, 0.66, 0.74])


def test_the_table_counts_who_never_came_there_as_late() -> None:
    rows = sample_efficiency_report.table([QUICK, SLOW, run_of({0: (0.95, 1.0)}), run_of({0: (0.5, 1.0)}, replay=True)])
    lines = rows.splitlines()
    assert len(lines) == 4
    assert "| combine | 4 | no | no | no | 20 (0 to > 40) | 10 (0 to > 20) |" in lines[2]
    assert "| combine | 4 | yes | no | no | > 40 (> 40 to > 40) |" in lines[3]


def test_the_table_says_how_it_goes_on_after_a_change_of_taste() -> None:
    curve = {0: (0.5, 1.0), 10: (0.95, 1.0), 20: (0.0, 1.0), 32: (0.91, 1.0)}
    back = run_of(curve, then="long", changed=20, next_reply=True, practice=True)
    gone = run_of({0: (0.5, 1.0), 20: (0.0, 1.0)}, then="long", changed=20, next_reply=False, practice=True)
    assert (back.reached, back.returned) == (back.points[1], 12)
    assert (gone.reached, gone.returned) == (None, None)
    (row,) = sample_efficiency_report.table([back, gone]).splitlines()[2:]
    assert row.startswith("| combine | 4 | no | yes | no | > 40 (10 to > 40) |")
    assert "| 1 of 2 |" in row
    assert "| > 20 (12 to > 20) |" in row


def test_the_document(tmp_path: Path) -> None:
    doc = tmp_path / "sample_efficiency.md"
    sample_efficiency_report.write(doc, {"people": [QUICK, SLOW]}, questions=200)
    words = doc.read_text(encoding="utf-8")
    assert "on 200 questions" in words
    assert "a score to 40 of 80 reactions (50%); 36 of those (90%)" in words
    assert (tmp_path / "images" / "sample_efficiency.png").stat().st_size > 1000


def test_runs_that_are_known_are_not_run_again(tmp_path: Path) -> None:
    words = f"--out {tmp_path} --tastes short --methods combine --batches 4 --replay off --seeds 1"
    words += " --practice off --lessons off"
    given = sample_efficiency.arguments().parse_args(words.split())
    (wanted,) = sample_efficiency.plan(given)
    known = run_of({0: (0.5, 1.0)}, name=wanted.name)
    (tmp_path / "runs.jsonl").write_text(json.dumps(asdict(known)) + "\n", encoding="utf-8")
    assert sample_efficiency.run_all([wanted], given, sample_efficiency.Console(quiet=True)) == [known]
