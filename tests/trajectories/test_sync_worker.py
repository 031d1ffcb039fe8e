"""The bridge: what is captured becomes files, and files become turns, each once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.trajectories.world import PRINTED, Home, live, main, plot, put

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import heartbeats
from openclaw_rl.supervisor.supervisor import with_required_workers
from openclaw_rl.trajectories import sync_worker
from openclaw_rl.trajectories.operations import export_sessions
from openclaw_rl.trajectories.sync_worker import FolderSync, run

LATER = 10.0  # seconds; a file that was just written has been left alone for long enough


def opened(folder: Path, **data: str) -> tuple[Home, FolderSync]:
    home = Home.open(folder / "home", **{f"data__{k}": v for k, v in data.items()})
    return home, FolderSync(
        home.config, home.store, stop=lambda: False, clock=lambda: time.time() + LATER
    )


def written(folder: Path) -> dict[str, tuple[int, list[str]]]:
    """By name: when it was written, and the turns in it."""
    return {
        f.name: (f.stat().st_mtime_ns, [t["id"] for t in json.loads(f.read_bytes())["turns"]])
        for f in sorted(folder.iterdir())
    }


def test_a_sessions_file_holds_the_turns_that_have_closed(tmp_path: Path) -> None:
    home, sync = opened(tmp_path, export_dir=str(tmp_path / "out"))
    live(home.store, [[plot("judged"), plot("closed"), plot("served")], [plot("served")]])
    sync.run_once()
    first = written(tmp_path / "out")
    assert {name: ids for name, (_, ids) in first.items()} == {
        "session 0.json": ["chatcmpl-0-0", "chatcmpl-0-1"]
    }
    assert (tmp_path / "out" / "session 0.json").stat().st_mode & 0o777 == 0o600
    again = FolderSync(home.config, home.store, stop=lambda: False)
    again.run_once()
    assert written(tmp_path / "out") == first, "a restart writes nothing twice"
    home.store.close()


def test_links_are_not_followed_and_unfinished_files_are_removed(tmp_path: Path) -> None:
    home, _ = opened(tmp_path)
    live(home.store, [[plot("judged")]])
    precious, out = tmp_path / "precious", tmp_path / "out.jsonl"
    precious.write_text("mine")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    (tmp_path / f".{out.name}.{os.getpid()}.part").symlink_to(precious)
    left = tmp_path / f".{out.name}.{ended.pid}.part"
    left.write_text("half")
    export_sessions(home.config, str(out), names=(), since=None, form="trajectories")
    assert precious.read_text() == "mine"
    assert not out.is_symlink()
    assert json.loads(out.read_text())["turns"]
    assert not left.exists()
    home.store.close()


def test_a_lost_cursor_neither_loses_nor_rewrites_sessions(tmp_path: Path) -> None:
    """As when the process dies between a file and its cursor."""
    home, sync = opened(tmp_path, export_dir=str(tmp_path / "out"))
    live(home.store, [[plot("judged")]])
    sync.run_once()
    first = written(tmp_path / "out")
    with home.store.write() as conn:
        conn.exec_driver_sql("DELETE FROM cursors")
    sync.run_once()
    assert written(tmp_path / "out") == first
    (tmp_path / "out" / "session 0.json").unlink()
    with home.store.write() as conn:
        conn.exec_driver_sql("DELETE FROM cursors")
    sync.run_once()
    assert [ids for _, ids in written(tmp_path / "out").values()] == [["chatcmpl-0-0"]]
    home.store.close()


def test_one_folder_may_serve_import_and_export(tmp_path: Path) -> None:
    """What goes out comes in again, is known, and changes nothing; what was imported never goes out."""
    shared = tmp_path / "rollouts"
    home, sync = opened(tmp_path, export_dir=str(shared), watch_dir=str(shared))
    side = PRINTED | {"turns": [{"type": "side", "prompt": "2+2", "response": "4"}]}
    put(shared / "given.jsonl", side)
    live(home.store, [[plot("judged")]])
    for _ in range(3):
        sync.run_once()
    assert sorted(f.name for f in shared.iterdir()) == ["given.jsonl", "session 0.json"]
    assert len(home.exports()) == 2
    home.store.close()


def test_new_and_changed_files_are_imported_once_they_are_complete(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    home, sync = opened(tmp_path, watch_dir=str(folder))
    side = {"type": "side", "prompt": "2+2", "response": "4"}
    file = put(folder / "a.jsonl", {"session_id": "s", "turns": [side]})
    hurried = FolderSync(home.config, home.store, stop=lambda: False)
    hurried.run_once()
    assert home.exports() == [], "it may still be written to"
    sync.run_once()
    assert len(json.loads(home.exports()[0])["turns"]) == 1
    assert sync.note == "0 files written, 1 trajectory imported, 0 refused"
    sync.run_once()
    assert "1 trajectory imported" in sync.note, "it is read once"
    put(file, {"session_id": "s", "turns": [side, side | {"prompt": "3+3"}]})
    os.utime(file, (time.time() + 1, time.time() + 1))
    sync.run_once()
    assert len(json.loads(home.exports()[0])["turns"]) == 2
    restarted = FolderSync(
        home.config, home.store, stop=lambda: False, clock=lambda: time.time() + LATER
    )
    restarted.run_once()
    assert restarted.note == "0 files written, 0 trajectories imported, 0 refused"
    home.store.close()


def test_a_fast_clock_delays_no_file_and_a_deleted_file_is_no_error(
    tmp_path: Path,
) -> None:
    home, sync = opened(tmp_path, watch_dir=str(tmp_path / "in"))
    (tmp_path / "in").mkdir()
    file = put(tmp_path / "in" / "a.jsonl", PRINTED)
    tomorrow = time.time() + 86400
    os.utime(file, (tomorrow, tomorrow))
    sync.run_once()
    assert "1 trajectory imported" in sync.note
    sync._import_changed([tmp_path / "in" / "taken_away_meanwhile.jsonl"])
    assert "1 trajectory imported, 0 refused" in sync.note
    home.store.close()


def test_a_refused_file_is_reported_and_the_others_are_imported(tmp_path: Path) -> None:
    home, sync = opened(tmp_path, watch_dir=str(tmp_path / "in"))
    put(tmp_path / "in" / "a.jsonl", {"session_id": "s"})
    put(
        tmp_path / "in" / "b.jsonl",
        {"session_id": "s", "turns": [{"type": "side", "prompt": "a", "response": "b"}]},
    )
    sync.run_once()
    assert sync.note == "0 files written, 1 trajectory imported, 1 refused"
    assert (home.config.logs_dir / "refused.jsonl").exists()
    home.store.close()


def test_the_data_worker_imports_its_path_and_stops(tmp_path: Path) -> None:
    file = put(
        tmp_path / "in.jsonl",
        {"session_id": "s", "turns": [{"type": "side", "prompt": "a", "response": "b"}]},
    )
    home = Home.open(tmp_path / "home", data__path=str(file), data__poll=0.05)

    async def until_imported() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(run(home.config, stop=stop))
        while not home.exports() and not task.done():
            await asyncio.sleep(0.05)
        stop.set()
        await task

    asyncio.run(asyncio.wait_for(until_imported(), 300))
    with home.store.read() as conn:
        (beat,) = heartbeats.read_heartbeats(conn)
    assert beat.name == "data"
    home.store.close()


@pytest.mark.parametrize(
    ("data", "workers", "expected"),
    [
        ({}, ("train",), ("train",)),
        ({"data.path": "x"}, ("train",), ("judge", "train", "data")),
        ({"data.watch_dir": "x"}, ("train",), ("judge", "train", "data")),
        ({"data.watch_dir": "x"}, ("engine", "gateway"), ("engine", "gateway", "page")),
        (
            {"data.export_dir": "x"},
            ("engine", "gateway"),
            ("engine", "gateway", "collect", "data", "page"),
        ),
        ({"serve.page": False}, ("engine", "gateway"), ("engine", "gateway")),
        ({"data.export_dir": "x"}, ("collect",), ("collect", "data")),
    ],
)
def test_workers_that_the_settings_need_are_started(
    data: dict[str, str], workers: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert with_required_workers(from_flat(data), workers) == expected


def test_wrong_paths_are_reported_before_the_start(tmp_path: Path) -> None:
    put(tmp_path / "file.jsonl", PRINTED)
    with pytest.raises(ConfigError, match=r"data\.path .*: no such file or folder"):
        sync_worker.check_folders(from_flat({"data.path": str(tmp_path / "none")}))
    with pytest.raises(ConfigError, match=r"data\.export_dir .*: this is a file"):
        sync_worker.check_folders(from_flat({"data.export_dir": str(tmp_path / "file.jsonl")}))


def test_the_exit_code_shows_refusals(tmp_path: Path) -> None:
    sound = put(tmp_path / "a.jsonl", {"session_id": "s", "turns": [main("a", "b")]})
    broken = put(
        tmp_path / "b.jsonl", {"session_id": "s", "turns": [{"type": "main", "promt": "a"}]}
    )
    call = CliRunner().invoke
    assert call(cli, ["data", "check", str(sound)]).exit_code == 0
    refused = call(cli, ["data", "check", str(broken), "--report", str(tmp_path / "r.jsonl")])
    assert refused.exit_code == 1
    assert "unknown key" in refused.output
    refusal = json.loads((tmp_path / "r.jsonl").read_text())
    assert (refusal["file"], refusal["place"], refusal["turn"]) == (str(broken), "line 1", 1)
    assert call(cli, ["data", "check", str(broken), "--partial"]).exit_code == 0
    home = ["--home", str(tmp_path / "home")]
    assert (
        call(cli, ["data", "import", str(sound), str(broken), "--no-score", *home]).exit_code == 1
    )
    assert call(cli, ["data", "export", str(tmp_path / "all.json"), *home]).exit_code == 0
    assert [t["session_id"] for t in json.loads((tmp_path / "all.json").read_bytes())] == ["s"]
