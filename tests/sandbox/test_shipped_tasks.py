"""The shipped task folders: each is fit in a box of this machine, and is a whole folder of Harbor."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import pytest

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.environments.sources.harbor.source import HarborSource
from openclaw_rl.environments.types import PlayLimits
from openclaw_rl.settings.schema_sandbox import SandboxConfig

ROOT = Path(__file__).parents[2]
TOP = ROOT / "tasks"
VERIFIER = ROOT / "examples" / "environments" / "verifier"
KINDS = {"terminal": 25, "swe": 8}
TASKS = sorted(folder for kind in KINDS for folder in (TOP / kind).iterdir())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_solution_is_rewarded_and_nothing_is_not(task: Path, public_folder: Path) -> None:
    source = HarborSource(top=task, sandbox=SandboxConfig(memory=256, processes=60, disk=16))
    check = source.check_task(
        source.load_tasks()[0], str(public_folder / "check"), PlayLimits(seconds=300)
    )
    found = asyncio.run(check)
    assert (found.fit, found.oracle, found.nop) == (True, 1.0, 0.0), found.reason


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_a_whole_folder_of_harbor(task: Path) -> None:
    settings = tomllib.loads((task / "task.toml").read_text())
    assert settings["version"] == "1.0"
    assert settings["metadata"]["difficulty"] in ("easy", "medium", "hard")
    assert settings["environment"]["allow_internet"] is False
    assert {"verifier", "agent", "environment"} <= set(settings)
    for file in ("instruction.md", "environment/Dockerfile", "solution/solve.sh", "tests/test.sh"):
        assert (task / file).read_text().strip()
    assert "COPY files/ /app/" in (task / "environment" / "Dockerfile").read_text()


def test_there_are_as_many_tasks_as_the_documentation_says() -> None:
    assert {kind: len(list((TOP / kind).iterdir())) for kind in KINDS} == KINDS


COPIES = {"isolation.py": 11, "write_result.py": 11} | dict.fromkeys(
    ("code_server.py", "peer.py", "remote_code.py", "run_tests.py"), 8
)


@pytest.mark.parametrize(("name", "count"), COPIES.items())
def test_tasks_have_the_shipped_verifier(name: str, count: int) -> None:
    texts = [file.read_text() for file in TOP.glob(f"*/*/tests/{name}")]
    assert texts == [(VERIFIER / name).read_text()] * count


def test_checks_in_python_have_the_shipped_isolation() -> None:
    shipped = (ASSETS / "sandbox" / "isolation.py").read_text()
    assert shipped == (VERIFIER / "isolation.py").read_text()
