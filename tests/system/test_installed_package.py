"""A system whose engine and trainer come from an installed package serves, judges, trains and serves the result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.echo_package import install_package, run_python

pytestmark = pytest.mark.system

CONVERSATION = """
import json, sys
from pathlib import Path
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

settings = {
    "engine.backend": "echo",
    "echo.reply": "Understood.",
    "train.trainer": "counting",
    "train.method": "binary",
    "train.batch.min_turns": 1,
    "train.batch.max_wait": 1.0,
}
messages = [{"role": "user", "content": "What is 2 + 3?"}]
with SubprocessSystem(scratch_config(Path(sys.argv[1]), settings)) as system:
    reply = post_json(system, "/v1/chat/completions", {"messages": messages})
    messages += [reply["choices"][0]["message"], {"role": "user", "content": "Perfect, thanks!"}]
    post_json(system, "/v1/chat/completions", {"messages": messages})
    version = system.wait_until_settled(timeout=600)
    last = post_json(system, "/v1/chat/completions", {"messages": messages})
print(json.dumps([messages[1]["content"], version, last["system_fingerprint"]]))
"""


def test_it_serves_and_trains(tmp_path: Path) -> None:
    site = install_package(tmp_path)
    done = run_python(site, "-c", CONVERSATION, str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Understood.", 1, "v1"]


def test_the_doctor_examines_the_whole_loop(tmp_path: Path) -> None:
    site = install_package(tmp_path)
    words = ("doctor", "--backend", "echo", "--method", "binary")
    done = run_python(site, "-m", "openclaw_rl", *words, "--set", "train.trainer=counting")
    assert done.returncode == 0, done.stdout
    assert "every check passed" in done.stdout
    assert "Noted." in done.stdout
