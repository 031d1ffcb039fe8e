"""The YAML and JSON blocks of the published descriptions, and the variables of their shell blocks, set what is stated.

`descriptions/` has the blocks with their outcomes. `tests/external/recipes/test_described_lines.py` runs every line of
the shell blocks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from openclaw_rl import inspect_sessions
from openclaw_rl.cli import main as command_line
from openclaw_rl.cli.load_config import load_config
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.validate import missing_endpoints

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "descriptions"
SHELL: list[dict[str, Any]] = yaml.safe_load((FOLDER / "shell.yaml").read_text(encoding="utf-8"))
FILES: dict[str, dict[str, Any]] = yaml.safe_load(
    (FOLDER / "files.yaml").read_text(encoding="utf-8")
)
OUTCOMES = {
    *("sets", "starts", "stops", "gpus", "refused"),
    *("runs", "needs", "installs", "succeeds", "notes"),
}
SHELL_VARIABLES = ("PWD", "OLDPWD", "SHLVL", "_", "WALK", "PATH")


def is_variable(line: str) -> bool:
    return line.startswith("export ") or line.split("=")[0].isidentifier()


def read_variables(file: Path) -> dict[str, str]:
    variables = dict(
        one.split("=", 1) for one in file.read_text(encoding="utf-8").split("\0") if one
    )
    return {name: value for name, value in variables.items() if name not in SHELL_VARIABLES}


def run_variables(
    lines: Sequence[str], given: Mapping[str, str], walk: Path
) -> list[dict[str, str]]:
    """Run lines that set variables in one bash. Return what each has set."""
    script = ["set -a", 'env -0 > "$WALK/env.start"']
    for number, line in enumerate(lines):
        script += [line, f'env -0 > "$WALK/env.{number}"']
    environ = {"PATH": os.defpath, "HOME": str(walk), "WALK": str(walk), "LC_ALL": "C"}
    subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=walk,
        env=environ | dict(given),
        check=True,
        timeout=240,
    )
    return list(read_changes(walk, lines))


def read_changes(walk: Path, lines: Sequence[str]) -> Iterator[dict[str, str]]:
    before = read_variables(walk / "env.start")
    for number, line in enumerate(lines):
        after = read_variables(walk / f"env.{number}")
        # Also one that keeps its value: `export KEY=$KEY`.
        exported = re.findall(r"^export (\w+)=", line, re.MULTILINE)
        yield {
            name: value
            for name, value in after.items()
            if before.get(name) != value or name in exported
        }
        before = after


@dataclass(slots=True)
class Loader:
    """Loads settings as a command does, with an environment of its own."""

    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def load_variables(
        self, environ: Mapping[str, str], folder: Path
    ) -> tuple[settings.Config, list[str]]:
        """Return the settings of `openclaw-rl up` with these variables alone, and the notices."""
        self._enter(environ, folder)
        return self.load("up", {"file": None, "sets": ()})

    def load(self, command: str, options: Mapping[str, Any]) -> tuple[settings.Config, list[str]]:
        known = command_line._WORKER_COMMANDS.get(command)
        workers = known.workers if known else ()
        self.capture.readouterr()
        config = load_config(
            command=command if workers else "", workers=workers, strict=True, **options
        )
        return config, self.capture.readouterr().err.splitlines()

    def _enter(self, environ: Mapping[str, str], folder: Path) -> None:
        for name in os.environ:
            self.patch.delenv(name)
        for name, value in environ.items():
            self.patch.setenv(name, value)
        self.patch.chdir(folder)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Loader:
    return Loader(monkeypatch, capsys)


def value_of(config: settings.Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return list(value) if isinstance(value, tuple) else value


def check_settings(row: Mapping[str, Any], config: settings.Config, notices: Sequence[str]) -> None:
    for key, value in {**row.get("sets", {}), **row.get("holds", {})}.items():
        found = value_of(config, key)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), key
    for words in row.get("notes", ()):
        assert any(words in notice for notice in notices), (words, notices)


@pytest.mark.parametrize("block", SHELL, ids=lambda block: str(block["title"]))
def test_variables_of_a_shell_block(block: dict[str, Any], tmp_path: Path, loader: Loader) -> None:
    """`make test-recipes` runs every line; here the lines that set variables are loaded."""
    rows = [row for row in block["lines"] if is_variable(row["line"])]
    changes = run_variables([row["line"] for row in rows], block.get("given", {}), tmp_path)
    for row, changed in zip(rows, changes, strict=True):
        assert changed, row
        if "refused" in row:
            with pytest.raises(OpenClawError, match=re.escape(row["refused"])) as error:
                loader.load_variables(changed, tmp_path)
            assert "\n" not in str(error.value)
        else:
            check_settings(row, *loader.load_variables(changed, tmp_path))


def test_every_line_has_an_outcome() -> None:
    for block in SHELL:
        for row in block["lines"]:
            assert OUTCOMES & set(row), row
            page = row.get("instead")
            if page is not None:
                assert page["words"] in (ROOT / page["page"]).read_text(encoding="utf-8")


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield above + key


@pytest.mark.parametrize("name", FILES)
def test_every_key_of_a_file(name: str, loader: Loader, tmp_path: Path) -> None:
    file, rows = FOLDER / name, FILES[name]
    text = file.read_text(encoding="utf-8")
    assert list(
        leaves(json.loads(text) if file.suffix == ".json" else yaml.safe_load(text))
    ) == list(rows)
    loader._enter({}, tmp_path)
    given: Mapping[str, Any] = {"file": str(file), "sets": ()}
    if refused := [row["refused"] for row in rows.values() if "refused" in row]:
        with pytest.raises(OpenClawError, match=re.escape(refused[0])):
            loader.load("up", given)
        return
    config, notices = loader.load("up", given)
    notices = [
        *notices,
        *missing_endpoints(config),
    ]  # which `up` reports as the error of the judge's preflight
    for key, row in rows.items():
        assert "sets" in row or "holds" in row or "notes" in row, key
        check_settings(row, config, notices)


@pytest.mark.parametrize("name", ["trajectory.json", "trajectory_zh.json"])
def test_a_trajectory(name: str) -> None:
    done = CliRunner().invoke(command_line.cli, ["data", "check", str(FOLDER / name)])
    assert done.exit_code == 0, done.output
    ((session, turns),) = inspect_sessions(FOLDER / name).items()
    assert session == "user_session_abc123"
    assert [(turn["type"], turn["trainable"]) for turn in turns] == [
        ("main", True),
        ("side", False),
    ]


def test_every_file_of_the_descriptions_is_walked() -> None:
    walked = {"shell.yaml", "files.yaml", "trajectory.json", "trajectory_zh.json", *FILES}
    assert {file.name for file in FOLDER.iterdir()} == walked


def test_the_links_at_the_root_are_those_to_the_recipes() -> None:
    """Everything in `recipes/` but its README and shared script; and no other link."""
    links = {
        entry.name: entry.readlink()
        for entry in ROOT.iterdir()
        if entry.is_symlink() and entry.name[0] != "."
    }
    shared = {"README.md", "start.sh"}
    names = {entry.name for entry in (ROOT / "recipes").iterdir()} - shared - {"__pycache__"}
    assert links == {name: Path("recipes") / name for name in names}
