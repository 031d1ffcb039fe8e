"""Task folders of other shapes in real boxes: several steps, a compose file of one service, installs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from openclaw_rl.environments.sources.harbor.source import HarborSource, play_steps
from openclaw_rl.environments.sources.harbor.task_box import TaskBox
from openclaw_rl.environments.sources.harbor.task_folder import load_folder
from openclaw_rl.environments.types import PlayLimits, PlayOutcome, TaskFitness
from openclaw_rl.settings.schema_sandbox import SandboxConfig

SANDBOX = SandboxConfig(memory=256, processes=60, disk=16, roots="/nonexistent/roots")
REWARD = "/logs/verifier/reward.txt"


def write_files(files: dict[str, str]) -> Path:
    folder = Path(tempfile.mkdtemp(), "task")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_steps(settings: str = "") -> Path:
    """Write a task of two steps: the first writes a number, the second adds one to it."""
    test = f'#!/bin/sh\n. /tests/expected\n[ "$(cat number)" = "$EXPECTED" ] && echo 1 >{REWARD} || echo 0 >{REWARD}\n'
    return write_files(
        {
            "task.toml": settings
            or '[[steps]]\nname = "write"\nmin_reward = 1.0\n[[steps]]\nname = "add"\n',
            "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
            "tests/test.sh": test,
            "steps/write/instruction.md": "Write 4 to number.",
            "steps/write/tests/expected": "EXPECTED=4\n",
            "steps/write/solution/solve.sh": "#!/bin/sh\necho 4 >number\n",
            "steps/add/instruction.md": "Add 1.",
            "steps/add/workdir/setup.sh": "cp number before\n",
            "steps/add/tests/expected": "EXPECTED=$(($(cat before) + 1))\n",
            "steps/add/solution/solve.sh": "#!/bin/sh\necho $(($(cat before) + 1)) >number\n",
        }
    )


def check(folder: Path) -> TaskFitness:
    source = HarborSource(top=folder, sandbox=SANDBOX)
    scratch = tempfile.mkdtemp() + "/check"
    return asyncio.run(source.check_task(source.load_tasks()[0], scratch, PlayLimits(seconds=300)))


def work_on(folder: Path, commands: dict[str, str]) -> tuple[PlayOutcome, list[str]]:
    """Run a command in each step, as a policy would, and return the outcome and the steps that were taken."""
    taken: list[str] = []

    async def work(box: TaskBox) -> str | None:
        assert box.folder.step is not None
        taken.append(box.folder.step.name)
        assert box.folder.instruction
        await box.run_command(commands[box.folder.step.name], 30)
        return None

    async def run() -> PlayOutcome:
        box = TaskBox(folder=load_folder(folder), sandbox=SANDBOX)
        try:
            await box.open_box()
            return await play_steps(box, Path(tempfile.mkdtemp(), "results"), work)
        finally:
            await box.close_box()

    return asyncio.run(run()), taken


def test_steps_share_a_box_and_each_is_verified(public_folder: Path) -> None:
    fitness = check(write_steps())
    assert (fitness.fit, fitness.oracle, fitness.nop) == (True, 1.0, 0.0), fitness.reason
    outcome, taken = work_on(write_steps(), {"write": "echo 4 >number", "add": "true"})
    assert taken == ["write", "add"]
    assert outcome.reward == 0.5
    assert outcome.parts == {"write": 1.0, "add": 0.0}


def test_a_step_below_its_least_reward_is_the_last(public_folder: Path) -> None:
    outcome, taken = work_on(write_steps(), {"write": "echo 3 >number"})
    assert (outcome.reward, taken) == (0.0, ["write"])


def test_the_last_step_may_count_alone(public_folder: Path) -> None:
    settings = (
        'multi_step_reward_strategy = "final"\n[[steps]]\nname = "write"\n[[steps]]\nname = "add"\n'
    )
    commands = {"write": "echo 3 >number", "add": "echo 4 >number"}
    outcome, taken = work_on(write_steps(settings), commands)
    assert (outcome.reward, taken) == (1.0, ["write", "add"])


def test_files_that_a_step_needs_are_checked(public_folder: Path) -> None:
    folder = write_steps()
    (folder / "tests" / "test.sh").unlink()
    assert "no tests/test.sh for the step write" in check(folder).reason


def test_a_compose_file_of_one_service_is_played(public_folder: Path) -> None:
    compose = "services:\n  main:\n    build: {context: ., args: {WORD: right}}\n    environment: {COLOUR: blue}\n"
    test = (
        f'#!/bin/sh\n[ "$(cat answer)" = "right blue" ] && echo 1 >{REWARD} || echo 0 >{REWARD}\n'
    )
    folder = write_files(
        {
            "task.toml": "",
            "instruction.md": "Write the words.",
            "environment/docker-compose.yaml": compose,
            "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nARG WORD=wrong\nENV WORD=$WORD\n",
            "tests/test.sh": test,
            "solution/solve.sh": '#!/bin/sh\necho "$WORD $COLOUR" >answer\n',
        }
    )
    fitness = check(folder)
    assert (fitness.fit, fitness.oracle, fitness.nop) == (True, 1.0, 0.0), fitness.reason


@pytest.mark.skipif(not Path("/var/lib/dpkg/status").is_file(), reason="the machine has no dpkg")
def test_installing_what_the_machine_has_counts_as_done(public_folder: Path) -> None:
    test = "#!/bin/sh\nset -e\napt-get update\napt-get install -y tar\n"
    test += f"[ -e done ] && echo 1 >{REWARD} || echo 0 >{REWARD}\n"
    files = {
        "task.toml": "",
        "instruction.md": "Make the file done.",
        "environment/Dockerfile": "FROM debian:12\nRUN apt-get update && apt-get install -y coreutils\nWORKDIR /app\n",
        "tests/test.sh": test,
        "solution/solve.sh": "#!/bin/sh\ntouch done\n",
    }
    fitness = check(write_files(files))
    assert fitness.fit, fitness.reason
    missing = test.replace("install -y tar", "install -y no-such-package")
    fitness = check(write_files(files | {"tests/test.sh": missing}))
    assert not fitness.fit
    assert "no-such-package" in fitness.reason
