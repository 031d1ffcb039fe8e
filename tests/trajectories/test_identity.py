"""Export, then import: the same again."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.trajectories.world import (
    PRINTED,
    Home,
    Plot,
    exported_file,
    live,
    main,
    nouns,
    plot,
    put,
    stories,
)

from openclaw_rl.errors import OpenClawError
from openclaw_rl.store import sessions
from openclaw_rl.trajectories import files as reading
from openclaw_rl.trajectories.operations import check_files, export_sessions, save_session

pytestmark = pytest.mark.system


def again(folder: Path, home: Home) -> Home:
    """A new home with what the first one exports."""
    (folder / "all.jsonl").write_bytes(b"\n".join(home.exports()))
    other = Home.open(folder / "other")
    report = other.bring(folder / "all.jsonl")
    assert report.refused_count == 0, report.examples
    return other


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(stories)
@example([[replace(plot("closed"), prompt="half \ud83d of it", answer="\ude00"), plot("judged")]])
def test_an_exported_store_is_imported_unchanged(story: list[list[Plot]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, third = Home.open(folder / "first"), Home.open(folder / "third")
        live(first.store, story)
        second = again(folder, first)
        assert third.bring(exported_file(first, folder / "all.parquet")).refused_count == 0
        for other in (second, third):
            assert other.exports() == first.exports()
            assert nouns(other.store) == nouns(first.store)
            other.store.close()
        assert (
            exported_file(third, folder / "again.parquet").read_bytes()
            == (folder / "all.parquet").read_bytes()
        )
        first.store.close()


def test_text_is_exported_with_its_tokens(tmp_path: Path, home: Home) -> None:
    home.bring(
        put(
            tmp_path / "in.jsonl",
            PRINTED,
            {"session_id": "b", "turns": [main("Hi", "Yo"), main("More", "No")]},
        )
    )
    other = again(tmp_path, home)
    assert other.exports() == home.exports()
    assert nouns(other.store) == nouns(home.store)
    other.store.close()


def test_importing_a_file_twice_changes_nothing(tmp_path: Path, home: Home) -> None:
    file = put(tmp_path / "in.jsonl", PRINTED)
    home.bring(file)
    before = home.exports()
    counts = home.bring(file).counts
    assert (counts.imported, counts.grown, counts.known, counts.turns) == (0, 0, 1, 0)
    assert home.exports() == before


def test_importing_an_export_of_the_same_store_changes_nothing(tmp_path: Path, home: Home) -> None:
    home.bring(put(tmp_path / "in.jsonl", PRINTED))
    (tmp_path / "out.jsonl").write_bytes(home.exports()[0])
    assert home.bring(tmp_path / "out.jsonl").counts.known == 1


def test_an_export_names_sessions_that_cannot_be_imported(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"session_id": "long one", "turns": [main("Hi " * 2000, "Yo")]}
    home.bring(put(tmp_path / "in.jsonl", PRINTED, odd))
    monkeypatch.setattr(reading, "ENTRY_BYTES", 9000)
    for to in ("out", "out.jsonl"):
        export_sessions(home.config, str(tmp_path / to), names=(), since=None, form="trajectories")
        assert "more than an import accepts: long one" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(reading, "ENTRY_BYTES", 10**6)
    export_sessions(home.config, str(tmp_path / "out"), names=(), since=None, form="trajectories")
    assert "Above" not in capsys.readouterr().out


def test_a_folder_gets_a_private_file_for_each_session(tmp_path: Path, home: Home) -> None:
    odd = {"session_id": "../a b/ü", "turns": [main("Hi", "Yo")]}
    home.bring(put(tmp_path / "in.jsonl", PRINTED, odd))
    export_sessions(home.config, str(tmp_path / "out"), names=(), since=None, form="trajectories")
    files = sorted((tmp_path / "out").iterdir())
    assert [f.name for f in files] == ["%2E.%2Fa b%2F%C3%BC.json", "user_session_abc123.json"]
    assert [f.stat().st_mode & 0o777 for f in files] == [0o600, 0o600]


@pytest.mark.parametrize(
    ("target", "names", "words"),
    [
        ("", (), "expected a folder, or a file that ends with .jsonl"),
        ("out.csv", (), r"out\.csv'?: expected a folder, or a file"),
        ("out.jsonl.gz", (), "expected a folder, or a file"),
        ("out.jsonl", ("user_session_abc123", "nope"), "--session nope: no such session"),
        ("out-pipe.jsonl", (), r"out-pipe\.jsonl exists, and is no file\. Name a file"),
        ("out-folder.json", (), "exists, and is no file"),
        ("/dev/full", (), "/dev/full exists, and is no folder. Name a folder"),
        ("in.jsonl/out", (), "cannot be written"),
    ],
)
def test_an_impossible_export_is_reported_and_writes_nothing(
    tmp_path: Path, home: Home, target: str, names: tuple[str, ...], words: str
) -> None:
    home.bring(put(tmp_path / "in.jsonl", PRINTED))
    os.mkfifo(tmp_path / "out-pipe.jsonl")
    (tmp_path / "out-folder.json").mkdir()
    before = sorted(tmp_path.rglob("out*"))
    with pytest.raises(OpenClawError, match=words):
        export_sessions(
            home.config,
            target and str(tmp_path / target),
            names=names,
            since=None,
            form="trajectories",
        )
    assert sorted(tmp_path.rglob("out*")) == before


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("[]\n")
    with pytest.raises(OpenClawError, match=r"refusals cannot be written .*--report"):
        check_files([str(file)], report=str(tmp_path))


def test_equal_session_names_of_two_keys_have_two_files(tmp_path: Path, home: Home) -> None:
    home.bring(put(tmp_path / "in.jsonl", {"session_id": "session 0", "turns": [main("Hi", "Yo")]}))
    live(home.store, [[plot("closed")]])
    with home.store.read() as conn:
        names = [
            save_session(conn, tmp_path / "out", s) for s in list(sessions.iter_sessions(conn))
        ]
    assert sorted(n.name for n in names if n) == ["session 0.json", "session 0~key.json"]
