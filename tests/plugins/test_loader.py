"""What is wrong with a file of the owner's is said in one line: file, line, got, expected."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.test_words import run

from openclaw_rl.errors import PluginError
from openclaw_rl.plugins.loader import Plugin, check_call, load_plugin
from openclaw_rl.plugins.source_check import check_plugin_files
from openclaw_rl.settings.load import from_flat

Make = Callable[[str], Plugin]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(text: str) -> Plugin:
        file = tmp_path / "mine.py"
        file.write_text(text)
        return load_plugin("train.loss.path", file, {"double": lambda x: 2 * x})

    return made


def test_the_file_runs_with_the_supplied_globals(make: Make, caplog: pytest.LogCaptureFixture,
                                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(logging.getLogger("openclaw_rl"), "propagate", True)
    with caplog.at_level(logging.INFO, "openclaw_rl.plugins"):
        plugin = make(
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\ndef f(x): return double(x)"
        )
    assert plugin.single_function("f", "g")[0] == "f"
    assert plugin.single_function("f")[1](4) == 8
    assert plugin.defined_names() == ["A", "f"]
    assert plugin.sha256 == hashlib.sha256(plugin.path.read_bytes()).hexdigest()
    assert plugin.sha256 in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", r"mine\.py:1: is not valid Python"),
        ("x = 1\n\x00", r"mine\.py.*: is not valid Python"),
        (
            "x = 1\ny = 1 / 0\n",
            r"mine\.py:2: the file, while it was loaded, raised ZeroDivisionError: division by zero",
        ),
        (
            "import no_such_library\n",
            r"mine\.py:1: .* ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("import sys\nsys.exit(3)\n", r"mine\.py:2: .* SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_run(make: Make, text: str, words: str) -> None:
    with pytest.raises(PluginError, match=rf"^train\.loss\.path: .*{words}"):
        make(text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(
        PluginError, match=r"nowhere\.py: cannot be read \(No such file or directory\)"
    ):
        load_plugin("train.loss.path", tmp_path / "nowhere.py")


def test_files_beside_it_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("x = 1")
    (tmp_path / "mine.py").write_text("import beside_it")
    with pytest.raises(PluginError, match="No module named 'beside_it'"):
        load_plugin("train.loss.path", tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def other(): ...\nimport json", "defines no f or g. It defines: other$"),
        ("", "defines no f or g. It defines: nothing"),
        ("def f(): ...\ndef g(): ...", "defines f and g; expected one of them"),
        ("f = 3", "f is of type int, expected a function"),
    ],
)
def test_the_function_is_not_there(make: Make, text: str, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        make(text).single_function("f", "g")


def test_the_signature(make: Make) -> None:
    plugin = make(
        "def f(a, b=1): ...\ndef g(a: int, c: int): ...\ndef h(*, b, **more): ...\nlength = len"
    )
    check_call(plugin, "f", plugin.module.f, ("a", "b"))
    check_call(plugin, "h", plugin.module.h, ("a", "b"))
    with pytest.raises(PluginError, match=r"mine\.py:2: got g\(a, c\), expected g\(a, b\)"):
        check_call(plugin, "g", plugin.module.g, ("a", "b"))


def test_exceptions_of_a_plugin_are_reported_with_the_line(make: Make) -> None:
    plugin = make("def f():\n    return g()\ndef g():\n    raise ValueError('no\\n good')\n")
    with (
        pytest.raises(PluginError, match=r"mine\.py:4: f raised ValueError: no good"),
        plugin.convert_errors("f"),
    ):
        plugin.module.f()
    with pytest.raises(ValueError, match="no"), plugin.convert_errors("f", (ValueError,)):
        plugin.module.f()


FILES: dict[str, dict[str, str]] = {  # setting -> the others that it needs
    "train.loss.path": {},
    "judge.plugin_path": {"judge.kind": "plugin"},
    "rollout.function_path": {},
    "rollout.generate_path": {},
}


@pytest.mark.parametrize("setting", FILES)
def test_every_configured_file_is_checked_and_not_run(tmp_path: Path, setting: str) -> None:
    (tmp_path / "mine.py").write_text("open('ran', 'w')\ndef f(:")
    with pytest.raises(PluginError, match=rf"{setting}: .*mine\.py:2: is not valid Python"):
        check_plugin_files(from_flat({setting: str(tmp_path / "mine.py"), **FILES[setting]}))
    assert not Path("ran").exists(), "nothing of it ran"


def test_a_file_with_a_fault_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("open('ran', 'w')\ndef f(:")
    done = run(
        "up", "--home", str(tmp_path / "home"), "--custom-rm-path", str(tmp_path / "mine.py")
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "mine.py:2: is not valid Python" in done.stderr
    assert not Path("ran").exists(), "nothing of it ran"
