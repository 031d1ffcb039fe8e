"""What the processes write about themselves."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from openclaw_rl.common.logging_metrics import setup_logging


def test_a_log_for_machines_and_one_for_people(tmp_path: Path) -> None:
    log = setup_logging("train", tmp_path, readable="training.log")
    logging.getLogger("openclaw_rl.train").info("version %d: 4 turns", 1)
    setup_logging("train", None)  # lets go of the files
    assert json.loads((tmp_path / "train.log").read_text())["message"] == "version 1: 4 turns"
    (line,) = (tmp_path / "training.log").read_text().splitlines()
    assert line.endswith(" INFO version 1: 4 turns")
    assert (tmp_path / "training.log").stat().st_mode & 0o777 == 0o600
    assert log.name == "openclaw_rl"


def test_a_library_does_not_warn_of_kernels_that_nothing_needs() -> None:
    setup_logging("train", None)
    kernels = logging.getLogger("bitsandbytes.backends.cpu.ops")
    assert not kernels.isEnabledFor(logging.WARNING)
    assert kernels.isEnabledFor(logging.ERROR)
