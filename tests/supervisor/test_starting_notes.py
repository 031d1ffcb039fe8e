"""The start of a system may take as long as its workers start."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import StartingNotes, scratch_config


def test_the_note_names_the_workers_that_start(tmp_path: Path) -> None:
    config = scratch_config(tmp_path)
    notes = StartingNotes(config, lambda note: None)
    assert notes._read_beats() == "", "there is no store yet"
    with Store.open(config.store_path) as store:
        heartbeats.write_heartbeat(
            store, "gateway", "hashing weights: 7.2 of 24.0 GiB", heartbeats.STARTING
        )
        heartbeats.write_heartbeat(store, "train", "waiting", heartbeats.RUNNING)
        assert notes._read_beats() == "gateway: hashing weights: 7.2 of 24.0 GiB"
        heartbeats.write_heartbeat(
            store, "gateway", "serving version 0, 0 running", heartbeats.RUNNING
        )
    assert notes._read_beats() == ""
