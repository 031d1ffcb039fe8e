"""The codes of log lines: errors give them, and a diagnosis reads them in the JSON of a log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from openclaw_rl.common.log_codes import ENGINE_WORKERS, EndCause, LogCode, worker_end_fields
from openclaw_rl.common.logging_metrics import setup_logging
from openclaw_rl.errors import (
    EngineOutOfMemory,
    OpenClawError,
    TooLarge,
    TurnOutOfMemory,
    rebuild_error,
)
from openclaw_rl.supervisor import supervisor
from openclaw_rl.train.ranks.ray_errors import connect_error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("Tried to allocate 2.00 GiB"), LogCode.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), LogCode.OUT_OF_MEMORY),
        (rebuild_error("TurnOutOfMemory", "one row"), LogCode.OUT_OF_MEMORY),
        (EngineOutOfMemory("vLLM ended"), LogCode.OUT_OF_MEMORY),
        (connect_error("auto", ConnectionError("refused")), LogCode.RAY_UNUSABLE),
        (TooLarge("a sequence of 40000 tokens"), None),
        (OpenClawError("out of memory, says a judge"), None),
    ],
)
def test_an_error_gives_its_code_to_the_line(
    tmp_path: Path, error: Exception, code: LogCode | None
) -> None:
    log = setup_logging("train", tmp_path)
    log.error("a step failed: %s", error)
    setup_logging("train", None)
    (line,) = (tmp_path / "train.log").read_text().splitlines()
    assert json.loads(line).get("code") == code


def test_the_end_of_a_worker_has_a_code_and_a_cause(tmp_path: Path) -> None:
    log = setup_logging("supervisor", tmp_path)
    log.warning("engine ended", extra=worker_end_fields("engine", EndCause.KILLED))
    setup_logging("supervisor", None)
    line = json.loads((tmp_path / "supervisor.log").read_text())
    fields = {name: line[name] for name in ("code", "worker", "cause")}
    assert fields == {"code": "worker_ended", "worker": "engine", "cause": "killed"}


def test_a_turn_that_does_not_fit_is_both_too_large_and_out_of_memory() -> None:
    assert isinstance(rebuild_error("TurnOutOfMemory", "one row"), TurnOutOfMemory | TooLarge)


def test_the_workers_with_an_engine_are_those_of_the_supervisor() -> None:
    assert frozenset(supervisor.ENGINE_WORKERS) == ENGINE_WORKERS
