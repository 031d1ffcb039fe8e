"""A full disk is a pause: requests get a clear 503, no worker ends, and all continues once there is room.

`FULL_DISK_SECONDS=120` keeps the disk full for two minutes; the default is ten seconds.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.small_disk import fill, free, mount_small_disk
from tests.system.test_words import run

from openclaw_rl.errors import DiskFull
from openclaw_rl.store import events, exchanges, heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import ExchangeStatus

pytestmark = pytest.mark.system

PERIOD = float(os.environ.get("FULL_DISK_SECONDS", "10"))  # seconds for which the disk stays full
RECOVERY = 10.0  # seconds until everything works again
WORKERS = ("engine", "gateway", "collect", "judge", "train", "data")
FIRST = "What is the capital of France?"


def pid_of(store: Store, worker: str) -> int | None:
    with store.read() as conn:
        return next(
            (int(beat.pid) for beat in heartbeats.read_heartbeats(conn) if beat.name == worker),
            None,
        )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_small_disk(tmp_path / "small", 2) as folder:
        yield folder


def write_much(store: Store) -> None:
    for number in range(2000):
        with store.write() as conn:
            events.append(conn, "test", str(number), {"words": "x" * 4000}, 0.0)


def test_a_store_on_a_full_disk_at_the_start(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(DiskFull, match=r"(?i)full.*(free|space)"):
        Store.open(small_disk / "store.db")


def test_a_store_on_a_disk_that_fills_up(small_disk: Path) -> None:
    store = Store.open(small_disk / "store.db")
    fill(small_disk)
    with pytest.raises(DiskFull, match=r"(?i)full.*(free|space)"):
        write_much(store)
    free(small_disk)
    with store.write() as conn:  # once there is room again, it goes on
        events.append(conn, "test", "after", {}, 0.0)
    store.close()


class Prober:
    """Sends requests all the time, alternately streamed and whole, and keeps what came back."""

    def __init__(self, system: SubprocessSystem) -> None:
        self.answers: list[
            tuple[float, int, dict[str, str], str]
        ] = []  # monotonic start, status, headers, body
        self.longest = 0.0  # seconds
        self._system, self._stop = system, threading.Event()
        self._thread = threading.Thread(target=self._send_all)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send_all(self) -> None:
        number = 0
        while not self._stop.wait(0.1):
            number += 1
            began = time.monotonic()
            status, headers, body = self._send(number, stream=number % 2 == 0)
            self.longest = max(self.longest, time.monotonic() - began)
            self.answers.append((began, status, headers, body))

    def _send(self, number: int, *, stream: bool) -> tuple[int, dict[str, str], str]:
        messages = [{"role": "user", "content": f"What is {number} plus {number}?"}]
        body = {"model": "openclaw", "messages": messages, "max_tokens": 48, "stream": stream}
        request = urllib.request.Request(
            f"{self._system.base_url}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._system.api_key}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                return response.status, dict(response.headers), response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read().decode()


def readiness(system: SubprocessSystem) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{system.base_url}/readyz", timeout=600) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


def react(system: SubprocessSystem, number: int) -> str:
    """Send a message and a reaction to its reply; return the id of the reply."""
    said: list[dict[str, Any]] = [{"role": "user", "content": f"{FIRST} ({number})"}]
    first = post_json(
        system, "/v1/chat/completions", {"model": "openclaw", "messages": said, "max_tokens": 32}
    )
    praise = "Perfect, thanks!" if number % 2 else "No, that is wrong."
    said += [first["choices"][0]["message"], {"role": "user", "content": praise}]
    post_json(
        system, "/v1/chat/completions", {"model": "openclaw", "messages": said, "max_tokens": 8}
    )
    return str(first["id"])


def finished_id(status: int, body: str) -> str | None:
    """Return the id of a reply whose finish the client got."""
    if status != 200:
        return None
    if body.startswith("{"):
        return str(json.loads(body)["id"])
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    ended = any(
        choice.get("finish_reason") for chunk in chunks for choice in chunk.get("choices", ())
    )
    return str(chunks[0]["id"]) if ended else None


@pytest.mark.timeout(int(PERIOD) + 300)
def test_a_full_disk_is_a_pause_of_every_stage(tmp_path: Path) -> None:
    settings = {"train.batch.min_turns": 2, "train.batch.max_turns": 4, "run.log_level": "debug"}
    with mount_small_disk(tmp_path / "small", 64) as disk:
        settings |= {"data.export_dir": str(disk / "export")}
        with (
            SubprocessSystem(scratch_config(disk / "home", settings)) as system,
            Store.open(system.config.store_path, create=False) as store,
        ):
            _check_pause(system, store, disk)


def _check_pause(system: SubprocessSystem, store: Store, disk: Path) -> None:
    for number in range(4):
        react(system, number)
    assert system.wait_until_settled(timeout=600) > 0
    for number in range(4, 8):
        react(system, number)
    pids = {worker: pid_of(store, worker) for worker in WORKERS}
    with Prober(system) as prober:
        _keep_full(system, disk)
        freed = time.monotonic()
        _wait_for(lambda: readiness(system)["reasons"] == [], RECOVERY, lambda: readiness(system))
        with store.read() as conn:
            before = policies.head(conn).version
        for number in range(8, 12):
            react(system, number)
        with store.read() as conn:
            _wait_for(lambda: system._served_version() > before, RECOVERY + 20, lambda: before)
    _check_answers(prober, store, freed)
    assert {worker: pid_of(store, worker) for worker in WORKERS} == pids, system.log_tail(60)
    with store.read() as conn:
        (note,) = [
            beat.note for beat in heartbeats.read_heartbeats(conn) if beat.name == "supervisor"
        ]
    assert note == "ok"
    assert "Traceback" not in system.log_tail(10**6)


def _keep_full(system: SubprocessSystem, disk: Path) -> None:
    """Fill the disk and keep it full for `PERIOD`. Meanwhile /readyz, `status` and the doctor must say it."""
    end = time.monotonic() + PERIOD
    fill(disk)
    time.sleep(2)
    fill(disk)
    state = readiness(system)
    assert not state["ready"]
    assert any("disk" in reason and "full" in reason for reason in state["reasons"]), state
    home = ("--home", str(system.config.home_dir))
    status = json.loads(run("status", *home, "--json").stdout)
    assert "a disk is full" in status["troubles"]
    done = run("doctor", "--troubles", *home)
    assert done.returncode == 1
    assert "a disk is full" in done.stdout
    while time.monotonic() < end:
        fill(disk)
        time.sleep(0.2)
    free(disk)


def _check_answers(prober: Prober, store: Store, freed: float) -> None:
    """Every request got a reply or a clear 503, and each finished reply is stored."""
    statuses = {status for _, status, _, _ in prober.answers}
    assert statuses == {200, 503}, [
        answer for answer in prober.answers if answer[1] not in (200, 503)
    ][:3]
    for _, status, headers, body in prober.answers:
        if status == 503:
            assert int(headers["Retry-After"]) >= 1
            assert json.loads(body)["error"]["code"] == "disk_full", body
    late = [
        began - freed for began, status, _, _ in prober.answers if status == 503 and began > freed
    ]
    assert not late or max(late) < RECOVERY
    assert prober.longest < 30
    ids = {id_ for _, status, _, body in prober.answers if (id_ := finished_id(status, body))}
    with store.read() as conn:
        found = exchanges.get_readable(conn, sorted(ids))
        assert found.keys() == ids
        running = [
            e.request.id
            for e in found.values()
            if e.reply is None or e.reply.status is not ExchangeStatus.DONE
        ]
    assert not running


def _wait_for(condition: Any, seconds: float, state: Any) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, state()
        time.sleep(0.1)
