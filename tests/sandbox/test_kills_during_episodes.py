"""A short form of `make faults FAULTS="--plans environments"`: kills of runner, box and gateway while episodes run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.faults.plans import FaultOptions, PlanFolders, environment_plan
from benchmarks.faults.runner import run_plan

RECOVERY_LIMIT = 120.0  # seconds, on a busy machine


@pytest.mark.timeout(1200)
def test_cut_episodes_are_void_and_leave_nothing(tmp_path: Path) -> None:
    folders = PlanFolders(work=tmp_path)
    plan = environment_plan(FaultOptions(kills=3, each=1, seconds=3.0, seed=20261125), folders)
    assert plan is not None, folders.skipped
    found = asyncio.run(run_plan(plan, 20261125, RECOVERY_LIMIT, tmp_path / "out"))
    violations = [line for result in found.results for line in result.violations] + found.violations
    assert [line for line in violations if not line.startswith("no reply for")] == [], "boxes share the cores"
    assert found.counts["void episodes"] > 0
