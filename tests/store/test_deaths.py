"""A row on which a worker died twice is set aside with the reason, and all other rows go on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.judge.world import World
from tests.small_disk import fill, free, mount_small_disk
from tests.store.deaths import deaths_until_done, die, run_in_process
from tests.store.world import reply, request
from tests.trajectories.world import Home, live, main, plot, put

from openclaw_rl.collect import worker as collect_worker
from openclaw_rl.collect.worker import Collector
from openclaw_rl.errors import DiskFull, StoreError
from openclaw_rl.judge import worker as judge_worker
from openclaw_rl.judge.voting import make_verdict
from openclaw_rl.settings.load import CollectConfig, from_flat
from openclaw_rl.status import report
from openclaw_rl.store import events, exchanges, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.workers.attempts import (
    MAX_DEATHS,
    MAX_SET_ASIDE,
    AttemptLog,
    AttemptNotes,
    excuse_deaths,
)
from openclaw_rl.trajectories import importer, sync_worker
from openclaw_rl.trajectories.sync_worker import FolderSync
from openclaw_rl.types import JudgeInput, Request, TurnState, Verdict

COUNT = 6


def notes_of(store: Store, log: AttemptLog) -> AttemptNotes:
    with store.read() as conn:
        return log.read(conn)


def states(path: Path, *ids: str) -> list[tuple[TurnState, str]]:
    with Store.open(path) as store, store.read() as conn:
        found = [turns.get(conn, id_) for id_ in ids]
    return [(turn.state, turn.untrainable or "") for turn in found if turn is not None]


def test_an_attempt_survives_the_process_and_ends_with_the_result(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def begin_and_die() -> None:
        AttemptLog(Store.open(path), "judge").begin(["a", "b"])
        die()

    Store.open(path).close()
    for _ in range(2):
        run_in_process(begin_and_die)
    with Store.open(path) as store:
        log = AttemptLog(store, "judge")
        assert log.deaths() == {"a": 2, "b": 2}
        assert AttemptLog(store, "collect").deaths() == {}
        assert log.begin(["b", "c"]) == {"b": 2}
        with store.write() as conn:
            log.end(conn, ["b"])
        log.forget(["c"])
        assert log.deaths() == {"a": 2}


def test_deaths_caused_by_the_machine_do_not_count(tmp_path: Path) -> None:
    """Twice: a third one may be the fault of the row, such as a batch that needs more memory than there is."""
    path = tmp_path / "store.db"

    def begin_and_die() -> None:
        AttemptLog(Store.open(path), "train").begin(["a"])
        (tmp_path / "pid").write_text(str(os.getpid()))
        die()

    Store.open(path).close()
    counts = []
    for _ in range(4):
        run_in_process(begin_and_die)
        with Store.open(path) as store:
            excuse_deaths(store, int((tmp_path / "pid").read_text()))
            counts.append(AttemptLog(store, "train").deaths().get("a", 0))
    assert counts == [0, 0, 1, 2]
    with Store.open(path) as store, store.write() as conn:
        AttemptLog(store, "train").end(conn)
    run_in_process(begin_and_die)
    with Store.open(path) as store:
        assert AttemptLog(store, "train").deaths() == {"a": 1}, (
            "of a row that has ended, nothing is left"
        )


def test_another_process_is_not_excused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def begin_and_die() -> None:
        AttemptLog(Store.open(path), "judge").begin(["a"])
        die()

    Store.open(path).close()
    run_in_process(begin_and_die)
    with Store.open(path) as store:
        assert excuse_deaths(store, os.getpid()) == 0
        assert AttemptLog(store, "judge").deaths() == {"a": 1}


def test_an_attempt_left_by_a_full_disk_is_not_a_death(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "small", 2) as disk, Store.open(disk / "store.db") as store:
        log = AttemptLog(store, "collect")

        def work() -> None:
            assert log.begin(["a"]) == {}
            fill(disk)
            with log.interrupted_by(StoreError), store.write() as conn:
                log.end(conn)
                events.append(conn, "test", "a", {"words": "x" * 10**6}, 0.0)

        with pytest.raises(DiskFull):
            work()
        assert log.deaths() == {}
        free(disk)
        for _ in range(3):
            assert log.begin(["a"]) == {}
        with store.write() as conn:
            log.end(conn)
        assert AttemptLog(store, "collect").deaths() == {}


def test_rows_are_not_set_aside_after_many_deaths_in_sequence(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store, store.write() as conn:
        log = AttemptLog(store, "judge")
        for number in range(MAX_SET_ASIDE):
            assert str(log.give_up(conn, f"row {number}", MAX_DEATHS)).startswith(
                "set aside: the judge worker died 2"
            )
        assert log.give_up(conn, "another", MAX_DEATHS) is None
        log.end(conn, ["success"])
        assert log.give_up(conn, "another", MAX_DEATHS)
        assert log.give_up(conn, "harmless", MAX_DEATHS - 1) is None


@pytest.mark.parametrize("first", [True, False], ids=["alone", "in the middle of a transaction"])
def test_collect_continues_after_a_request_that_kills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    path = tmp_path / "store.db"
    fatal = "c0" if first else "c2"
    with Store.open(path) as store, store.write() as conn:
        for number in range(COUNT):
            exchanges.admit(conn, [request(f"c{number}")])
            exchanges.finish(conn, [reply(request(f"c{number}"))])
    link = collect_worker.link_request

    def link_or_die(asked: Request, *args: Any) -> Any:
        if asked.id == fatal:
            die()
        return link(asked, *args)

    monkeypatch.setattr(collect_worker, "link_request", link_or_die)

    def collect() -> None:
        with Store.open(path) as store:
            collector = Collector(store, CollectConfig())
            while collector.step():
                pass
            assert AttemptLog(store, "collect").deaths() == {}

    assert MAX_DEATHS <= deaths_until_done(collect) <= (MAX_DEATHS if first else MAX_DEATHS + 1)
    others = [f"c{number}" for number in range(COUNT) if f"c{number}" != fatal]
    assert states(path, *others) == [(TurnState.SERVED, "")] * (COUNT - 1)
    ((state, why),) = states(path, fatal)
    assert state is TurnState.DROPPED
    assert why == "set aside: the collect worker died 2 times while it worked on it"


class FatalJudge:
    """A judge that ends its process for one turn, and is never done with the turns that it judges beside it."""

    name = "fatal"

    def __init__(self, fatal: str) -> None:
        self._fatal, self._begun = fatal, 0

    async def judge(self, item: JudgeInput) -> Verdict:
        self._begun += 1
        await asyncio.sleep(0.01)
        if item.turn == self._fatal:
            die()
        return make_verdict(item, self.name, 1, "good", votes=(), hints=())


def test_the_judge_continues_after_a_turn_that_kills_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = from_flat({"home": str(tmp_path), "judge.workers": 4})
    ids = [f"j{number}" for number in range(COUNT)]
    with Store.open(config.store_path) as store:
        for id_ in ids:
            World(config, store).close(id_, "And now?")
        with store.write() as conn:
            policies.ensure_root(conn, base="b", identity="i", at=1.0)

    async def judge_all() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(judge_worker.run(config, stop=stop, judge=FatalJudge("j2")))
        with Store.open(config.store_path) as store:
            while not stop.is_set():
                await asyncio.wait({task}, timeout=0.01)
                with store.read() as conn:
                    if TurnState.CLOSED not in turns.count_by_state(conn):
                        stop.set()
        await task

    assert deaths_until_done(lambda: asyncio.run(asyncio.wait_for(judge_all(), 600))) == MAX_DEATHS
    assert states(config.store_path, *(id_ for id_ in ids if id_ != "j2")) == [
        (TurnState.JUDGED, "")
    ] * (COUNT - 1)
    why = "set aside: the judge worker died 2 times while it worked on it"
    assert states(config.store_path, "j2") == [(TurnState.DROPPED, why)]
    with Store.open(config.store_path) as store:
        assert AttemptLog(store, "judge").deaths() == {}
    report.show_status(config, as_json=False)
    assert "set aside" in capsys.readouterr().out


def test_stopping_the_judge_is_not_a_death(tmp_path: Path) -> None:
    config = from_flat({"home": str(tmp_path)})
    with Store.open(config.store_path) as store:
        World(config, store).close("a", "And now?")

    class Slow:
        name = "slow"

        async def judge(self, item: JudgeInput) -> Verdict:
            await asyncio.sleep(60)
            raise AssertionError

    async def stopped() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(judge_worker.run(config, stop=stop, judge=Slow()))
        with Store.open(config.store_path) as store:
            log = AttemptLog(store, "judge")
            while not notes_of(store, log).elsewhere:
                await asyncio.sleep(0.01)
            assert log.deaths() == {}, "its worker runs"
            stop.set()
            await task
            assert log.deaths() == {}

    asyncio.run(asyncio.wait_for(stopped(), 600))


def sync(home: Path, **data: str) -> FolderSync:
    config = from_flat({"home": str(home)} | {f"data.{key}": value for key, value in data.items()})
    return FolderSync(config, Store.open(config.store_path), stop=lambda: False)


def test_an_import_continues_after_an_entry_that_kills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        {"session_id": f"s{n}", "turns": [main(f"Question {n}", f"Answer {n}")]} for n in range(4)
    ]
    file = put(tmp_path / "in" / "talk.jsonl", *entries)
    Home.open(tmp_path / "home").store.close()
    resolve = importer.resolve_turns

    def resolve_or_die(trajectory: Any) -> Any:
        if trajectory.session_id == "s2":
            die()
        return resolve(trajectory)

    monkeypatch.setattr(importer, "resolve_turns", resolve_or_die)
    monkeypatch.setattr(
        importer.TrajectoryImporter,
        "_score_entries",
        lambda self, ready, report, follow: list(ready),
    )
    assert (
        deaths_until_done(lambda: sync(tmp_path / "home", path=str(file)).run_once())
        == MAX_DEATHS + 1
    )
    (refused,) = [
        json.loads(line)
        for line in (tmp_path / "home" / "logs" / "refused.jsonl").read_text().splitlines()
    ]
    assert (refused["place"], refused["reason"]) == ("line 3", "fatal")
    assert refused["detail"] == "set aside: the data worker died 2 times while it worked on it"
    with Home.open(tmp_path / "home").store as store, store.read() as conn:
        assert sum(turns.count_by_state(conn).values()) == 3
        assert AttemptLog(store, "data").deaths() == {}


def test_an_unreadable_import_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = put(tmp_path / "in" / "bad.jsonl", {"session_id": "a", "turns": [main("Q", "A")]})
    put(tmp_path / "in" / "good.jsonl", {"session_id": "b", "turns": [main("Q", "A")]})
    Home.open(tmp_path / "home").store.close()
    read = sync_worker.reading.read_entries

    def read_or_die(file: Path) -> Iterator[sync_worker.reading.TrajectoryEntry]:
        if file == bad:
            die()
        yield from read(file)

    monkeypatch.setattr(sync_worker.reading, "read_entries", read_or_die)
    monkeypatch.setattr(
        importer.TrajectoryImporter,
        "_score_entries",
        lambda self, ready, report, follow: list(ready),
    )
    assert (
        deaths_until_done(lambda: sync(tmp_path / "home", path=str(tmp_path / "in")).run_once())
        == MAX_DEATHS
    )
    (refused,) = [
        json.loads(line)
        for line in (tmp_path / "home" / "logs" / "refused.jsonl").read_text().splitlines()
    ]
    assert (Path(refused["file"]).name, refused["reason"]) == ("bad.jsonl", "fatal")


def test_an_export_continues_after_a_session_that_kills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Home.open(tmp_path / "home").store as store:
        live(store, [[plot("judged")] for _ in range(3)])
    save = sync_worker.save_session

    def save_or_die(conn: Any, folder: Path, session: Any, **which: Any) -> Any:
        if session.name == "session 1":
            die()
        return save(conn, folder, session, **which)

    monkeypatch.setattr(sync_worker, "save_session", save_or_die)
    out = tmp_path / "out"
    assert (
        deaths_until_done(lambda: sync(tmp_path / "home", export_dir=str(out)).run_once())
        == MAX_DEATHS + 1
    )
    assert sorted(file.name for file in out.iterdir()) == ["session 0.json", "session 2.json"]


def test_attempts_are_recorded_without_an_fsync(tmp_path: Path) -> None:
    """A note is a commit of its own before each transaction; it must stay far below one that waits for the disk."""
    with Store.open(tmp_path / "store.db") as store:
        begun: list[bool] = []
        write = store.write
        store.write = lambda **how: (begun.append(how.get("durable", True)), write(**how))[1]  # type: ignore[method-assign]
        log = AttemptLog(store, "judge")
        log.begin(["a"])
        log.forget(["a"])
        assert begun == [False, False]
    assert MAX_DEATHS == 2
