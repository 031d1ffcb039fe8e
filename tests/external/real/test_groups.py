"""The method `groups` on SmolLM2: the episodes of one task are compared, and a version comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.demo.everyday_tastes import count_words
from tests.external.real.waiting import wait_for
from tests.system.test_episodes import Owner
from tests.system.test_parked import readiness

from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.supervisor.supervisor import read_key

EPISODES = 4
MAX_TOKENS = 24


def play(owner: Owner, number: int) -> tuple[str, float]:
    """Play one episode of one step; its reward falls with the words of the reply. Returns turn and reward."""
    name = f"g.{number}"
    task = {"task": "t", "group": {"id": "g", "size": EPISODES}, "max_steps": 1, "ttl": 1800}
    key = owner.repeat("PUT", f"/v1/episodes/{name}", task)["api_key"]
    question = {"role": "user", "content": "Name one fruit."}
    body = {"messages": [question], "max_tokens": MAX_TOKENS, "temperature": 1.0, "seed": number}
    reply = owner.call("POST", "/v1/chat/completions", body, key)
    reward = 1.0 / (1 + count_words(reply["choices"][0]["message"]["content"]))
    owner.repeat("POST", f"/v1/episodes/{name}/outcome", {"status": "done", "reward": reward})
    return str(reply["id"]), reward


def test_a_group_of_episodes_gives_a_version(small: Mapping[str, Any], tmp_path: Path) -> None:
    config = scratch_config(
        tmp_path / "home", {**small, "train.method": "groups", "gate.kind": "numbers"}
    )
    with SubprocessSystem(config) as system, Store.open(config.store_path, create=False) as store:
        owner = Owner(config.serve.url, read_key(config))
        played = [play(owner, number) for number in range(EPISODES)]
        assert len({reward for _, reward in played}) > 1, "equal rewards teach nothing"

        def newest() -> int:
            with store.read() as conn:
                return policies.head(conn).version

        version = wait_for(newest)
        with store.read() as conn:
            used = {use.turn for use in policies.uses_of_version(conn, version)}
            (policy,) = policies.get_many(conn, [version])
        assert used == {turn for turn, _ in played}
        assert policy.metrics["kl/step"] > 0
        wait_for(lambda: readiness(system)["version"] == version)
