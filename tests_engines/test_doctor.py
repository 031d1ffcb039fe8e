"""`openclaw-rl doctor --engine` on real engines: every check holds."""

from __future__ import annotations

import pytest
from tests.engines.test_doctor_engine import CHECKS, doctor, marks


@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_every_check_holds(engine: str, vllm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    more = ("--engine-python", vllm_python) if engine == "vllm" else ()
    code, output = doctor("--engine", engine, *more)
    assert marks(output) == dict.fromkeys(CHECKS, "holds"), output
    assert code == 0
