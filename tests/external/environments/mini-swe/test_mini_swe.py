"""mini-swe-agent, unmodified, by its own command `mini`, in the box of a shipped repository with a fault."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.external.environments.conftest import ROOT, LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem

VENV = ROOT / ".mini-swe-venv"
REPOSITORY = ROOT / "tasks/swe/roman-numbers"
SETTINGS = (
    "MSWEA_CONFIGURED=true",
    "MSWEA_COST_TRACKING=ignore_errors",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=1",
)
MINI = f'{VENV}/bin/mini -y --exit-immediately -m "openai/$OPENAI_MODEL" -t "$INSTRUCTION"'
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
REPAIR = (
    "sed -i 's/^    if rest:$/    if rest or not 1 <= number <= 3999 or to_roman(number) != text.upper():/' "
    "roman/convert.py && echo REPAIRED"
)
FORGE = "mkdir -p /tests /logs/verifier; echo 1 | tee /logs/verifier/reward.txt; echo FORGED"


def bash(command: str) -> list[dict[str, object]]:
    return [{"name": "bash", "arguments": {"command": command}}]


SCRIPT = [
    {"when": "VARIANT endless", "calls": bash("date")},
    {"when": "VARIANT forge", "calls": bash(FORGE)},
    {"when": "FORGED", "calls": bash(SUBMIT)},
    {
        "when": "Please solve this issue",
        "say": "I read the code.",
        "calls": bash("cat roman/convert.py"),
    },
    {"when": "def from_roman", "say": "I repair it.", "calls": bash(REPAIR)},
    {"when": "REPAIRED", "calls": bash("python3 -m unittest discover -s tests -t .")},
    {"when": "Ran 3 tests", "calls": bash(SUBMIT)},
    {"when": "returncode", "calls": bash("date")},
]
"""Replies of the policy, by the words of the last message."""


class ProgramCommand(LibraryCommand):
    """`openclaw-rl env run` with `mini` as the agent, which needs no --python."""

    def start(self, sub: str, source: str, *options: str) -> subprocess.Popen[str]:
        granted = [word for setting in SETTINGS for word in ("--env", setting)]
        program = (
            ("--agent", "program", "--show", str(VENV), *granted, "--", "sh", "-c", MINI)
            if sub == "run"
            else ()
        )
        return self.start_words(sub, source, *options, *program)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedSystem]:
    with RecordedSystem(tmp_path_factory.mktemp("home"), SCRIPT) as made:
        yield made


@pytest.fixture
def command(scripted: RecordedSystem) -> Iterator[ProgramCommand]:
    folder = Path(tempfile.mkdtemp(prefix="boxes-", dir="/tmp"))  # boxes of root pass through it
    folder.chmod(0o711)
    made = ProgramCommand(scripted, folder / "tmp", VENV / "bin/python")
    made.scratch.chmod(0o711)
    yield made
    shutil.rmtree(folder)


def make_variant(tmp_path: Path, words: str) -> str:
    folder = shutil.copytree(REPOSITORY, tmp_path / "task")
    instruction = folder / "instruction.md"
    instruction.write_text(f"VARIANT {words}\n\n{instruction.read_text()}")
    return f"harbor:{folder}"


def options(*more: str, limit: int = 120) -> Sequence[str]:
    return ("--limit-seconds", str(limit), "--group", "2", "--parallel", "2", *more)


def test_a_shipped_repository_is_repaired(command: ProgramCommand) -> None:
    source = f"harbor:{REPOSITORY}"
    assert command.run("check", source).stdout.splitlines()[-1] == "1 tasks, 0 unfit"
    found = command.play(source, "repaired", *options())
    assert (found["done"], found["mean_reward"], found["void"]["count"]) == (2, 1.0, 0), found
    command.assert_captured("repaired", steps=4)
    command.assert_nothing_left()


def test_a_forged_reward_counts_nothing(command: ProgramCommand, tmp_path: Path) -> None:
    found = command.play(make_variant(tmp_path, "forge"), "forged", "--unchecked", *options())
    assert (found["done"], found["mean_reward"], found["void"]["count"]) == (2, 0.0, 0), found
    command.assert_captured("forged", steps=2)
    command.assert_nothing_left()


def test_the_end_of_the_replies_is_done_with_what_it_left(
    command: ProgramCommand, tmp_path: Path
) -> None:
    source = make_variant(tmp_path, "endless")
    found = command.play(source, "limited", "--unchecked", *options("--max-steps", "2"))
    assert (found["done"], found["mean_reward"], found["void"]["count"]) == (2, 0.0, 0), found
    command.assert_captured("limited", steps=2)
    command.assert_nothing_left()
