"""A reward model and a loss of the owner's in a whole system: a turn is judged by the one and trained by the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

pytestmark = pytest.mark.system

RM = """
class Mine:
    def compute_reward(self, prompt, response, next_feedback):
        return 0.0 if "short" in next_feedback else 1.0
    score = lambda self, prompt, response, next_state: self.compute_reward(prompt, response, next_state)

def get_reward_model(config):
    return Mine()
"""


def test_a_turn_is_judged_and_trained_by_the_owners_code(examples: Path, tmp_path: Path) -> None:
    (tmp_path / "rm.py").write_text(RM)
    settings = {
        "train.batch.min_turns": 1,
        "train.batch.max_turns": 1,
        "train.method": "binary",
        "train.loss.path": str(examples / "custom_loss.py"),
        "judge.kind": "plugin",
        "judge.plugin_path": str(tmp_path / "rm.py"),
    }
    with SubprocessSystem(scratch_config(tmp_path / "home", settings)) as system:
        said = [{"role": "user", "content": "What is the capital of France?"}]
        first = post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        said += [first["choices"][0]["message"], {"role": "user", "content": "Keep it short."}]
        post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        assert system.wait_until_settled() >= 1
    store = Store.open(system.config.store_path, create=False)
    with store.read() as conn:
        verdict, head = turns.current_verdict(conn, first["id"]), policies.head(conn)
    store.close()
    assert verdict is not None
    assert (verdict.score, verdict.judge.split("@")[0]) == (-1, "plugin:rm.py")
    assert head.metrics["plugin/wrong_signs"] == 0
    assert "loss/custom" in head.metrics
    assert head.path is not None
    (told,) = json.loads((Path(head.path) / "trainer.json").read_text())["plugins"]
    assert told["function"] == "compute_loss"
