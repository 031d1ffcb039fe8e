"""The benchmark of boxes fails above its bound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "sandbox.py"


@pytest.mark.parametrize(("bound", "status"), [("60000", 0), ("0.001", 1)])
def test_a_box_above_the_bound_is_a_failure(public_folder: Path, bound: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--boxes", "2", "--bound", bound],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f"(bound {float(bound):g} ms)")
