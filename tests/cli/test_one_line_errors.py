"""Odd homes, damaged stores and bugs: a command ends with one line that says what happened and what to do."""

from __future__ import annotations

import os
import pty
import sqlite3
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.cli.main import main
from openclaw_rl.common.logging_metrics import JsonLinesFormatter, LogFileHandler, setup_logging
from openclaw_rl.common.printable import wrap_lines
from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.status import report
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies

READERS = (
    ("status",),
    ("status", "--json"),
    ("inspect", "sessions"),
    ("inspect", "turn", "x"),
    ("inspect", "policy", "0"),
    ("doctor", "--troubles"),
    ("rollback", "0", "--yes"),
    ("data", "export", "out"),
)
STARTERS = (("serve",), ("train",), ("collect",))
"""Commands that start processes. The tests give them homes with which they must not."""


def error_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The error of a command that fails: one line, besides notices and the heading of a command that starts workers."""
    with pytest.raises(SystemExit) as ended:
        main(list(command))
    said = capsys.readouterr().err
    assert ended.value.code == 1, said
    lines = [
        line for line in said.splitlines() if not line.startswith(("note: ", "OpenClaw-RL ", "  "))
    ]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    assert "unexpected error" not in said
    return lines[0]


def sql(statement: str) -> Callable[[Path], None]:
    def damage(home: Path) -> None:
        conn = sqlite3.connect(home / "store.db")
        conn.execute(statement)
        conn.commit()
        conn.close()

    return damage


def write(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda home: (home / "store.db").write_bytes(change((home / "store.db").read_bytes()))


DAMAGED_STORES: dict[str, tuple[Callable[[Path], object], str]] = {
    "random bytes": (write(lambda raw: b"\xa7" * len(raw)), "not a SQLite file"),
    "no beginning": (write(lambda raw: raw[100:]), "not a SQLite file"),
    "truncated": (write(lambda raw: raw[: len(raw) // 2]), "the file is damaged"),
    "overwritten": (
        write(lambda raw: raw[:4096] + b"\xff" * (len(raw) - 4096)),
        "the file is damaged",
    ),
    "newer": (sql("UPDATE meta SET value = '99' WHERE key = 'schema'"), "its schema is 99"),
    "no number": (sql("UPDATE meta SET value = 'x' WHERE key = 'schema'"), "the file is damaged"),
    "no secret": (sql("DELETE FROM meta WHERE key = 'secret'"), "the file is damaged"),
    "another program's": (sql("ALTER TABLE meta RENAME TO notes"), "not one of openclaw-rl"),
    "a folder": (
        lambda home: [(home / "store.db").unlink(), (home / "store.db").mkdir()],
        "this is a folder",
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "a home" / "store.db") as store, store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
    return tmp_path / "a home"


@pytest.mark.parametrize("kind", DAMAGED_STORES)
def test_a_damaged_store(home: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    damage, words = DAMAGED_STORES[kind]
    damage(home)
    for command in (*READERS, *STARTERS):
        assert words in error_of(capsys, *command, "--home", str(home)), command


def test_a_store_without_a_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql("DROP TABLE loops")(home)
    for command in (("status",), ("doctor", "--troubles")):
        assert "the file is damaged" in error_of(capsys, *command, "--home", str(home))


@pytest.mark.parametrize("state", ["no home", "no store", "an empty store", "no version"])
def test_the_first_seconds_of_a_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    home = tmp_path / "home"
    if state != "no home":
        home.mkdir()
    if state == "an empty store":
        (home / "store.db").touch()
    elif state == "no version":
        Store.open(home / "store.db").close()
    for command in (("status",), ("status", "--json")):
        assert "openclaw-rl up" in error_of(capsys, *command, "--home", str(home))


@pytest.mark.parametrize("kind", ["file", "below a file", "link loop", "long name"])
def test_an_unusable_home_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    names = {
        "file": "file",
        "below a file": "file/home",
        "link loop": "loop",
        "long name": "a" * 300,
    }
    home = str(tmp_path / names[kind])
    for command in (("status",), ("key",), *STARTERS):
        assert home in error_of(capsys, *command, "--home", home)


def test_a_home_whose_path_is_too_long_for_a_socket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = str(tmp_path / ("a" * 120))
    assert "Choose a shorter `home`" in error_of(capsys, "serve", "--home", home)


def test_a_variable_of_another_program_does_not_stop_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_SIZE", "abc")
    Store.open(tmp_path / "store.db").close()
    assert "no policy version yet" in error_of(capsys, "status", "--home", str(tmp_path))


def test_a_bug_ends_in_one_line_and_a_file(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise KeyError("a bug\nof two lines \x1b[2J")

    monkeypatch.setattr(report, "show_status", fail)
    with pytest.raises(SystemExit) as ended:
        main(["status", "--home", str(home)])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "unexpected error: KeyError" in said
    file = Path(said.split()[-1])
    assert "Traceback" in file.read_text()
    file.unlink()


DEEP_OR_WRONG = {"list": "[" * 1500, "map": "{a: " * 1500, "date": "version: 1\nrules: 2026-99-99"}


@pytest.mark.parametrize("text", DEEP_OR_WRONG.values(), ids=DEEP_OR_WRONG)
def test_rules_that_yaml_cannot_build(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        RulesJudge.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_on_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = setup_logging("test", None)
    handler = LogFileHandler("/dev/full")
    handler.setFormatter(JsonLinesFormatter())
    log.addHandler(handler)
    for number in range(3):
        log.error("message %d", number)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "message" not in line] == [
        "the log /dev/full cannot be written (No space left on device). Free some space on its disk"
    ]
    assert len(lines) == 4
    setup_logging("test", None)  # closes the file


def test_a_judge_without_an_endpoint_is_reported_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--home", str(tmp_path), "--judge-model", "gpt-4"])
    shown = capfd.readouterr().err
    assert shown.count("no endpoint serves it") == 1
    assert "openclaw-rl: judge.model is gpt-4, and no endpoint serves it" in shown


def test_an_error_on_a_terminal_is_wrapped_between_words(tmp_path: Path) -> None:
    shown = in_terminal(["up", "--home", str(tmp_path), "--judge-model", "gpt-4"], columns=80)
    lines = shown.split("\n")
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)
    assert (
        "".join(f"{line} " for line in lines).count(
            "no endpoint serves it: the judge cannot start."
        )
        == 1
    )


def in_terminal(arguments: list[str], *, columns: int) -> str:
    """Run a command whose stderr is a terminal, and return what it prints there."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    command = [sys.executable, "-m", "openclaw_rl", *arguments]
    environ = {**os.environ, "COLUMNS": str(columns)}
    with os.fdopen(ours, "rb", closefd=True) as terminal:
        subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=theirs, env=environ, timeout=240, check=False
        )
        os.close(theirs)
        return terminal.read1(65536).decode().replace("\r\n", "\n").strip()


def test_words_that_are_longer_than_a_line_stay_whole() -> None:
    path = "/tmp/" + "a-long-name/" * 10
    assert (
        wrap_lines(f"openclaw-rl: {path} is no folder\n", 40)
        == f"openclaw-rl:\n{path}\nis no folder\n"
    )


def test_a_command_whose_quotation_does_not_end_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "env",
        "check",
        "command",
        "--tasks",
        "t.jsonl",
        "--oracle",
        'play "b',
        "--home",
        str(tmp_path / "home"),
    )
    assert "--oracle: a quotation of the command does not end" in error_of(capsys, *command)


def test_a_variable_that_no_box_can_have_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "env",
        "check",
        "command",
        "--tasks",
        "t.jsonl",
        "--env",
        "A B=x",
        "--home",
        str(tmp_path / "home"),
    )
    assert "--env A B: expected a name of letters" in error_of(capsys, *command)
