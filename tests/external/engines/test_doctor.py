"""`openclaw-rl doctor` on real engines: every check holds, and the engine that it names in place of another starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.doctor.test_engine import CHECKS, doctor, marks

from openclaw_rl.errors import OpenClawError
from openclaw_rl.status import program_checks
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config


@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_every_check_holds(engine: str, vllm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    more = ("--engine-python", vllm_python) if engine == "vllm" else ()
    code, output = doctor("--engine", engine, *more)
    assert marks(output) == dict.fromkeys(CHECKS, "passed"), output
    assert code == 0


@pytest.mark.timeout(600)
def test_vllm_is_named_where_sglang_does_not_start_and_starts(
    vllm_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    settings: dict[str, Any] = {
        "engine.backend": "sglang",
        "engine.python": vllm_python,
        "engine.max_context": 512,
    }
    before = scratch_config(tmp_path, settings)
    with pytest.raises(OpenClawError, match="sglang"), SubprocessSystem(before, command="serve"):
        pass
    trouble = program_checks.check_engine(before)
    assert trouble is not None
    assert (trouble.name, trouble.settings) == (
        "the sglang engine does not start",
        {"engine.backend": "vllm"},
    )
    with SubprocessSystem(
        scratch_config(tmp_path, settings | dict(trouble.settings)), command="serve"
    ) as system:
        said = [{"role": "user", "content": "What is the capital of Spain?"}]
        reply = post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})
    assert "Madrid" in reply["choices"][0]["message"]["content"]
