"""`openclaw-rl train` on files, as a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.system.test_words import run

from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.checkpoints import steps_taken

pytestmark = pytest.mark.system

PRAISE = "Perfect, thank you! Exactly what I wanted."


def session(agent: str, turns: int) -> dict[str, object]:
    rows = [
        {
            "type": "main",
            "prompt": f"What is {n} plus {n}?",
            "response": f"It is {2 * n}.",
            "next_state": PRAISE,
        }
        for n in range(1, turns + 1)
    ]
    return {"session_id": f"of-{agent}", "agent": agent, "turns": rows}


def test_training_ends_when_one_policy_has_taken_its_steps_and_another_waits(
    tmp_path: Path,
) -> None:
    data, home = tmp_path / "data.jsonl", tmp_path / "home"
    data.write_text("".join(json.dumps(session(*row)) + "\n" for row in (("ann", 5), ("bob", 1))))
    settings = {
        "data.path": data,
        "policy.per": "agent",
        "train.max_steps": 1,
        "train.method": "binary",
        "train.batch.min_turns": 2,
        "train.batch.max_turns": 2,
        "train.batch.max_wait": 1e9,
        "train.safety.max_turn_log_ratio": 99,
        "train.safety.max_batch_log_ratio": 99,
        "gate.kind": "numbers",
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = run("train", "--home", str(home), *sets, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (
        "training is finished: nothing is left to import, judge or train on"
        in done.stderr + done.stdout
    )
    with Store.open(home / "store.db", create=False) as store, store.read() as conn:
        taken = {
            name: steps_taken(policies.head(conn, name))
            for name in ("agent:import:ann", "agent:import:bob")
        }
    assert taken == {"agent:import:ann": 1, "agent:import:bob": 0}
