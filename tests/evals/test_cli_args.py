"""The measurements' command lines: what is out of range or unknown is refused in one line, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
TASTE, RATE = "benchmarks.taste_benchmark", "benchmarks.sample_efficiency"


@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        (
            "benchmarks.demo.starter",
            ("--replies", "0"),
            "--replies: expected a whole number, 1 or more, got '0'",
        ),
        (
            "benchmarks.demo.starter",
            ("--seed", "-1"),
            "--seed: expected a whole number, 0 to 2147483647, got '-1'",
        ),
        (
            "benchmarks.demo.starter",
            ("--engine-url", "nowhere", "--out", "OUT"),
            "engine.url: expected an address like",
        ),
        ("benchmarks.demo.starter", ("--out", "FILE"), "FILE"),
        (TASTE, ("--only", "loud"), "--only: expected one of short, "),
        (
            "benchmarks.taste_benchmark",
            ("--set", "train.batch.min_turns"),
            "--set: expected KEY=VALUE, e.g. train.batch.min_turns=8",
        ),
        (RATE, ("--set", "train.bach=3"), "--set: unknown setting 'train.bach'"),
        (RATE, ("--replay", "maybe"), "--replay: expected on or off, got 'maybe'"),
        (
            "benchmarks.sample_efficiency",
            ("--batches", "2", "0"),
            "--batches: expected a whole number, 1 or more, got '0'",
        ),
        (RATE, ("--parallel", "0"), "--parallel: expected a whole number, 1 to 64, got '0'"),
        (
            "benchmarks.sample_efficiency",
            ("--reactions", "many"),
            "--reactions: expected a whole number, 1 or more, got 'many'",
        ),
        (RATE, ("--methods", "grpo"), "--methods: invalid choice: 'grpo'"),
    ],
)
def test_arguments_that_do_not_fit_are_reported(
    tmp_path: Path, program: str, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "file").write_text("words")
    places = {"OUT": str(tmp_path / "out"), "FILE": str(tmp_path / "file" / "below")}
    given = [places.get(word, word) for word in arguments]
    command = [sys.executable, "-m", program, *given]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert places.get(words, words) in done.stderr.splitlines()[-1]
