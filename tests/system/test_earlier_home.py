"""A home made by version 0.1 opens, serves, trains on and rolls back under its own settings file."""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import pytest
import yaml
from tests.system.test_words import run

from openclaw_rl.common.sockets import free_port
from openclaw_rl.settings.load import load, load_all
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json

pytestmark = pytest.mark.system

ARCHIVE = Path(__file__).with_name("home_0_1.tar.xz")
STARTER = Path(__file__).with_name("starter_0_1.tar.xz")
"""The starter of that version: a home belongs to the weights that it was made with."""
RECORDED_HOME = "/home/user/.openclaw-rl"
"""Where the recorded home was: 0.1 stores absolute paths of policy folders."""


@pytest.fixture
def earlier_home(tmp_path: Path) -> Path:
    """The recorded home: three versions trained on 44 replies, version 3 rolled back, and a settings file."""
    home = tmp_path / "home"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home, filter="data")
    with tarfile.open(STARTER) as archive:
        archive.extractall(tmp_path, filter="data")
    with sqlite3.connect(home / "store.db") as store:
        store.execute("UPDATE policies SET path = replace(path, ?, ?)", (RECORDED_HOME, str(home)))
    return home


def test_the_settings_of_today_follow_from_the_earlier_keys(earlier_home: Path) -> None:
    loaded = load_all(file=earlier_home / "settings.yaml", environ={})
    config = loaded.config
    renamed = [line for line in loaded.notices if " now: rename it" in line]
    assert any(
        line.endswith("gap_low is called train.loss.token_ratio_min now: rename it")
        for line in renamed
    )
    train, run_ = config.train, config.run
    assert (config.engine.max_loaded_versions, config.serve.ephemeral_patterns) == (
        3,
        ("^\\[clock\\] ",),
    )
    assert config.collect.client_prompt_patterns == ("^Summarize the conversation",)
    assert (run_.max_crashes, run_.heartbeat_timeout, run_.startup_timeout) == (4, 90.0, 600.0)
    assert (train.batch.min_turns, train.batch.max_uses, train.batch.replay_ratio) == (4, 2, 0.25)
    assert (
        train.loss.token_ratio_min,
        train.loss.token_ratio_max,
        train.loss.length_ema_decay,
    ) == (0.4, 6.0, 0.98)
    assert (train.safety.max_turn_log_ratio, train.safety.lease_ttl, train.distill.ratio_clip) == (
        0.6,
        20.0,
        2.5,
    )
    assert (train.finetune, train.base_quantization_bits, train.gradient_checkpointing) == (
        "lora",
        16,
        False,
    )
    assert (train.distill.teacher, train.distill.ema_rate, train.lora.rank) == ("base", 0.05, 2)


@pytest.mark.timeout(600)
def test_it_serves_trains_on_and_rolls_back(earlier_home: Path) -> None:
    port, key = free_port(), (earlier_home / "api_key").read_text().strip()
    flags = {
        "home": str(earlier_home),
        "serve.port": port,
        "train.batch.min_turns": 1,
        "train.batch.max_turns": 4,
    }
    flags["model.path"] = str(earlier_home.parent / "starter")
    config = load(file=earlier_home / "settings.yaml", flags=flags, environ={})
    assert yaml.safe_load((earlier_home / "settings.yaml").read_text())["train"]["gap_low"] == 0.4
    with SubprocessSystem(config) as system:
        assert system.api_key == key
        head = system.wait_until_settled()
        assert head in (2, 4), (
            "version 2 is what the rollback left; turns that were waiting may have been trained"
        )
        history = [{"role": "user", "content": "What is the capital of France?"}]
        first = post_json(
            system, "/v1/chat/completions", {"model": "openclaw", "messages": history}
        )
        assert first["system_fingerprint"] == f"v{head}"
        history += [
            first["choices"][0]["message"],
            {"role": "user", "content": "No, too long. Keep it short, please."},
        ]
        post_json(system, "/v1/chat/completions", {"model": "openclaw", "messages": history})
        before, head = head, system.wait_until_settled()
        assert head > max(before, 3)
        home = ("--home", str(earlier_home))
        made = (
            run("inspect", "policy", str(version), *home).stdout
            for version in range(before + 1, head + 1)
        )
        assert any(first["id"] in shown for shown in made), "practice may have made the newest ones"
        assert "back to version 1" in run("rollback", "1", "--yes", *home).stdout
        assert system.wait_until_settled() == 1
        again = post_json(
            system, "/v1/chat/completions", {"model": "openclaw", "messages": history[:1]}
        )
        assert again["system_fingerprint"] == "v1"
    store = Store.open(config.store_path, create=False)
    with store.read() as conn:
        states = {p.version: p.state.value for p in policies.list_all(conn)}
    assert states[0] == states[1] == "live"
    assert {states[2], states[3]} == {"rolled_back"}
    store.close()
