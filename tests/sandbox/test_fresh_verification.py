"""Verification in a fresh box: what a model plants in its own box does not change the result."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest
from tests.sandbox.conftest import LIMITS

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import BoxRoot
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.fresh_verification import Verification, verify_in_fresh_box

ROOT = BoxRoot(writable=("/work", "/tests", "/logs"))
TEST = """
import sys, unittest
sys.path.insert(0, "/work")
class Sum(unittest.TestCase):
    def test_sum(self):
        from answer import add
        self.assertEqual(add(2, 2), 4)
unittest.main()
"""
COMMAND = "/usr/bin/python3 /tests/check.py && echo 1 >/logs/reward.txt || echo 0 >/logs/reward.txt"

EXIT = "echo 'import os; os._exit(0)'"
PACKAGES = "~/.local/lib/python3.11/site-packages"
TAMPERING = {
    "tests edited": "mkdir -p /tests; echo 'print(1)' >/tests/check.py",
    "tests replaced by a link": "rm -rf /tests/*; ln -s /work/own.py /tests/check.py; echo 'print(1)' >/work/own.py",
    "the test framework replaced": "mkdir unittest; echo 'main = TestCase = object' >unittest/__init__.py",
    "a start-up file planted": f"{EXIT} | tee sitecustomize.py usercustomize.py conftest.py >/dev/null",
    "a user's package planted": f"mkdir -p {PACKAGES}; {EXIT} >{PACKAGES}/usercustomize.py",
    "a result written before": "echo 1 >/logs/reward.txt",
    "a daemon that rewrites the result": "setsid sh -c 'while :; do echo 1 >/logs/reward.txt; done' >/dev/null 2>&1 &",
    "a shell profile planted": "echo 'exit 0' | tee ~/.bashrc ~/.profile ~/.bash_profile /work/.bashrc >/dev/null",
}


def reward_after(solution: str, folder: Path) -> str:
    """Return the reward after a model ran `solution` in its box, with the result verified in another."""
    tests = folder / "tests"
    tests.mkdir()
    (tests / "check.py").write_text(TEST)
    plan = Verification(
        command=COMMAND, tests={"/tests": tests}, results="/logs/reward.txt", carried=("/work",)
    )

    async def play() -> str:
        used, fresh = BubblewrapBox(ROOT, LIMITS), BubblewrapBox(ROOT, LIMITS)
        await used.open()
        await used.run(solution)
        await verify_in_fresh_box(used, fresh, plan, folder / "reward.txt")
        return (folder / "reward.txt").read_text().strip()

    return asyncio.run(play())


def test_a_right_answer_is_rewarded_and_a_wrong_one_is_not(public_folder: Path) -> None:
    (public_folder / "a").mkdir()
    (public_folder / "b").mkdir()
    assert reward_after("echo 'add = lambda a, b: a + b' >answer.py", public_folder / "a") == "1"
    assert reward_after("echo 'add = lambda a, b: 5' >answer.py", public_folder / "b") == "0"


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_not_rewarded(how: str, public_folder: Path) -> None:
    assert (
        reward_after(f"echo 'add = lambda a, b: 5' >answer.py; {TAMPERING[how]}", public_folder)
        == "0"
    )


def test_a_compiled_file_is_not_carried(public_folder: Path) -> None:
    """Python would load it instead of the file that the tests put beside it."""
    plant = (
        "mkdir -p sub/__pycache__; echo x >sub/__pycache__/answer.cpython-311.pyc; echo 1 >sub/kept"
    )

    async def play() -> bytes:
        used, fresh = BubblewrapBox(ROOT, LIMITS), BubblewrapBox(ROOT, LIMITS)
        await used.open()
        await used.run(plant)
        return (
            await verify_in_fresh_box(
                used, fresh, Verification(command="find /work -type f", tests={})
            )
        ).stdout

    assert asyncio.run(play()) == b"/work/sub/kept\n"


def test_an_archive_that_the_model_forged_fills_no_other_folder(public_folder: Path) -> None:
    """A process of the model can write to the pipe from which its box is read."""
    with tarfile.open(public_folder / "forged.tar", "w") as archive:
        for name in (
            "./work/answer",
            "./logs/reward.txt",
            "./home/agent/.profile",
            "./tmp/planted",
            "./tests/check.py",
        ):
            archive.addfile(tarfile.TarInfo(name))

    async def load() -> bytes:
        fresh = BubblewrapBox(ROOT, LIMITS)
        try:
            await fresh.open()
            await fresh.load_archive(("/work",), public_folder / "forged.tar")
            return (await fresh.run("find /work /logs /home /tmp /tests -type f")).stdout
        finally:
            await fresh.close()

    assert asyncio.run(load()) == b"/work/answer\n"


def test_missing_results_are_an_error_and_no_reward(public_folder: Path) -> None:
    plan = Verification(command="true", tests={}, results="/logs/reward.txt")

    async def play() -> None:
        used, fresh = BubblewrapBox(ROOT, LIMITS), BubblewrapBox(ROOT, LIMITS)
        await used.open()
        await verify_in_fresh_box(used, fresh, plan, public_folder / "reward.txt")

    with pytest.raises(SandboxError, match="No such file"):
        asyncio.run(play())
