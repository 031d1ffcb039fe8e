"""A version that people dislike is rolled back by itself, while a client talks and none of its requests fails."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests.system.test_parked import readiness, talk, wait_for
from tests.system.test_words import run

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import PolicyState

SETTINGS = {"train.method": "binary", "train.batch.min_turns": 8, "train.batch.max_turns": 8}
DISLIKED = 3
"""People dislike this version and all after it, until it has been rolled back."""


class KeenClient:
    """Talks and reacts outright until it is stopped. Thread; `failures` has the errors of its requests."""

    def __init__(self, system: SubprocessSystem, store: Store) -> None:
        self.system, self.store = system, store
        self.failures: list[str] = []
        self.disliked_turns = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._talk)
        self.thread.start()

    def _talk(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            try:
                id_ = talk(self.system, f"What is {number} plus 3?")
                with self.store.read() as conn:
                    version = exchanges.get_many(conn, [id_])[id_].request.version
                    [disliked] = [p.state for p in policies.get_many(conn, [DISLIKED])] or [None]
                bad = disliked is PolicyState.LIVE and version >= DISLIKED
                self.disliked_turns += bad
                post_json(self.system, "/v1/feedback", {"id": id_, "score": -1 if bad else 1})
            except (OpenClawError, OSError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()


def last_move(store: Store) -> policy_marks.HeadMove | None:
    with store.read() as conn:
        return policy_marks.last_head_move(conn)


def check_reports(config: Config, reason: str) -> None:
    home = ("--home", str(config.home_dir))
    status = json.loads(run("status", *home, "--json").stdout)
    assert status["automatic_rollback"]["reason"] == reason
    assert "satisfaction fell" in status["troubles"]
    assert reason in " ".join(run("doctor", "--troubles", *home).stdout.split())
    assert f"v{DISLIKED}: {reason}" in " ".join(run("policies", "list", *home).stdout.split())


def test_a_disliked_version_is_rolled_back_while_people_talk(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", SETTINGS)
    with SubprocessSystem(config) as system, Store.open(config.store_path, create=False) as store:
        client = KeenClient(system, store)
        try:
            move = wait_for(lambda: last_move(store))
            wait_for(lambda: readiness(system)["version"] == move.to)
            assert readiness(system)["ready"]
            check_reports(config, move.reason)
            newest = wait_for(lambda: (v := readiness(system)["version"]) > move.old and v)
        finally:
            client.stop()
        with store.read() as conn:
            assert policies.get(conn, newest).state is PolicyState.LIVE  # type: ignore[union-attr]
            assert DISLIKED not in policies.lineage(conn, newest)
    assert client.failures == []
    assert move.automatic
    assert move.to < DISLIKED <= move.old
    assert "satisfaction fell from 1.00 of " in move.reason
    assert client.disliked_turns <= 20, "within about a batch of turns, and those that ran meanwhile"
