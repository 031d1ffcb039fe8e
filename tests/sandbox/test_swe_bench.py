"""Instances of SWE-bench, made from the shipped repositories, as tasks in boxes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from examples.environments.swe_bench_tasks import InstancesRefused, make_task_folders
from tests.sandbox.test_harbor_source import END, SANDBOX, bash, play
from tests.sandbox.test_swe_tampering import REPAIR

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.types import PlayLimits, TaskFitness

TASKS = Path(__file__).parents[2] / "tasks" / "swe"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def make_instance(name: str, folder: Path, style: str) -> dict[str, Any]:
    """Make a checkout of a shipped repository, and an instance whose tests are named in one of the styles."""
    task = TASKS / name
    repository = folder / "repos" / f"acme__{name}"
    shutil.copytree(
        task / "environment" / "files", repository, ignore=shutil.ignore_patterns("__pycache__")
    )
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "base")
    base = git(repository, "rev-parse", "HEAD").strip()
    (solution,) = (task / "solution").glob("*.py")
    (target,) = (path for path in repository.rglob(solution.name) if path.parent.name != "tests")
    shutil.copyfile(solution, target)
    patch = git(repository, "diff")
    git(repository, "checkout", "-q", ".")
    (hidden,) = (task / "tests" / "suite").glob("*_issue.py")
    shutil.copyfile(hidden, repository / "tests" / hidden.name)
    git(repository, "add", "-A")
    test_patch = git(repository, "diff", "--cached")
    git(repository, "reset", "-q", "--hard")
    lists = json.loads((task / "tests" / "tests.json").read_text())
    named = {kind: [spell_name(test, style) for test in tests] for kind, tests in lists.items()}
    return {
        "instance_id": f"acme__{name}-1",
        "repo": f"acme/{name}",
        "base_commit": base,
        "patch": patch,
        "test_patch": test_patch,
        "problem_statement": (task / "instruction.md").read_text(),
        **{
            kind: json.dumps(tests) if style == "pytest" else tests for kind, tests in named.items()
        },
    }


def spell_name(test: str, style: str) -> str:
    module, kind, method = test.split(".")
    return (
        f"tests/{module}.py::{kind}::{method}"
        if style == "pytest"
        else f"{method} (tests.{module}.{kind})"
    )


def check_all(file: Path) -> dict[str, TaskFitness]:
    request = SourceRequest(
        source="harbor",
        argument=str(make_task_folders(file)),
        sandbox=SANDBOX,
        search_path="/usr/bin",
    )
    source = find_source(request).make_source(request)
    limits = PlayLimits(seconds=300)
    return {
        task.id: asyncio.run(source.check_task(task, tempfile.mkdtemp() + "/check", limits))
        for task in source.load_tasks()
    }


def test_instances_are_tasks_of_boxes(public_folder: Path) -> None:
    file = public_folder / "bench.jsonl"
    good = [
        make_instance("lru-cache", public_folder, "pytest"),
        make_instance("working-days", public_folder, "django"),
    ]
    other = dict(good[0])
    bad = [
        other | {"instance_id": "a-1", "repo": "acme/missing"},
        other | {"instance_id": "a-2", "base_commit": "0" * 40},
        other | {"instance_id": "a-3", "FAIL_TO_PASS": ["tests/test_x.py::test_function"]},
        other | {"instance_id": "a-4", "patch": other["patch"].replace("lrucache", "nowhere")},
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in (*good, *bad)))
    found = check_all(file)
    assert [found[one["instance_id"]].reason for one in good] == ["", ""]
    reasons = [found[one["instance_id"]].reason for one in bad]
    assert "clone it to repos/acme__missing" in reasons[0]
    assert "does not have the commit 000" in reasons[1]
    assert "needs pytest" in reasons[2]
    assert "patch does not fit" in reasons[3]

    task = public_folder / "bench-tasks" / good[0]["instance_id"]
    cheat = "rm -rf tests; ln -s /app/lrucache tests; echo 'import os; os._exit(0)' >>lrucache/__init__.py"
    assert play(task, [bash(cheat), END]).reward == 0.0
    assert play(task, [bash("sed -i 's/assert/#/' tests/*.py"), END]).reward == 0.0
    assert play(task, [bash(f"{REPAIR}; rm -rf tests"), END]).reward == 1.0

    before = (task / "tests" / "test.sh").stat().st_mtime_ns
    file.write_text(json.dumps(good[0]) + "\n")
    assert list(check_all(file)) == [good[0]["instance_id"]]
    assert (task / "tests" / "test.sh").stat().st_mtime_ns == before, (
        "an instance that did not change stays"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not valid JSON"), ("{}", "no text in instance_id"), ("[]", "no text in instance_id")],
)
def test_a_file_that_has_no_instances_is_refused_with_its_line(
    public_folder: Path, text: str, words: str
) -> None:
    file = public_folder / "bench.jsonl"
    file.write_text(text + "\n")
    with pytest.raises(InstancesRefused, match=f"bench.jsonl:1: .*{words}"):
        check_all(file)
