"""Workers that cannot run: serving continues, the reason and the cure are named, and a corrected file is loaded."""

from __future__ import annotations

import json
import textwrap
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.system.test_words import run

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

pytestmark = pytest.mark.system

WITHIN = 600.0  # seconds; a quiet machine needs a tenth
GOOD_REWARD = """
class Mine:
    def score(self, prompt, response, next_state):
        return 1.0

def get_reward_model(config):
    return Mine()
"""
GOOD_LOSS = """
def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    return -(policy_logits * advantages).mean()
"""


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + WITHIN
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {WITHIN:g} s"
        time.sleep(0.2)
    return found


def readiness(system: SubprocessSystem) -> dict[str, Any]:
    with urllib.request.urlopen(f"{system.base_url}/readyz", timeout=600) as response:
        return dict(json.load(response))


def reported(system: SubprocessSystem, worker: str, words: str) -> str:
    """Wait until /readyz names the worker's problem with these words, and return it. Requests must be answered."""

    def look() -> str | None:
        found = readiness(system)
        assert found["ready"], "other workers do not matter to those who want replies"
        return next(
            (r for r in found["reasons"] if r.startswith(f"{worker}: parked") and words in r), None
        )

    return str(wait_for(look))


def talk(system: SubprocessSystem, text: str = "What is the capital of France?") -> str:
    """Send a message and a reaction to its reply; return the reply's id."""
    said: list[dict[str, Any]] = [{"role": "user", "content": text}]
    first = post_json(
        system, "/v1/chat/completions", {"model": "openclaw", "messages": said, "max_tokens": 64}
    )
    said += [first["choices"][0]["message"], {"role": "user", "content": "Perfect, thanks!"}]
    post_json(
        system, "/v1/chat/completions", {"model": "openclaw", "messages": said, "max_tokens": 64}
    )
    return str(first["id"])


def wait_for_verdict(system: SubprocessSystem, turn: str) -> None:
    with Store.open(system.config.store_path, create=False) as store:

        def is_judged() -> bool:
            with store.read() as conn:
                return turns.current_verdict(conn, turn) is not None

        wait_for(is_judged)


def check_commands(system: SubprocessSystem, worker: str, words: str) -> None:
    """`status` and the doctor name reason and cure."""
    home = ("--home", str(system.config.home_dir))
    status = json.loads(run("status", *home, "--json").stdout)
    assert "a worker does not run" in status["troubles"]
    row = next(row for row in status["loops"] if row["name"] == worker)
    supervisor = next(row for row in status["loops"] if row["name"] == "supervisor")
    assert (row["state"] == "parked" and words in row["note"]) or worker in supervisor["note"]
    done = run("doctor", "--troubles", *home)
    assert done.returncode == 1
    assert words in " ".join(done.stdout.split())
    assert "cure" in done.stdout


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(3)", "Reason: exit code 3"),
        (
            "import ctypes; ctypes.string_at(0)",
            "signal SIGSEGV: Fatal Python error: Segmentation fault in",
        ),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        (
            GOOD_REWARD.replace("return 1.0", "raise RuntimeError('no licence')"),
            "RuntimeError: no licence",
        ),
    ],
    ids=["exits", "crashes-natively", "raises-when-loaded", "raises-for-each-turn"],
)
def test_a_reward_plug_in_that_fails(tmp_path: Path, code: str, words: str) -> None:
    plugin = tmp_path / "rm.py"
    plugin.write_text(f"{code}\nclass Unused: ...\n")
    settings = {"judge.kind": "plugin", "judge.plugin_path": str(plugin), "judge.workers": 1}
    with SubprocessSystem(scratch_config(tmp_path / "home", settings)) as system:
        target = talk(system)
        reason = reported(system, "judge", words)
        assert "rm.py" in reason
        assert "judge.plugin_path" in reason
        wait_for(lambda: "crash 2" in system.log_tail(100) or "No verdict" in system.log_tail(100))
        check_commands(system, "judge", words)
        talk(system)

        plugin.write_text(GOOD_REWARD)
        wait_for_verdict(system, target)
        wait_for(lambda: readiness(system)["reasons"] == [])


def test_a_plug_in_that_is_corrected_while_it_loads(tmp_path: Path) -> None:
    """It fails at once, and takes for ever to load when the judge is started again."""
    plugin, count = tmp_path / "rm.py", tmp_path / "count"
    code = f"""
        import pathlib, time
        count = pathlib.Path({str(count)!r})
        count.write_text(count.read_text() + "x" if count.exists() else "x")
        if count.read_text() == "x":
            raise RuntimeError("no licence")
        time.sleep(900)
        class Unused: ...
    """
    plugin.write_text(textwrap.dedent(code))
    settings = {"judge.kind": "plugin", "judge.plugin_path": str(plugin)}
    with SubprocessSystem(scratch_config(tmp_path / "home", settings)) as system:
        target = talk(system)
        wait_for(lambda: count.exists() and count.read_text() == "xx")
        plugin.write_text(GOOD_REWARD)
        wait_for_verdict(system, target)


def test_a_loss_that_always_fails_uses_up_a_few_turns_only_and_trains_once_it_is_corrected(
    tmp_path: Path,
) -> None:
    plugin = tmp_path / "loss.py"
    plugin.write_text(
        GOOD_LOSS.replace("return", "assert len(policy_logits) < 4, 'no licence'\n    return")
    )
    settings = {
        "train.loss.path": str(plugin),
        "train.batch.min_turns": 1,
        "train.batch.max_turns": 1,
    }
    with SubprocessSystem(
        scratch_config(tmp_path / "home", settings | {"train.method": "binary"})
    ) as system:
        ids = [talk(system, f"What is {n} plus 3?") for n in range(12)]
        for n, target in enumerate(ids):
            post_json(system, "/v1/feedback", {"id": target, "score": 1 if n % 2 else -1})
        reason = reported(system, "train", "8 turns failed one by one")
        assert "loss.py" in reason
        assert "no licence" in reason
        wait_for(lambda: "crash 2" in system.log_tail(100))
        check_commands(system, "train", "no licence")
        plugin.write_text(GOOD_LOSS)
        with Store.open(system.config.store_path, create=False) as store:

            def trained() -> bool:
                with store.read() as conn:
                    return policies.head(conn).version > 0

            wait_for(trained)
            with store.read() as conn:
                codes = [turn.untrainable_code for id_ in ids if (turn := turns.get(conn, id_))]
        assert codes.count(ReasonCode.CANNOT_TRAIN) <= 7, codes


def test_training_without_a_gateway_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(f"import os; os._exit(3)\n{GOOD_LOSS}")
    settings = ("--set", f"train.loss.path={tmp_path}/loss.py", "--set", "run.max_crashes=2")
    done = run("train", "--home", str(tmp_path / "home"), *settings)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("openclaw-rl: ")]
    assert line.startswith(
        "openclaw-rl: train crashed 2 times. Reason: exit code 3, without an error message."
    )
    assert f"{tmp_path}/loss.py (train.loss.path) runs in this process" in line
    status = json.loads(run("status", "--home", str(tmp_path / "home"), "--json").stdout)
    (note,) = [row["note"] for row in status["loops"] if row["name"] == "train"]
    assert note.startswith("crashed 2 times. Reason: exit code 3")
