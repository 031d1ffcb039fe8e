"""Flipped bytes in the newest versions: never served, never trained from, reported, and no turn is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.system.test_parked import readiness, talk, wait_for
from tests.system.test_words import run

from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import Policy, PolicyState

pytestmark = pytest.mark.system

SETTINGS = {"train.method": "binary", "train.batch.min_turns": 1, "train.batch.max_turns": 1}


def rows(config: Config) -> dict[int, Policy]:
    with Store.open(config.store_path, create=False) as store, store.read() as conn:
        return {policy.version: policy for policy in policies.list_all(conn)}


def trained_turns(config: Config) -> list[str]:
    """The turns that the head's lineage was trained on."""
    with Store.open(config.store_path, create=False) as store, store.read() as conn:
        line = policies.lineage(conn, policies.head(conn).version)
        return sorted(
            use.turn for version in line for use in policies.uses_of_version(conn, version)
        )


def teach(system: SubprocessSystem, number: int) -> str:
    target = talk(system, f"What is {number} plus 3?")
    post_json(system, "/v1/feedback", {"id": target, "score": 1 if number % 2 else -1})
    return target


def flip(policy: Policy, name: str) -> None:
    file = Path(str(policy.path)) / name
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)


def test_flipped_bytes_in_the_newest_versions(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", SETTINGS)
    with SubprocessSystem(config) as system:
        turns = []
        for number in range(3):
            turns.append(teach(system, number))
            wait_for(lambda: len(trained_turns(config)) == len(turns))
        wait_for(lambda: readiness(system)["version"] == readiness(system)["head"])
    before = rows(config)
    newest = max(before)
    assert newest == 3
    flip(before[newest], "optimizer.state")
    flip(before[newest - 1], "adapter_model.safetensors")
    flip(before[newest - 2], "trainer.json")

    with SubprocessSystem(config) as system:
        ready = readiness(system)
        assert (ready["ready"], ready["version"]) == (True, 0), ready
        wait_for(lambda: len(trained_turns(config)) == len(turns))
        assert trained_turns(config) == sorted(turns), "trained on again, each once"
        after = rows(config)
        children = {
            policy.version: policy.parent for policy in after.values() if policy.version > newest
        }
        assert children[newest + 1] == 0
        assert not set(children.values()) & {newest, newest - 1, newest - 2}
        for version in (newest, newest - 1, newest - 2):
            assert after[version].state is PolicyState.ROLLED_BACK

        names = {
            newest: "optimizer.state",
            newest - 1: "adapter_model.safetensors",
            newest - 2: "trainer.json",
        }
        reports = [
            f"version {version} is damaged: {names[version]} has sha256 "
            for version in sorted(names)
        ]
        reasons = readiness(system)["reasons"]
        status = json.loads(run("status", "--home", str(config.home_dir), "--json").stdout)
        doctor = " ".join(
            run("doctor", "--troubles", "--home", str(config.home_dir)).stdout.split()
        )
        for report in reports:
            assert any(reason.startswith(report) for reason in reasons)
            assert any(line.startswith(report) for line in status["damaged"])
            assert report in doctor
        assert "damaged weights" in status["troubles"]
        assert "restore the folder from a backup" in doctor
        assert any(report in system.log_tail(200) for report in reports)

        head = rows(config)[max(rows(config))]
        flip(head, "adapter_config.json")  # while it is served and trained from
        wait_for(lambda: readiness(system)["version"] == readiness(system)["head"] != head.version)
        wait_for(lambda: len(trained_turns(config)) == len(turns))
        assert head.version not in {policy.parent for policy in rows(config).values()}
