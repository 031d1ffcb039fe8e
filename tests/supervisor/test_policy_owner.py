"""`policy.per` of a home: the gateway's command sets it, the others take it from the store."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage.policy_names import read_owner
from openclaw_rl.supervisor.policy_owner import set_owner, with_stored_owner


def settings(home: Path, **given: object) -> Config:
    return from_flat(
        {"home": str(home), **{name.replace("__", "."): value for name, value in given.items()}}
    )


def test_other_commands_use_what_the_gateway_was_started_with(tmp_path: Path) -> None:
    set_owner(settings(tmp_path, policy__per="agent"))
    assert with_stored_owner(settings(tmp_path)).policy.per == "agent"
    assert with_stored_owner(settings(tmp_path, policy__per="agent")).policy.per == "agent"
    with pytest.raises(
        ConfigError, match=r"policy.per is all, but .* with agent. Leave policy.per out"
    ):
        with_stored_owner(settings(tmp_path, policy__per="all"))
    with pytest.raises(ConfigError, match="a checkpoint holds one policy"):
        with_stored_owner(settings(tmp_path, train__checkpoint__save_dir=str(tmp_path / "saved")))


def test_before_the_first_start_the_setting_counts(tmp_path: Path) -> None:
    assert with_stored_owner(settings(tmp_path, policy__per="key")).policy.per == "key"
    assert with_stored_owner(settings(tmp_path)).policy.per == "all"
    with Store.open(tmp_path / "store.db") as store, store.read() as conn:
        assert read_owner(conn) is None


def test_a_system_that_starts_with_another_value_sets_it_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for per in ("agent", "agent", "all"):
            set_owner(settings(tmp_path, policy__per=per))
    assert [record.getMessage() for record in caplog.records] == [
        "policy.per was agent on this home, and is all from now on"
    ]
    assert with_stored_owner(settings(tmp_path)).policy.per == "all"


def test_it_is_not_changed_while_a_trainer_works_with_the_earlier_value(tmp_path: Path) -> None:
    set_owner(settings(tmp_path, policy__per="agent"))
    with Store.open(tmp_path / "store.db") as store:
        heartbeats.write_heartbeat(store, "train")
        with pytest.raises(
            ConfigError, match="is all, but it is agent in the train worker that runs on this home"
        ):
            set_owner(settings(tmp_path))
        set_owner(settings(tmp_path, policy__per="agent"))
        heartbeats.write_heartbeat(
            store, "train", pid=2**22 + 1
        )  # no process has this id: it was killed
        set_owner(settings(tmp_path))
        with store.read() as conn:
            assert read_owner(conn) == "all"
