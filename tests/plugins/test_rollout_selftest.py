"""The rollout self-test, as a person runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.system.test_words import run as command

from openclaw_rl import inspect_sessions

pytestmark = pytest.mark.system


def test_conversations_become_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With debug lines of every process that takes part."""
    out = tmp_path / "debug_rollouts"
    monkeypatch.setenv("OPENCLAW_DEBUG", "true")
    monkeypatch.setenv("ROLLOUT_LOG_LEVEL", "DEBUG")
    told = command("test-rollout", "--num-samples", "3", "--output-dir", str(out), timeout=600)
    assert told.returncode == 0, told.stderr
    for name in ("supervisor", "gateway", "collect", "data", "test-rollout"):
        line = rf"(?m)^(?: *{name} \| \S+|\S+ {name}) DEBUG "
        assert re.search(line, told.stderr), "run.log_level"
    assert "3 trajectories in" in told.stdout
    found = inspect_sessions(out)
    assert sorted(found) == ["selftest-1", "selftest-2", "selftest-3"]
    for turns in found.values():
        assert turns[0]["next_state"] == "Perfect, thanks!"
        assert len(turns[0]["response_ids"]) == len(turns[0]["logprobs"]) > 0
    again = command("test-rollout", "--output-dir", str(out))
    assert again.returncode == 1
    assert "expected a new or an empty folder" in again.stderr
