"""What the recipes of environments call, and which variables they refuse."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from openclaw_rl.environments.sources.library_source import LIBRARIES, parse_library_argument
from openclaw_rl.settings.aliases import by_form

RECIPES = Path(__file__).parents[2] / "recipes"
KINDS = ("gui", "swe", "terminal", "toolcall")
SCRIPTS = [
    path.relative_to(RECIPES).as_posix()
    for kind in KINDS
    for path in sorted((RECIPES / f"{kind}-rl").glob("*.sh"))
]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for PATH with two programs: an `openclaw-rl` that prints its arguments, and `my-python`."""
    for name, text in (("openclaw-rl", "printf '%s\\n' \"$@\""), ("my-python", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "notes.txt").write_text("not a program\n")
    return tmp_path


def run_script(name: str, programs: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(RECIPES / name)],
        cwd=programs,
        env={"PATH": f"{programs}:/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("given", ["my-python", "./my-python"])
def test_the_python_of_the_browser_is_a_name_or_a_path(programs: Path, given: str) -> None:
    done = run_script("gui-rl/run_gui_rl.sh", programs, GUI_PYTHON=given)
    expected = "./my-python" if given.startswith(".") else str(programs / "my-python")
    assert done.stdout.splitlines()[3:] == ["--python", expected], done.stderr


@pytest.mark.parametrize("given", ["no-such-python", "/no/such/python", "./notes.txt", "."])
def test_a_python_that_does_not_exist_is_refused(programs: Path, given: str) -> None:
    done = run_script("gui-rl/run_gui_rl.sh", programs, GUI_PYTHON=given)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"GUI_PYTHON is {given}: no such program. Expected")


@pytest.mark.parametrize("backend", ["playwright", "selenium"])
def test_a_backend_of_screenshots_makes_films(programs: Path, backend: str) -> None:
    def source_of(**variables: str) -> str:
        done = run_script(
            "gui-rl/run_gui_rl.sh", programs, GUI_TASK="miniwob.click-test", HOME="/h", **variables
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[2]

    assert source_of() == "browsergym:miniwob.click-test"
    assert (
        source_of(SCREENSHOT_BACKEND=backend)
        == "browsergym:miniwob.click-test?film=/h/.openclaw-rl/film"
    )
    set_home = source_of(SCREENSHOT_BACKEND=backend, OPENCLAW_HOME="home")
    assert set_home == f"browsergym:miniwob.click-test?film={programs.resolve()}/home/film"
    _, arguments = parse_library_argument(
        LIBRARIES[0], source_of(SCREENSHOT_BACKEND=backend, GUI_FILM="/a +&%41/ b")
    )
    assert arguments == {"film": "/a +&%41/ b"}


def test_a_film_may_follow_other_arguments(programs: Path) -> None:
    done = run_script(
        "gui-rl/run_gui_rl.sh", programs, GUI_TASK="miniwob.click-test?seeds=5", GUI_FILM="/films"
    )
    assert done.stdout.splitlines()[2] == "browsergym:miniwob.click-test?seeds=5&film=/films"


def test_another_backend_of_screenshots_is_refused(programs: Path) -> None:
    done = run_script("gui-rl/run_gui_rl.sh", programs, SCREENSHOT_BACKEND="puppeteer")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("SCREENSHOT_BACKEND is puppeteer. Expected playwright or selenium")


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("variable", ["ENV_TYPE", "TASK_TYPE"])
def test_an_unknown_kind_of_tasks_is_refused_in_one_line(
    programs: Path, name: str, variable: str
) -> None:
    done = run_script(name, programs, **{variable: "nonsense"})
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{variable} is nonsense")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_kinds_that_are_described_are_accepted(programs: Path, name: str) -> None:
    kind = name.split("-")[0]
    types = {"TASK_TYPE": "bash_commands"} if kind in ("terminal", "swe") else {}
    done = run_script(name, programs, ENV_TYPE=kind, **types)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_readme_names_the_scripts_and_variables_that_are_read(kind: str) -> None:
    folder = RECIPES / f"{kind}-rl"
    readme = (folder / "README.md").read_text()
    scripts = "".join(file.read_text() for file in folder.glob("*.sh"))
    assert all(file.name in readme for file in folder.glob("*.sh"))
    rows = [line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")]
    known = {*by_form("environment"), *re.findall(r"\$\{([A-Z_]+):", scripts)}
    assert len(rows) >= 6
    assert set(rows) <= known
