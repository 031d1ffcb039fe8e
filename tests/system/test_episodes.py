"""Episodes on a whole system whose workers are killed: nothing is crossed, lost or trained on twice."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.system.test_parked import wait_for

from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.supervisor.supervisor import read_key

pytestmark = pytest.mark.system

SIZE, STEPS, KILLS = 4, 2, 12
SETTINGS = {
    "train.method": "groups",
    "train.batch.max_groups": 2,
    "gate.kind": "numbers",
    "run.max_crashes": 50,
}


class Owner:
    """The owner's half of a runner: it repeats what it is not sure of, because all of it is idempotent."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key

    def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {key or self.key}")
        request.data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def repeat(self, method: str, path: str, body: Any = None) -> Any:
        until = time.monotonic() + 600
        while True:
            try:
                return self.call(method, path, body)
            except urllib.error.HTTPError as error:
                if error.code < 500 or time.monotonic() > until:
                    raise AssertionError(error.read()) from None
            except OSError:
                assert time.monotonic() < until
            time.sleep(0.2)

    def play(self, group: int, number: int) -> tuple[str, list[str], float | None]:
        """One episode: an error of the infrastructure makes it void."""
        name = f"g{group}.{number}"
        body = {
            "task": f"t{group}",
            "group": {"id": f"g{group}", "size": SIZE},
            "max_steps": STEPS,
            "ttl": 600,
        }
        key = self.repeat("PUT", f"/v1/episodes/{name}", body)["api_key"]
        messages, turns, reward = (
            [{"role": "user", "content": "What is the capital of France?"}],
            [],
            None,
        )
        try:
            for _ in range(STEPS):
                sent = {"messages": messages, "max_tokens": 40, "temperature": 0}
                reply = self.call("POST", "/v1/chat/completions", sent, key)
                turns.append(reply["id"])
                messages += [
                    reply["choices"][0]["message"],
                    {"role": "user", "content": "And of Italy?"},
                ]
            reward = len(messages[-2]["content"]) / 100 + number
        except OSError:
            reward = None
        outcome = {"status": "void", "reason": "the gateway died"} if reward is None else {
            "status": "done", "reward": reward
        }  # fmt: skip
        for _ in range(2):
            self.repeat("POST", f"/v1/episodes/{name}/outcome", outcome)
        return name, turns, reward


def kill_workers(
    path: Path, stop: threading.Event, killed: Counter[str], rng: random.Random
) -> None:
    """Kill the gateway, the collector, the judge and the trainer in turn, at random moments.

    Each gets through one iteration first: a row on which a worker has died twice is set aside, and its episode is void.
    """
    names = ["collect", "train", "gateway", "judge"]
    first_beats: dict[int, float] = {}  # by pid
    with Store.open(path) as store:
        while not stop.wait(rng.uniform(0.2, 1.0)):
            name = names[sum(killed.values()) % len(names)]
            with store.read() as conn:
                running = [
                    beat
                    for beat in heartbeats.read_heartbeats(conn)
                    if beat.state == heartbeats.RUNNING
                ]
            beat = next((beat for beat in running if beat.name == name), None)
            if beat is not None and first_beats.setdefault(beat.pid, beat.at) < beat.at:
                try:
                    os.kill(beat.pid, signal.SIGKILL)
                    killed[name] += 1
                except ProcessLookupError:
                    continue


def test_killed_workers_cross_lose_and_repeat_nothing(tmp_path: Path) -> None:
    config = scratch_config(tmp_path / "home", SETTINGS)
    stop, killed = threading.Event(), Counter[str]()
    with SubprocessSystem(config) as system:
        owner = Owner(config.serve.url, read_key(config))
        killer = threading.Thread(
            target=kill_workers, args=(config.store_path, stop, killed, random.Random(5))
        )
        killer.start()
        played: list[tuple[str, list[str], float | None]] = []
        try:
            with ThreadPoolExecutor(SIZE) as pool:
                while sum(killed.values()) < KILLS:
                    group = len(played) // SIZE
                    played += pool.map(owner.play, [group] * SIZE, range(SIZE))
        finally:
            stop.set()
            killer.join()
        paths = [f"/v1/episodes?group=g{group}" for group in range(len(played) // SIZE)]
        wait_for(lambda: all(owner.repeat("GET", path)["group"]["completed_at"] for path in paths))
        system.wait_until_settled(timeout=600)
        shown = {name: owner.repeat("GET", f"/v1/episodes/{name}") for name, _, _ in played}
    for name, turns, reward in played:
        assert (shown[name]["status"], shown[name]["reward"]) == (
            "void" if reward is None else "done",
            reward,
        )
        steps = {turn["id"]: turn["step"] for turn in shown[name]["turns"]}
        if reward is not None:
            assert {t: steps[t] for t in turns} == {t: n for n, t in enumerate(turns)}
    with Store.open(config.store_path) as store, store.read() as conn:
        line = policies.lineage(conn, policies.head(conn).version)
        used = Counter(
            use.turn for version in line for use in policies.uses_of_version(conn, version)
        )
    void = {turn for _, turns, reward in played if reward is None for turn in turns}
    assert set(used.values()) == {1}
    assert not void & used.keys()
    known = Counter(name.partition(".")[0] for name, _, reward in played if reward is not None)
    for name, turns, reward in played:
        if reward is not None and known[name.partition(".")[0]] >= 2:
            left_out = {
                turn["id"]
                for turn in shown[name]["turns"]
                if turn["untrainable"] or turn["drop_reason"]
            }
            assert set(turns) <= used.keys() | left_out
