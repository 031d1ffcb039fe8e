"""Every line of the published descriptions' shell, YAML and JSON blocks has the outcome that `descriptions/` states.

The shell blocks run in bash, in a folder with the entries of the repository. Programs that would start something are
replaced by `RECORDER`, which writes down how it was called. Calls of our own commands are then parsed, and their
settings loaded, in this process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from openclaw_rl import inspect_sessions
from openclaw_rl.cli import main as command_line
from openclaw_rl.cli.load_config import load_config
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.cli_options import settings_options
from openclaw_rl.settings.validate import missing_endpoints

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "descriptions"
SHELL: list[dict[str, Any]] = yaml.safe_load((FOLDER / "shell.yaml").read_text(encoding="utf-8"))
FILES: dict[str, dict[str, Any]] = yaml.safe_load(
    (FOLDER / "files.yaml").read_text(encoding="utf-8")
)
OUTCOMES = ("sets", "starts", "refused", "runs", "installs", "succeeds", "fails", "notes")
RECORDER = """#!/bin/bash
{ printf '%s\\0' "$PWD" "${0##*/}" "$#" "$@"; env -0; } > "$(mktemp "$WALK/call.$WALK_LINE.XXXXXX")"
[ "${0##*/} $1 $2" = "ray job submit" ] || exit 0
while [ "$1" != "--" ]; do
    [ "$1" = "--working-dir" ] && cd "$2"
    shift
done
shift
exec "$@"
"""
PROGRAMS = (
    "openclaw-rl",
    "python",
    "pip",
    "git",
    "npm",
    "ray",
    "torchrun",
    "watch",
    "tail",
    "nvidia-smi",
)
SHARED_OPTIONS = {
    "arguments",
    *(parameter.name for parameter in click.command(settings_options(lambda: None)).params),
}
SHELL_VARIABLES = ("PWD", "OLDPWD", "SHLVL", "_", "WALK", "WALK_LINE", "PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a replaced program."""

    folder: Path
    program: str
    arguments: list[str]
    environ: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RanLine:
    """What a line of a shell block did."""

    code: int
    errors: str
    calls: list[Call]
    changed: dict[str, str]  # variables that the line has set


def read_call(file: Path) -> Call:
    folder, program, count, *rest = file.read_text(encoding="utf-8").split("\0")
    arguments, environ = (
        rest[: int(count)],
        dict(one.split("=", 1) for one in rest[int(count) :] if one),
    )
    return Call(folder=Path(folder), program=program, arguments=arguments, environ=environ)


def read_variables(file: Path) -> dict[str, str]:
    variables = dict(
        one.split("=", 1) for one in file.read_text(encoding="utf-8").split("\0") if one
    )
    return {name: value for name, value in variables.items() if name not in SHELL_VARIABLES}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with links to the entries of the repository, so that no block writes into it."""
    folder = tmp_path_factory.mktemp("parent") / "OpenClaw-RL"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder


def run_block(block: Mapping[str, Any], checkout: Path, walk: Path) -> list[RanLine]:
    """Run the lines of a block in one bash. A line of flags alone is given to `openclaw-rl up`."""
    programs = walk / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(RECORDER, encoding="utf-8")
        (programs / name).chmod(0o755)
    script = ["set -a", f"cd {block.get('cwd', '.')}", 'env -0 > "$WALK/env.start"']
    for number, row in enumerate(block["lines"]):
        line = row["line"].strip()
        line = f"openclaw-rl up {line}" if line.startswith("--") else line
        here = f'"$WALK/%s.{number}"'
        script += [
            f"WALK_LINE={number}",
            "{",
            line,
            f"}} 2> {here % 'errors'}",
            f"echo $? > {here % 'code'}",
        ]
        script.append(f"env -0 > {here % 'env'}")
    environ = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(walk),
        "WALK": str(walk),
        "LC_ALL": "C",
    }
    environ |= block.get("given", {})
    subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=checkout, env=environ, check=False, timeout=240
    )
    return list(read_results(walk, [row["line"] for row in block["lines"]]))


def read_results(walk: Path, lines: Sequence[str]) -> Iterator[RanLine]:
    before = read_variables(walk / "env.start")
    for number, line in enumerate(lines):
        after = read_variables(walk / f"env.{number}")
        # Also one that keeps its value: `export KEY=$KEY`.
        exported = re.findall(r"^export (\w+)=", line, re.MULTILINE)
        yield RanLine(
            code=int((walk / f"code.{number}").read_text()),
            errors=(walk / f"errors.{number}").read_text(encoding="utf-8"),
            calls=[read_call(file) for file in sorted(walk.glob(f"call.{number}.*"))],
            changed={
                name: value
                for name, value in after.items()
                if before.get(name) != value or name in exported
            },
        )
        before = after


def find_module(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


@dataclass(slots=True)
class Loader:
    """Loads settings as a command does, with an environment of its own."""

    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def load_call(self, call: Call) -> tuple[str, settings.Config, list[str]]:
        """Return command, settings and notices of a call. Raises `OpenClawError`, or `SystemExit` with a message."""
        self._enter(call.environ, call.folder)
        name, *words = (
            call.arguments if call.program == "openclaw-rl" else self._arguments_of_script(call)
        )
        command = command_line.cli.commands[name]
        options = dict(command.make_context(name, words).params)
        return name, *self.load(
            name, {key: value for key, value in options.items() if key in SHARED_OPTIONS}
        )

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

    def _arguments_of_script(self, call: Call) -> list[str]:
        """Run a script of a few lines that passes its arguments to the command line; return what it passes."""
        passed: list[list[str]] = []
        script = next(
            n for n, word in enumerate(call.arguments) if word == "-m" or word.endswith(".py")
        )
        module = call.arguments[script] == "-m"
        name, *words = call.arguments[script + module :]
        with self.patch.context() as patch:
            patch.setattr(command_line, "main", passed.append)
            patch.setattr(sys, "argv", [name, *words])
            if call.program == "torchrun":
                ranks = re.findall(r"(?:nproc_per_node|nnodes)=(\d+)", " ".join(call.arguments))
                for variable, value in zip(
                    ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"), ranks, strict=True
                ):
                    patch.setenv(variable, value)
                patch.setenv("TORCHELASTIC_RUN_ID", "none")
                patch.setenv("RANK", "0")
            runpy.run_path(find_module(name) if module else name, run_name="__main__")
        return passed[0]


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


def check_line(row: Mapping[str, Any], ran: RanLine, loader: Loader, checkout: Path) -> None:
    """Compare a line with its outcome."""
    own = [call for call in ran.calls if call.program in ("openclaw-rl", "python", "torchrun")]
    if "starts" in row or ("sets" in row and own):
        assert ran.code == 0, ran.errors
        name, config, notices = loader.load_call(own[-1])
        assert name == row.get("starts", "up")
        check_settings(row, config, notices)
    elif "refused" in row and own:
        with pytest.raises((OpenClawError, SystemExit), match=re.escape(row["refused"])):
            loader.load_call(own[-1])
    elif "refused" in row and ran.changed:
        with pytest.raises(OpenClawError, match=re.escape(row["refused"])) as error:
            loader.load_variables(ran.changed, checkout)
        assert "\n" not in str(error.value)
    elif "refused" in row:
        assert ran.code == 2
        assert re.fullmatch(rf".*{re.escape(row['refused'])}.*\n", ran.errors)
    elif "sets" in row or "notes" in row:
        assert ran.changed
        check_settings(row, *loader.load_variables(ran.changed, checkout))
    elif "installs" in row:
        assert row["installs"] in [
            installed_package(call) for call in ran.calls if call.program == "pip"
        ]
    elif "runs" in row:
        assert row["runs"] in [call.program for call in ran.calls], ran.errors
        check_npm(ran.calls)
    elif "fails" in row:
        assert ran.code != 0
        assert row["fails"] in ran.errors
    else:
        assert (ran.code, ran.errors, ran.calls) == (0, "", [])
    if page := row.get("instead"):
        assert page["words"] in (ROOT / page["page"]).read_text(encoding="utf-8")


def installed_package(call: Call) -> str:
    """Return the name of the package that `pip install -e .` or `-r FILE` finds in the repository."""
    flag, value = call.arguments[1:3]
    lines = (call.folder / value).read_text().splitlines() if flag == "-r" else [f"-e {value}"]
    (path,) = [
        line.removeprefix("-e ").partition("[")[0] for line in lines if line.startswith("-e ")
    ]
    project = tomllib.loads(
        (call.folder.resolve() / path / "pyproject.toml").read_text(encoding="utf-8")
    )
    return str(project["project"]["name"])


def check_npm(calls: Sequence[Call]) -> None:
    for call in calls:
        if call.program == "npm":
            scripts = json.loads((call.folder / "package.json").read_text(encoding="utf-8"))[
                "scripts"
            ]
            assert set(call.arguments[1:]) <= set(scripts)


@pytest.mark.parametrize("block", SHELL, ids=lambda block: str(block["title"]))
def test_every_line_of_a_shell_block(
    block: dict[str, Any], checkout: Path, tmp_path: Path, loader: Loader
) -> None:
    ran = run_block(block, checkout, tmp_path)
    for row, one in zip(block["lines"], ran, strict=True):
        assert any(kind in row for kind in OUTCOMES), row
        try:
            check_line(row, one, loader, checkout)
        except (AssertionError, OpenClawError, SystemExit, LookupError) as error:
            raise AssertionError(
                f"{row['line']}: {type(error).__name__}: {error}\n{one}"
            ) from error


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
