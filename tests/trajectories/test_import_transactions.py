"""An import writes in short transactions, between which replies and other workers write."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trajectories.world import Home, main, put

from openclaw_rl.store.db import Store
from openclaw_rl.trajectories import importer
from openclaw_rl.trajectories.files import TrajectoryEntry, read_entries
from openclaw_rl.trajectories.importer import SCORED_SHARE, TrajectoryImporter
from openclaw_rl.trajectories.report import ImportReport


def test_the_write_lock_is_released_between_the_turns_of_a_trajectory(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation of hundreds of turns takes seconds to write, and replies of the gateway wait for the lock."""
    monkeypatch.setattr(importer, "LONGEST_TRANSACTION", 0.0)
    turns = [main(f"question {n}", f"answer {n}", id=f"t{n}") for n in range(10)]
    file = put(tmp_path / "in.jsonl", {"session_id": "s", "turns": turns})
    commits = 0

    def count_commit(_entry: TrajectoryEntry, _share: float) -> None:
        nonlocal commits
        commits += watching.has_changed()

    with Store.open(home.config.store_path) as watching, ImportReport() as report:
        watching.has_changed()
        built = TrajectoryImporter(home.config, home.store, score=False)
        watching.has_changed()
        built.run(read_entries(file), report, follow=count_commit)
    assert report.counts.turns == 10
    assert commits == 10


def test_an_interrupted_import_is_completed_by_the_next_one(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "LONGEST_TRANSACTION", 0.0)
    turns = [main(f"question {n}", f"answer {n}", id=f"t{n}") for n in range(6)]
    file = put(tmp_path / "in.jsonl", {"session_id": "s", "turns": turns})
    halfway = (SCORED_SHARE + 1) / 2

    def interrupt(_entry: TrajectoryEntry, share: float) -> None:
        if share >= halfway:
            raise KeyboardInterrupt

    with ImportReport() as report, pytest.raises(KeyboardInterrupt):
        TrajectoryImporter(home.config, home.store, score=False).run(
            read_entries(file), report, follow=interrupt
        )
    assert len(home.exports()) == 1, "its first half was written"
    report = home.bring(file)
    assert (report.counts.turns, report.counts.grown) == (3, 1)
    assert home.bring(file).counts.known == 1
