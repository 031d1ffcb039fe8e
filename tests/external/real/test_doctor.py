"""`openclaw-rl doctor` on SmolLM2: a system of its own, from the first request to the served version."""

from __future__ import annotations

from tests.system.test_words import run


def test_every_check_passes(model: str) -> None:
    shown = run("doctor", "--model-path", model, timeout=1500)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "failed" not in shown.stdout
    assert "every check passed" in shown.stdout
    assert "SmolLM2" in shown.stdout or model in shown.stdout
