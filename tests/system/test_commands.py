"""The commands that people look at, on a real system: doctor, status, inspect, and the guide."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from tests.system.test_words import run

from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "one_turn.py"


@pytest.mark.parametrize("method", ["binary", "opd", "combine"])
def test_the_doctor_proves_every_link(tmp_path: Path, method: str) -> None:
    done = run("doctor", "--home", str(tmp_path / "home"), "--method", method, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") >= 8
    assert "failed" not in done.stdout


def test_the_doctor_names_the_broken_link(tmp_path: Path) -> None:
    done = run(
        *("doctor", "--home", str(tmp_path / "home"), "--set", "judge.kind=llm", "--set", "judge.model=none"),
        *("--set", "judge.base_url=http://127.0.0.1:9/v1", "--set", "judge.retries=0", "--wait", "8"),
        timeout=240,
    )
    assert done.returncode == 1
    assert "failed  the judge gives verdicts" in " ".join(done.stdout.split("\n"))


def test_status_and_inspect_tell_the_story(tmp_path: Path) -> None:
    with SubprocessSystem(
        scratch_config(tmp_path / "home", {"train.batch.min_turns": 1, "train.batch.max_turns": 1})
    ) as system:
        home = str(system.config.home_dir)
        said = [{"role": "user", "content": "What is the capital of France?"}]
        first = post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        said += [first["choices"][0]["message"], {"role": "user", "content": "No, too long. Keep it short, please."}]
        post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        system.wait_until_settled()
        status = run("status", "--home", home)
        assert "engine" in status.stdout
        assert "live" in status.stdout
        told = json.loads(run("status", "--home", home, "--json").stdout)
        assert told["head"] >= 1
        turn = run("inspect", "turn", first["id"], "--home", home).stdout
        for words in ("capital of France", "too long", "-1", "Keep answers short", "version 1"):
            assert words in turn
        assert first["id"] in run("inspect", "policy", "1", "--home", home).stdout
        assert first["id"][:12] in run("inspect", "sessions", "--home", home).stdout
        assert "back to version 0" in run("rollback", "0", "--yes", "--home", home).stdout
        assert system.wait_until_settled() == 0
        assert (
            post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})["system_fingerprint"]
            == "v0"
        )
        assert "was rolled back" in run("inspect", "turn", first["id"], "--home", home).stdout


def test_one_turn_in_one_file_learns() -> None:
    guide = runpy.run_path(str(GUIDE))
    shares = guide["learn"]("short", versions=10, batch=16, seed=0)
    assert sum(shares[-3:]) / 3 > sum(shares[:2]) / 2 + 0.15
