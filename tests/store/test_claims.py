"""Several workers of a stage share its rows: each row has one of them, and the rows of one that ended are free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.deaths import die, run_in_process

from openclaw_rl.errors import WorkerNameTaken
from openclaw_rl.store.db import Store
from openclaw_rl.store.workers.attempts import AttemptLog
from openclaw_rl.store.workers.registry import LIFETIME, WorkerEntry, live_workers
from openclaw_rl.supervisor.supervisor import check_names_free


class Clock:
    """Seconds since the boot, of a process that can be suspended."""

    def __init__(self) -> None:
        self.now = -2 * LIFETIME

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def test_a_row_has_one_worker(store: Store) -> None:
    with WorkerEntry(store, "judge") as one, WorkerEntry(store, "judge-2") as two:
        first = AttemptLog(store, "judge", one.id)
        second = AttemptLog(store, "judge", two.id)
        assert first.claim(["a", "b"]).refs == {"a", "b"}
        assert second.claim(["b", "c"]).refs == {"c"}
        with store.read() as conn:
            assert first.read(conn).elsewhere == {"c"}
            assert second.read(conn).elsewhere == {"a", "b"}
            assert second.read(conn).deaths == {}, "their worker runs"
        with store.write() as conn:
            second.end(conn)
        assert second.claim(["a"]).refs == frozenset(), (
            "the end of one worker's rows ends no others"
        )
        with store.write() as conn:
            first.end(conn, ["a"])
        assert second.claim(["a"]).refs == {"a"}


def test_a_row_that_rests_stays_with_its_worker_and_is_no_death(store: Store) -> None:
    with WorkerEntry(store, "judge-2") as two:
        second = AttemptLog(store, "judge", two.id)
        with WorkerEntry(store, "judge") as one:
            first = AttemptLog(store, "judge", one.id)
            first.claim(["a"])
            with store.write() as conn:
                first.rest(conn, ["a"])
            assert second.claim(["a"]).refs == frozenset()
            assert first.claim(["a"]).refs == {"a"}
            with store.write() as conn:
                first.rest(conn, ["a"])
        claim = second.claim(["a"])
        assert claim.refs == {"a"}
        assert claim.deaths == {}


def test_the_rows_of_a_killed_worker_are_free_at_once_and_count_as_deaths(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    Store.open(path).close()

    def claim_and_die() -> None:
        store = Store.open(path)
        AttemptLog(store, "judge", WorkerEntry(store, "judge").id).claim(["a"])
        die()

    run_in_process(claim_and_die)
    with Store.open(path) as store, WorkerEntry(store, "judge") as entry:
        claim = AttemptLog(store, "judge", entry.id).claim(["a", "b"])
        assert claim.refs == {"a", "b"}
        assert claim.deaths == {"a": 1}


def test_a_suspended_worker_loses_its_rows(store: Store) -> None:
    clock = Clock()
    with WorkerEntry(store, "judge", clock=clock) as one:
        with store.read() as conn:
            assert list(live_workers(store, conn, clock.now)) == [one.id]
            assert list(live_workers(store, conn, clock.now + LIFETIME)) == []
        slow = AttemptLog(store, "judge", one.id)
        slow.claim(["a"])
        # By the real clock, its entry has long expired.
        with WorkerEntry(store, "judge") as two:
            other = AttemptLog(store, "judge", two.id)
            assert other.claim(["a"]).refs == {"a"}
            with store.read() as conn:
                assert slow.still_held(conn, ["a"]) == frozenset()
                assert other.still_held(conn, ["a"]) == {"a"}
            with store.write() as conn:
                slow.end(conn, ["a"])
            with store.read() as conn:
                assert other.still_held(conn, ["a"]) == {"a"}, "a late worker ends nobody's work"


def test_a_name_belongs_to_one_process(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def enter_twice() -> None:
        with Store.open(path) as store, pytest.raises(WorkerNameTaken, match=str(os.getppid())):
            WorkerEntry(store, "judge")

    with Store.open(path) as store:
        with WorkerEntry(store, "judge"):
            assert run_in_process(enter_twice) == 0
            with pytest.raises(WorkerNameTaken, match="works on this home already"):
                check_names_free(store, ("judge", "train"))
            check_names_free(store, ("train",))
        check_names_free(store, ("judge",))
