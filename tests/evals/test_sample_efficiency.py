"""The measurement of learning at one person's rate: the whole system in one process, and its reports."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import sample_efficiency, sample_efficiency_report
from benchmarks.sample_efficiency import Setting
from benchmarks.sample_efficiency_report import Point, Run

from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies

pytestmark = pytest.mark.system


def setting(**changes: Any) -> Setting:
    values: dict[str, Any] = {
        "method": "combine", "batch": 2, "replay": True, "taste": "short", "seed": 3, "more": {}, **changes
    }  # fmt: skip
    return Setting(**values)


def test_a_talk_is_the_same_each_time(tmp_path: Path) -> None:
    """Real stages, and nothing races: same versions after the same reactions, measured alike to the last digit."""
    runs = [
        sample_efficiency.one(setting(), tmp_path / name, reactions=8, questions=4) for name in "ab"
    ]
    assert runs[0].points == runs[1].points
    first, second, third = runs[0].points[:3]
    assert (first.version, first.reactions, first.judged) == (0, 0, 0)
    assert (second.judged, third.judged) == (2, 4), "a batch is two fresh judged turns"
    assert 8 <= runs[0].reactions < 12
    assert runs[0].agreed <= runs[0].judged < runs[0].reactions
    store = Store.open(tmp_path / "a" / "store.db", create=False)
    with store.read() as conn:
        numbers = [
            sorted(use.number for use in policies.uses_of_version(conn, version))
            for version in (1, 2)
        ]
    store.close()
    assert numbers == [[1, 1], [1, 1, 2, 2]]


@pytest.mark.parametrize("replay", [True, False])
def test_a_cell_is_its_settings(replay: bool) -> None:
    made = setting(replay=replay, batch=8, more={"train.optimizer.learning_rate": 0.003})
    train = from_flat(made.settings).train
    assert (train.batch.min_turns, train.batch.max_turns, train.batch.max_uses) == (
        (8, 16, 2) if replay else (8, 8, 1)
    )
    assert train.optimizer.learning_rate == 0.003
    assert made.name == f"combine-8{'-replay' if replay else ''}-short-3-learning_rate=0.003"


def test_a_lesson_is_practised_and_a_taste_may_change(tmp_path: Path) -> None:
    """The weights alone follow the person after a few reactions, and the next reply does at once."""
    changes: dict[str, Any] = {
        "batch": 4,
        "replay": False,
        "practice": True,
        "lessons": True,
        "seed": 1,
    }
    made = setting(**changes, then="long", more={"practice.step_limit": 2, "practice.replies": 4})
    run = sample_efficiency.one(made, tmp_path, reactions=4, questions=4, instructions=True)
    assert made.name == "combine-4-practice-lessons-short-long-1-replies=4-step_limit=2"
    assert run.changed is not None
    assert run.changed < run.reactions
    assert run.next_reply is not None
    assert run.points[-1].version > 0
    assert run.points[-1].entropy is not None
    assert run.points[-1].distinct > 0
    assert len(run.obeys) == 2
    assert run.obeys[0] == 1.0, "the starter does what the prompt says"


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


def test_the_mean_curve_is_of_the_versions_in_use() -> None:
    curve = sample_efficiency_report.mean_curve([QUICK, SLOW], 30)
    assert len(curve) == 31
    assert [curve[n] for n in (0, 9, 10, 20, 30)] == pytest.approx([0.45, 0.45, 0.55, 0.66, 0.74])


def test_the_table_counts_people_who_were_never_satisfied_as_late() -> None:
    rows = sample_efficiency_report.table(
        [QUICK, SLOW, run_of({0: (0.95, 1.0)}), run_of({0: (0.5, 1.0)}, replay=True)]
    )
    lines = rows.splitlines()
    assert len(lines) == 4
    assert "| combine | 4 | no | no | no | 20 (0 to > 40) | 10 (0 to > 20) |" in lines[2]
    assert "| combine | 4 | yes | no | no | > 40 (> 40 to > 40) |" in lines[3]


def test_the_table_shows_the_results_after_a_change_of_taste() -> None:
    curve = {0: (0.5, 1.0), 10: (0.95, 1.0), 20: (0.0, 1.0), 32: (0.91, 1.0)}
    back = run_of(curve, then="long", changed=20, next_reply=True, practice=True)
    gone = run_of(
        {0: (0.5, 1.0), 20: (0.0, 1.0)}, then="long", changed=20, next_reply=False, practice=True
    )
    assert (back.reached, back.returned) == (back.points[1], 12)
    assert (gone.reached, gone.returned) == (None, None)
    (row,) = sample_efficiency_report.table([back, gone]).splitlines()[2:]
    assert row.startswith("| combine | 4 | no | yes | no | > 40 (10 to > 40) |")
    assert "| 1 of 2 |" in row
    assert "| > 20 (12 to > 20) |" in row


def test_the_table_says_how_far_prompts_are_followed() -> None:
    runs = [replace(QUICK, obeys=(1.0, share)) for share in (0.9, 1.0, 0.98)]
    assert "| 1.000 to 0.960 (0.900) |" in sample_efficiency_report.table(runs)
    assert "does what the prompt says" in sample_efficiency_report.table([QUICK])


def page_with(tmp_path: Path, *parts: str) -> Path:
    page = tmp_path / "page.md"
    sections = [
        f"## {part}\n\n<!-- begin: {part} -->\nold {part}\n<!-- end: {part} -->\n" for part in parts
    ]
    page.write_text("by hand\n" + "\n".join(sections), encoding="utf-8")
    return page


def test_a_part_replaces_its_section_and_no_other(tmp_path: Path) -> None:
    page = page_with(tmp_path, "people", "change")
    runs = [replace(r, command="command --parts people", questions=200) for r in (QUICK, SLOW)]
    sample_efficiency_report.write(page, {"people": runs})
    words = page.read_text(encoding="utf-8")
    assert (
        "Made by `command --parts people`: 1 people in each row, about 40 reactions of each, 200 questions."
        in words
    )
    assert "a score to 40 of 80 reactions (50%); 36 of those (90%)" in words
    assert "old people" not in words
    assert words.startswith("by hand")
    assert "old change" in words
    assert (tmp_path / "images" / "page_people.png").stat().st_size > 1000


def test_the_page_has_a_section_for_each_part() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "sample_efficiency.md").read_text(
        encoding="utf-8"
    )
    for part in sample_efficiency.PARTS:
        assert page.count(f"<!-- begin: {part} -->") == page.count(f"<!-- end: {part} -->") == 1


def test_arguments_win_over_those_of_a_part() -> None:
    parse = sample_efficiency.arguments("change").parse_args
    assert (parse([]).change, parse([]).seeds, parse([]).practice) == (True, 1, [True])
    assert parse(["--seeds", "2"]).seeds == 2
    assert sample_efficiency.arguments("without_practice").parse_args([]).practice == [False]


def test_a_part_can_be_limited_to_a_few_people() -> None:
    plans = [
        list(sample_efficiency.plan(sample_efficiency.arguments("change").parse_args(words)))
        for words in ([], ["--people", "3"])
    ]
    assert (len(plans[0]), plans[1]) == (20, plans[0][:3])


def test_the_people_of_a_later_seed_are_those_of_the_whole() -> None:
    parse = sample_efficiency.arguments("people").parse_args
    whole = list(sample_efficiency.plan(parse(["--seeds", "2"])))
    halves = [
        list(sample_efficiency.plan(parse(["--seeds", "1", "--seed", seed]))) for seed in ("1", "6")
    ]
    assert [*halves[0], *halves[1]] == whole


def test_the_command_of_a_part_has_the_options_that_change_its_figures() -> None:
    measured = ["--seeds", "2", "--set", "a.b=3"]
    words = [
        "--out",
        "runs/a",
        "--parts",
        "people",
        "change",
        *measured,
        "--parallel",
        "1",
        "--doc=page.md",
    ]
    command = "python -m benchmarks.sample_efficiency --parts change --seeds 2 --set a.b=3"
    assert sample_efficiency.part_command("change", words) == command


def stored(folder: Path, part: str, *runs: Run) -> Path:
    (folder / part).mkdir(parents=True)
    lines = [json.dumps(asdict(run)) + "\n" for run in runs]
    (folder / part / "runs.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def test_a_report_merges_parallel_runs(tmp_path: Path) -> None:
    """The command itself, on runs of two folders: each part's section has the runs of both."""
    page = page_with(tmp_path, "people", "change", "long")
    one = stored(tmp_path / "a", "people", replace(QUICK, name="quick", command="first"))
    two = stored(tmp_path / "b", "people", replace(SLOW, name="slow", seed=2, command="second"))
    stored(two, "change", replace(QUICK, command="third", then="long", changed=10))
    words = ["--report", str(one), str(two), "--doc", str(page)]
    command = [sys.executable, "-m", "benchmarks.sample_efficiency", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "Made by `first` and `second`: 2 people in each row" in text
    assert "Made by `third`: 1 people" in text
    assert "old long" in text


def test_a_report_without_runs_names_the_expected_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected folders that --out named"):
        sample_efficiency.report_or_measure(["--report", str(tmp_path)])


def known_and_planned(
    tmp_path: Path, *words: str, **changes: Any
) -> tuple[Run, list[Setting], Namespace]:
    fixed = f"--out {tmp_path} --tastes short --methods combine --batches 4 --replay off --seeds 1 --practice off"
    given = sample_efficiency.arguments().parse_args([*fixed.split(), *words])
    wanted = list(sample_efficiency.plan(given))
    known = run_of(
        {0: (0.5, 1.0)},
        name=wanted[0].name,
        asked=given.reactions,
        questions=given.questions,
        **changes,
    )
    (tmp_path / "runs.jsonl").write_text(json.dumps(asdict(known)) + "\n", encoding="utf-8")
    return known, wanted, given


def test_runs_that_are_known_are_not_run_again(tmp_path: Path) -> None:
    known, wanted, given = known_and_planned(tmp_path)
    assert sample_efficiency.run_all(wanted, given, sample_efficiency.Console(quiet=True)) == [
        known
    ]


def test_a_shorter_run_does_not_stand_for_a_longer_one(tmp_path: Path) -> None:
    _, wanted, given = known_and_planned(
        tmp_path, "--reactions", "1", "--questions", "2", "--parallel", "1"
    )
    given.reactions, given.command = 2, "command"
    (run,) = sample_efficiency.run_all(wanted, given, sample_efficiency.Console(quiet=True))
    assert (run.asked, run.questions, run.command) == (2, 2, "command")
    assert len((tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()) == 2
