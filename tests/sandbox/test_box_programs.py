"""The programs that stand in for package managers in a box without a network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from openclaw_rl.environments.sources.harbor.box_programs import (
    uses_package_managers,
    write_box_programs,
)
from openclaw_rl.environments.sources.harbor.task_folder import load_folder
from openclaw_rl.environments.sources.harbor.task_root import installs_for_tests


def run(
    programs: Path, *words: str, packages: str = "jq 1.6-2\npython3 3.11.2-1+b1\n"
) -> subprocess.CompletedProcess[str]:
    (programs / "packages").write_text(packages)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(programs.parent)}
    command = [str(programs / words[0]), *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    return write_box_programs(tmp_path / "programs")


@pytest.mark.parametrize("program", ["apt-get", "apt"])
@pytest.mark.parametrize(
    "words",
    [
        "update",
        "install -y jq",
        "-o Dpkg::Use-Pty=0 install --no-install-recommends -y jq python3",
        "install -qq jq=1.6-2",
        "install -y jq:amd64",
        "clean",
    ],
)
def test_what_is_installed_counts_as_installed(programs: Path, program: str, words: str) -> None:
    result = run(programs, program, *words.split())
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("install -y jq redis-server", "redis-server"),
        ("install jq=1.7", "jq=1.7"),
        ("install -y python", "python"),
        ("install j.", "j."),
    ],
)
def test_what_is_missing_is_named_with_the_cure(programs: Path, words: str, missing: str) -> None:
    result = run(programs, "apt-get", *words.split())
    assert result.returncode == 100
    assert f"no network: {missing}\n" in result.stderr
    assert "openclaw-rl env build" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        "curl -LsSf https://astral.sh/uv/install.sh",
        "curl -LsSf https://astral.sh/uv/0.9.7/install.sh -o {to}",
        "wget -qO- https://astral.sh/uv/install.sh",
    ],
)
def test_the_installer_of_uv_is_there_where_uv_is(
    programs: Path, tmp_path: Path, words: str
) -> None:
    target = tmp_path / "install.sh"
    command = words.format(to=target).split()
    without = run(programs, *command)
    assert without.returncode == 6
    assert "no uv, and no network" in without.stderr
    (programs / "uv").write_text("#!/bin/sh\n")
    (programs / "uv").chmod(0o755)
    result = run(programs, *command)
    assert result.returncode == 0, result.stderr
    text = target.read_text() if target.exists() else result.stdout
    assert text == (programs / "uv-installer.sh").read_text()


def test_folders_with_the_names_of_files_are_no_scripts(tmp_path: Path) -> None:
    for name in ("environment/Dockerfiles", "tests/cases.sh", "solution/more.sh"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "instruction.md").write_text("Do it.")
    folder = load_folder(tmp_path)
    assert not uses_package_managers(folder)
    assert not installs_for_tests(folder)
    (tmp_path / "tests" / "test.sh").write_text("pip install pytest\n")
    assert uses_package_managers(folder)
    assert installs_for_tests(folder)
