"""A version that people dislike is rolled back by itself, while a client talks and none of its requests fails."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection
from tests.system.test_parked import readiness, talk, wait_for
from tests.system.test_words import run

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import PolicyState

pytestmark = pytest.mark.system

SETTINGS = {"train.method": "binary", "train.batch.min_turns": 8, "train.batch.max_turns": 8}
FIRST_DISLIKED = 3
"""People dislike the first live version from here on and all after it, until it has been rolled back."""


class KeenClient:
    """Talks and reacts outright until it is stopped. Thread; `failures` has the errors of its requests."""

    def __init__(self, system: SubprocessSystem, store: Store) -> None:
        self.system, self.store = system, store
        self.failures: list[str] = []
        self.disliked: int | None = None  # the version from which on they dislike
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
                    if (
                        self.disliked is None
                        and version >= FIRST_DISLIKED
                        and is_live(conn, version)
                    ):
                        self.disliked = version
                    bad = (
                        self.disliked is not None
                        and version >= self.disliked
                        and is_live(conn, self.disliked)
                    )
                post_json(self.system, "/v1/feedback", {"id": id_, "score": -1 if bad else 1})
            except (OpenClawError, OSError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()


def is_live(conn: Connection, version: int) -> bool:
    policy = policies.get(conn, version)
    return policy is not None and policy.state is PolicyState.LIVE


def last_move(store: Store) -> policy_marks.HeadMove | None:
    with store.read() as conn:
        return policy_marks.last_head_move(conn)


def check_reports(config: Config, reason: str, version: int) -> None:
    home = ("--home", str(config.home_dir))
    status = json.loads(run("status", *home, "--json").stdout)
    assert status["automatic_rollback"]["reason"] == reason
    assert "satisfaction fell" in status["troubles"]
    assert reason in " ".join(run("doctor", "--troubles", *home).stdout.split())
    assert f"v{version}: {reason}" in " ".join(run("policies", "list", *home).stdout.split())


def test_a_disliked_version_is_rolled_back_while_people_talk(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", SETTINGS)
    with SubprocessSystem(config) as system, Store.open(config.store_path, create=False) as store:
        client = KeenClient(system, store)
        try:
            move = wait_for(lambda: last_move(store))
            wait_for(lambda: readiness(system)["version"] == move.to)
            assert readiness(system)["ready"]
            assert client.disliked is not None
            check_reports(config, move.reason, client.disliked)
            newest = wait_for(lambda: (v := readiness(system)["version"]) > move.old and v)
        finally:
            client.stop()
        with store.read() as conn:
            assert is_live(conn, newest)
            assert client.disliked not in policies.lineage(conn, newest)
            undone = [
                version
                for version in policies.lineage(conn, move.old)
                if version >= client.disliked
            ]
            assert 1 <= len(undone) <= 3, (
                "hardly any version was trained from turns of the disliked one"
            )
    assert client.failures == []
    assert move.automatic
    assert move.to < client.disliked <= move.old
    assert "satisfaction fell from 1.00 of " in move.reason
