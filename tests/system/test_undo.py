"""An undo while the system runs: requests are answered all the time, and the rest is learned again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.system.test_damaged_weights import SETTINGS, rows, teach, trained_turns
from tests.system.test_parked import readiness, wait_for
from tests.system.test_words import run

from openclaw_rl.serve.auth import scope_of
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

pytestmark = pytest.mark.system

VERSIONS = 5


def test_undo_while_the_system_runs(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", SETTINGS)
    home = ("--home", str(config.home_dir))
    with SubprocessSystem(config) as system:
        turns = []
        for number in range(VERSIONS):
            turns.append(teach(system, number))
            wait_for(lambda: len(trained_turns(config)) == len(turns))
        learned = json.loads(run("learned", *home, "--json").stdout)
        assert [row["turns"][0]["turn"] for row in learned["versions"]] == turns[::-1]
        assert all("".join(row["turns"][0]["credit"]["tokens"]) for row in learned["versions"])

        done, answers = threading.Event(), []

        def ask() -> None:
            while not done.is_set():
                body = {
                    "model": "openclaw",
                    "messages": [{"role": "user", "content": "Hello?"}],
                    "max_tokens": 4,
                }
                answers.append(post_json(system, "/v1/chat/completions", body)["choices"])

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            undone = run("undo", *home, "--turn", turns[1], "--yes", timeout=180)
        finally:
            done.set()
            asking.join()
        assert undone.returncode == 0, undone.stderr
        assert "4 versions rolled back: 2, 3, 4, 5; version 1 answers meanwhile" in undone.stdout
        assert f"is version {VERSIONS + 3}: 3 of 3 batches were trained on again" in undone.stdout
        assert len(answers) > 1
        assert all(answers)
        assert trained_turns(config) == sorted({*turns} - {turns[1]})
        wait_for(lambda: readiness(system)["version"] == VERSIONS + 3)
        assert readiness(system)["reasons"] == []
        children = {policy.version: policy.parent for policy in rows(config).values()}
        assert children[VERSIONS + 1] == 1
    here = run(
        "undo",
        *home,
        "--set",
        "train.method=binary",
        "--turn",
        turns[0],
        "--yes",
        "--now",
        timeout=180,
    )
    assert here.returncode == 0, here.stderr
    assert f"is version {VERSIONS + 6}: 3 of 3 batches were trained on again" in here.stdout
    assert trained_turns(config) == sorted(turns[2:])


def test_undo_of_a_turn_of_one_agent(tmp_path: Path) -> None:
    """Only the system is given `policy.per`; `undo` and `status` find it in the home, also while nothing runs."""
    config = scratch_config(
        tmp_path / "home", SETTINGS | {"policy.per": "agent", "gate.kind": "numbers"}
    )
    home = ("--home", str(config.home_dir))
    turns: dict[str, list[str]] = {"ann": [], "bob": []}
    with SubprocessSystem(config) as system:
        for number in range(3):
            for agent, own in turns.items():
                own.append(teach_agent(system, agent, number))
            wait_for(lambda: len(rows(config)) == 1 + sum(map(len, turns.values())))
        ann, bob = (f"agent:{scope_of(system.api_key)}:{agent}" for agent in turns)
        heads = read_status(home)["heads"]
        undone = run("undo", *home, "--turn", turns["ann"][0], "--yes", timeout=180)
        assert undone.returncode == 0, undone.stderr
        assert f"{ann}: 1 turn taken out; versions trained on them: " in undone.stdout
        assert "2 batches of 2 turns trained on again" in undone.stdout
        assert "2 of 2 batches were trained on again" in undone.stdout
        after = read_status(home)["heads"]
        assert after[bob] == heads[bob]
        assert after[ann] > max(heads.values())
        assert versions_of(config, after[ann]) == turns["ann"][1:]
    here = run("undo", *home, "--turn", turns["bob"][1], "--yes", "--now", timeout=180)
    assert here.returncode == 0, here.stderr
    assert "1 of 1 batches were trained on again" in here.stdout
    assert versions_of(config, read_status(home)["heads"][bob]) == [
        turns["bob"][0],
        turns["bob"][2],
    ]
    refused = run("undo", *home, "--set", "policy.per=user", "--turn", turns["bob"][0], "--yes")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert (
        "policy.per is user, but the system on this home was last started with agent"
        in refused.stderr
    )


def teach_agent(system: SubprocessSystem, agent: str, number: int) -> str:
    body = {
        "model": "openclaw",
        "messages": [{"role": "user", "content": f"What is {number} plus 3?"}],
    }
    reply = post_json(system, "/v1/chat/completions", body, {"X-Agent-Id": agent})
    post_json(system, "/v1/feedback", {"id": reply["id"], "score": 1 if number % 2 else -1})
    return str(reply["id"])


def read_status(home: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("status", *home, "--json").stdout)
    return found


def versions_of(config: Config, head: int) -> list[str]:
    """The turns that a version and its ancestors were trained on, oldest first."""
    with Store.open(config.store_path, create=False) as store, store.read() as conn:
        line = policies.lineage(conn, head)
        return [
            use.turn
            for version in reversed(line)
            for use in policies.uses_of_version(conn, version)
        ]
