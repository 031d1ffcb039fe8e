"""A short form of `make faults`: kill -9 of every process and a damaged row, under load, lose nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.faults.live_system import PROCESSES
from benchmarks.faults.plans import FaultOptions, PlanFolders, process_plan
from benchmarks.faults.runner import run_plan

pytestmark = pytest.mark.system

RECOVERY_LIMIT = 120.0  # seconds, on a busy machine


@pytest.mark.timeout(900)
def test_kills_of_every_process_lose_nothing(tmp_path: Path) -> None:
    options = FaultOptions(kills=2 * len(PROCESSES), each=1, seconds=3.0, seed=20261120)
    plan = process_plan(options, PlanFolders(work=tmp_path))
    faults = [fault for fault in plan.faults if not fault.name.startswith("SIGSTOP")]
    found = asyncio.run(
        run_plan(replace(plan, faults=faults), options.seed, RECOVERY_LIMIT, tmp_path / "out")
    )
    violations = [line for result in found.results for line in result.violations] + found.violations
    assert violations == []
    assert found.counts["replies"] > 100
    assert found.counts["versions"] > 0, "nothing was learned"
