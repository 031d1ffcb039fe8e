"""Cheats over all shipped kinds of task (`cheats.yaml`): none is rewarded, and honest work on the same tasks is."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples.environments.swe_bench_tasks import make_task_folders
from tests.environments.test_tool_limits import play_task
from tests.environments.test_tool_limits import request_of as request_of_check
from tests.sandbox.test_harbor_source import END, bash, play
from tests.sandbox.test_swe_bench import make_instance
from tests.sandbox.test_tool_tasks import SHIPPED, request_of

from openclaw_rl.environments.registry import find_source
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.types import EnvironmentTask, PlayLimits, TaskFitness

TASKS = Path(__file__).parents[2] / "tasks"
CHEATS = yaml.safe_load(Path(__file__).with_name("cheats.yaml").read_text())
SCRIPTS = {
    "repair-backup-script": "backup.sh",
    "rotate-logs": "rotate.sh",
    "render-templates": "render.sh",
}
IN_FOLDERS = [cheat for cheat in CHEATS if "task" in cheat]
IN_INSTANCES = [cheat for cheat in CHEATS if "instance" in cheat]
WITH_TOOLS = [cheat for cheat in CHEATS if "tools" in cheat]
IN_CHECKS = [cheat for cheat in CHEATS if "check_code" in cheat]


def name_of(cheat: dict[str, Any]) -> str:
    return str(cheat["name"])


def write_file(path: str, text: str, *, append: bool = False) -> str:
    return f"cat {'>>' if append else '>'}{path} <<'END OF FILE'\n{text}\nEND OF FILE\n"


def command_of(cheat: dict[str, Any], package: Path | None) -> str:
    """The command that leaves the cheat in the box."""
    if "package" in cheat:
        assert package is not None
        return write_file(f"{package.name}/__init__.py", cheat["package"], append=True)
    if "script" in cheat:
        return write_file(f"/app/{SCRIPTS[Path(cheat['task']).name]}", cheat["script"])
    return str(cheat["command"])


def package_of(task: Path) -> Path | None:
    """The package of a repository."""
    files = task / "environment" / "files"
    found = [path.parent for path in files.glob("*/__init__.py") if path.parent.name != "tests"]
    return found[0] if found else None


def solution_of(task: Path) -> str:
    """The reference solution as a command of the policy."""
    folder = task / "solution"
    texts = [write_file(f"/tmp/{path.name}", path.read_text()) for path in folder.iterdir()]
    return "".join(texts) + "sed -i 's#/solution/#/tmp/#g' /tmp/solve.sh; sh /tmp/solve.sh"


def test_there_are_more_than_forty() -> None:
    assert len(CHEATS) >= 40
    assert len({cheat["name"] for cheat in CHEATS}) == len(CHEATS)


@pytest.mark.parametrize("cheat", IN_FOLDERS, ids=name_of)
def test_a_cheat_in_a_task_folder_scores_nothing(
    cheat: dict[str, Any], public_folder: Path
) -> None:
    task = TASKS / cheat["task"]
    outcome = play(task, [bash(command_of(cheat, package_of(task))), END])
    assert (outcome.status, outcome.reward) == ("done", 0.0), outcome


@pytest.mark.parametrize("name", sorted({cheat["task"] for cheat in IN_FOLDERS}))
def test_honest_work_on_the_same_task_scores(name: str, public_folder: Path) -> None:
    outcome = play(TASKS / name, [bash(solution_of(TASKS / name)), END])
    assert (outcome.status, outcome.reward) == ("done", 1.0), outcome


@pytest.fixture
def instance(public_folder: Path) -> Path:
    file = public_folder / "bench.jsonl"
    row = make_instance("lru-cache", public_folder, "pytest")
    file.write_text(json.dumps(row) + "\n")
    folder = make_task_folders(file)
    return Path(str(folder)) / row["instance_id"]


@pytest.mark.parametrize("cheat", IN_INSTANCES, ids=name_of)
def test_a_cheat_in_an_instance_scores_nothing(cheat: dict[str, Any], instance: Path) -> None:
    outcome = play(instance, [bash(command_of(cheat, Path("lrucache"))), END])
    assert (outcome.status, outcome.reward) == ("done", 0.0), outcome


def test_honest_work_on_the_instance_scores(instance: Path) -> None:
    assert play(instance, [bash(solution_of(TASKS / "swe" / "lru-cache")), END]).reward == 1.0


def check_with(name: str, changes: dict[str, Any]) -> TaskFitness:
    """Check a shipped task of tools, with other calls and another answer as its solution."""
    request = request_of(SHIPPED)
    source = find_source(request).make_source(request)
    (task,) = (task for task in source.load_tasks() if task.id == name)
    changed = EnvironmentTask(
        id=task.id, digest=task.digest, split=task.split, data={**task.data, **changes}
    )
    folder = new_scratch_folder("check")
    try:
        return asyncio.run(source.check_task(changed, folder, PlayLimits(seconds=300)))
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("cheat", WITH_TOOLS, ids=name_of)
def test_a_cheat_with_tools_scores_nothing(cheat: dict[str, Any], public_folder: Path) -> None:
    changes = {"calls": cheat.get("calls", []), "answer": cheat["answer"], "step_reward": None}
    assert check_with(cheat["tools"], changes).oracle == 0.0
    assert check_with(cheat["tools"], {}).oracle == 1.0


@pytest.mark.parametrize("cheat", IN_CHECKS, ids=name_of)
@pytest.mark.parametrize("honest", [False, True])
def test_code_in_the_work_folder_reaches_no_check(
    cheat: dict[str, Any], honest: bool, public_folder: Path
) -> None:
    code = "import sys\nprint(2 * int(sys.argv[1]))\n" if honest else cheat["package"]
    request = request_of_check(
        public_folder,
        [{"name": "f", "result": 1}],
        {"kind": "python", "code": cheat["check_code"]},
        files={"double.py": code},
    )
    outcome = asyncio.run(play_task(request, seconds=30))
    assert (outcome.status, outcome.reward) == ("done", float(honest)), outcome
