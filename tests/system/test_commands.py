"""The commands that people look at, on a real system: doctor, status, inspect, and the guide."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.system.test_words import run

from openclaw_rl.supervisor.home_folder import is_home_locked
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

pytestmark = pytest.mark.system

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "one_turn.py"


@pytest.mark.parametrize("method", ["binary", "opd", "combine"])
def test_the_doctor_proves_every_link(tmp_path: Path, method: str) -> None:
    done = run("doctor", "--home", str(tmp_path / "home"), "--method", method, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") >= 8
    assert "failed" not in done.stdout


def test_the_doctor_names_the_broken_link(tmp_path: Path) -> None:
    done = run(
        *(
            "doctor",
            "--home",
            str(tmp_path / "home"),
            "--set",
            "judge.kind=llm",
            "--set",
            "judge.model=none",
        ),
        *(
            "--set",
            "judge.base_url=http://127.0.0.1:9/v1",
            "--set",
            "judge.retries=0",
            "--wait",
            "8",
        ),
        timeout=600,
    )
    assert done.returncode == 1
    assert "failed  the judge gives verdicts" in " ".join(done.stdout.split("\n"))


def test_the_doctor_names_a_learning_rate_without_effect(tmp_path: Path) -> None:
    rate = (
        "--set",
        "train.optimizer.learning_rate=1e-6",
        "--set",
        "train.optimizer.warmup_steps=100",
    )
    done = run("doctor", "--home", str(tmp_path / "home"), *rate, timeout=600)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert "failed the step changes the policy: kl/step: at learning rate 1e-06" in said
    advice = re.search(r"set train\.optimizer\.learning_rate \(--lr\) to (\d\S*)", said)
    assert advice is not None
    # How far the step went depends on what was sampled, and the rate on that.
    assert 1e-5 <= float(advice[1]) <= 1e-3


def test_status_and_inspect_tell_the_story(tmp_path: Path) -> None:
    with SubprocessSystem(
        scratch_config(tmp_path / "home", {"train.batch.min_turns": 1, "train.batch.max_turns": 1})
    ) as system:
        home = str(system.config.home_dir)
        said = [{"role": "user", "content": "What is the capital of France?"}]
        first = post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        said += [
            first["choices"][0]["message"],
            {"role": "user", "content": "No, too long. Keep it short, please."},
        ]
        post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        system.wait_until_settled()
        status = run("status", "--home", home)
        assert status.stdout.startswith(f"listening at {system.base_url}/v1, model openclaw\n")
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
            post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})[
                "system_fingerprint"
            ]
            == "v0"
        )
        assert "was rolled back" in run("inspect", "turn", first["id"], "--home", home).stdout


def test_the_system_of_a_home_is_found_at_any_port_and_says_things_once(tmp_path: Path) -> None:
    """`chat` and `key` get the home alone; the model's name is another one, too."""
    settings = {
        "model.name": "mine",
        "data.export_dir": str(tmp_path / "out"),
    }  # one more process that renders
    with SubprocessSystem(scratch_config(tmp_path / "home", settings)) as system:
        home = ("--home", str(system.config.home_dir))
        assert run("key", *home).stdout.strip() == system.api_key
        talk = run("chat", *home, typed="What is the capital of France?\n/quit\n")
        assert talk.returncode == 0, talk.stderr
        assert f"mine at {system.base_url}/v1" in talk.stdout
        assert "v0 " in talk.stdout, "it answered"
        assert "starting the system" not in talk.stdout
        system.wait_until_settled()
        log = (system.config.logs_dir / "up.log").read_text().splitlines()
        assert run("chat", *home, "--config", "/no/such/file").returncode == 1
    # On a busy machine, the gateway may say before that another process hashes the weights.
    listening = f"INFO listening at {system.base_url}/v1"
    is_listening = [line.startswith(" gateway |") and line.endswith(listening) for line in log]
    assert is_listening.count(True) == 1
    too_early = [line for line in log[: is_listening.index(True)] if system.base_url in line]
    assert too_early == [], "it was not true yet"
    said = [line.partition(" INFO ")[2] for line in log if " INFO " in line]
    assert len(said) == len(set(said)), said
    assert sum("chat template" in line for line in said) == 1
    assert json.loads(run("status", *home, "--json").stdout)["gateway"] is None


def test_chat_waits_for_a_system_that_starts(tmp_path: Path) -> None:
    system = SubprocessSystem(scratch_config(tmp_path / "home"))

    def talk() -> subprocess.CompletedProcess[str]:
        while not is_home_locked(system.config):
            time.sleep(0.05)
        return run("chat", "--home", system.config.home, typed="Hello!\n/quit\n")

    with ThreadPoolExecutor(1) as pool:
        talked = pool.submit(talk)
        with system:
            done = talked.result()
    assert done.returncode == 0, done.stderr
    assert "waiting until the system on" in done.stdout
    assert f"openclaw at {system.base_url}/v1" in done.stdout


def test_one_turn_in_one_file_learns() -> None:
    guide = runpy.run_path(str(GUIDE))
    shares = guide["learn"]("short", versions=10, batch=16, seed=0)
    assert sum(shares[-3:]) / 3 > sum(shares[:2]) / 2 + 0.15
