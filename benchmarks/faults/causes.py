"""Causes of faults. Each is an async context manager: the cause begins at entry and ends at exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.client_log import Allowed, ClientLog, DamagedVersion
from benchmarks.faults.environment_load import EnvironmentLoad
from benchmarks.faults.live_system import FaultFinding, LiveSystem, wait_until
from benchmarks.faults.small_disk import SmallDisk
from benchmarks.flaky_proxy import FlakyProxy
from benchmarks.skyrl_server import SkyrlServer
from sqlalchemy import select, update

from openclaw_rl.store import schema
from openclaw_rl.store.lineage import policies

# Seconds.
RESTART_WITHIN = 60.0
SERVING_PROCESSES = ("engine", "gateway", "supervisor")


@dataclass(slots=True, kw_only=True)
class FaultScene:
    """What a cause works on."""

    live: LiveSystem
    log: ClientLog
    rng: random.Random
    disk: SmallDisk | None = None  # the filesystem of the home, if it has one of its own
    version_disk: SmallDisk | None = None  # that of the policy versions
    clock_file: Path | None = None  # the offset that libfaketime reads
    environment: EnvironmentLoad | None = None  # the runs of environments
    server: SkyrlServer | None = None
    proxy: FlakyProxy | None = None  # in front of the server
    killed: set[int] = field(default_factory=set)

    async def kill(self, process: str) -> None:
        pid = await self.live.kill(process)
        if pid is not None:
            self.killed.add(pid)

    async def wait_restarted(self, *workers: str) -> None:
        """Wait until a new process of each of the workers has sent a heartbeat."""
        await wait_until(
            lambda: all(self.live.pid_of(w) not in self.killed for w in workers), RESTART_WITHIN
        )


Cause = Callable[[FaultScene], AbstractAsyncContextManager[None]]
Moment = Callable[[FaultScene], Awaitable[list[str]]]
"""Waits for the moment at which a fault is caused, or looks after it. Returns what was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault to cause. `name`: its row in the table."""

    name: str
    cause: Cause
    allows: Allowed = "nothing"
    seconds: float = 0.0  # how long the cause lasts; 0: it ends as soon as it began
    moment: Moment | None = None  # None: any
    # What is checked when all workers run again, besides the invariants.
    after: Moment | None = None
    must_report: bool = False  # /readyz or `status` must name it while it lasts
    must_learn: bool = False  # a new version must follow its end
    starts_trainer: bool = False  # a trainer starts at its end: it loads torch and the model, after all users' requests


def allowed_answers(process: str) -> Allowed:
    """Return which answers a fault of this process may cause."""
    return "errors" if process in SERVING_PROCESSES else "nothing"


def kill_process(process: str) -> Cause:
    """SIGKILL at a random moment."""

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        await scene.kill(process)
        yield

    return cause


def freeze_process(process: str) -> Cause:
    """SIGSTOP, and SIGCONT at the end if the process still exists."""

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        pid = await scene.live.send_signal(process, signal.SIGSTOP)
        try:
            yield
        finally:
            if pid is not None and pid == scene.live.pid_of(process):
                await scene.live.send_signal(process, signal.SIGCONT)

    return cause


def hang_process(worker: str, within: float, *, in_transaction: bool = False) -> Cause:
    """SIGSTOP without an end: the supervisor has to notice it, and to start another process `within` seconds.

    `in_transaction`: at a moment at which the process holds the store's write lock.
    """

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        stop = (
            _stop_in_transaction(scene, worker)
            if in_transaction
            else scene.live.send_signal(worker, signal.SIGSTOP)
        )
        if (pid := await stop) is None:
            raise FaultFinding("it was not running, or it wrote nothing")
        try:
            noticed = await wait_until(lambda: scene.live.pid_of(worker) != pid, within)
            if not noticed:
                raise FaultFinding(f"it hung and was not noticed within {within:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        yield

    return cause


async def _stop_in_transaction(scene: FaultScene, worker: str) -> int | None:
    """Stop a process that holds the write lock; return its id, or None if it never held it when it was stopped."""
    path = scene.live.config.store_path
    end = time.monotonic() + RESTART_WITHIN
    while time.monotonic() < end:
        pid = await scene.live.send_signal(worker, signal.SIGSTOP)
        await asyncio.sleep(0.01)
        if _is_locked(path):
            # Another process does not hold it for so long.
            await asyncio.sleep(0.5)
            if _is_locked(path):
                return pid
        await scene.live.send_signal(worker, signal.SIGCONT)
        await asyncio.sleep(scene.rng.uniform(0.001, 0.02))
    return None


def _is_locked(store: Path) -> bool:
    with contextlib.closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


@contextlib.asynccontextmanager
async def full_disk(scene: FaultScene) -> AsyncIterator[None]:
    """No block is left on the filesystem of the home."""
    assert scene.disk is not None
    scene.disk.remove_room()
    try:
        yield
    finally:
        scene.disk.restore_room()


@contextlib.asynccontextmanager
async def no_room_for_versions(scene: FaultScene) -> AsyncIterator[None]:
    """No block is left on the filesystem of the policy versions; the store has room."""
    assert scene.version_disk is not None
    scene.version_disk.remove_room()
    try:
        yield
    finally:
        scene.version_disk.restore_room()


@contextlib.asynccontextmanager
async def damaged_head(scene: FaultScene) -> AsyncIterator[None]:
    """One bit of a random file of the head is wrong, and engine and trainer are killed, so that they read it again."""
    live = scene.live
    if not await wait_until(lambda: live.head_version() > 0, RESTART_WITHIN):
        raise FaultFinding("nothing was learned yet, so there is no file to damage")
    with live.store.read() as conn:
        head = policies.head(conn)
    assert head.path is not None
    files = sorted(
        f for f in (live.config.home_dir / head.path).iterdir() if f.is_file() and f.stat().st_size
    )
    file = scene.rng.choice(files)
    good = file.read_bytes()
    bad = bytearray(good)
    at = scene.rng.randrange(len(good))
    bad[at] ^= 1 << scene.rng.randrange(8)
    file.write_bytes(bad)
    try:
        await scene.kill("train")
        await scene.kill("engine")
        await scene.wait_restarted("train", "engine")
        since = time.time()
        yield
    finally:
        if file.parent.exists():
            file.write_bytes(good)
        else:
            # The damaged version was removed.
            since = float("inf")
    scene.log.damaged_versions.append(
        DamagedVersion(version=head.version, since=since, until=time.time())
    )


@contextlib.asynccontextmanager
async def damaged_row(scene: FaultScene) -> AsyncIterator[None]:
    """A row of a turn that was not trained on yet is damaged: bad JSON, or log-probabilities that are one short."""
    table, column, value = scene.rng.choice(
        (
            (schema.replies, "logprobs", b"\0\0\0\0"),
            (schema.replies, "message", b'{"role": "assistant", '),
            (schema.bodies, "messages", b"[{"),
        )
    )
    newest = (
        select(schema.turns.c.seq, schema.turns.c.id)
        .join(schema.exchanges, schema.exchanges.c.seq == schema.turns.c.seq)
        .where(
            schema.turns.c.uses == 0,
            schema.exchanges.c.status == "done",
            schema.turns.c.kind == "main",
        )
        .order_by(schema.turns.c.seq.desc())
        .limit(1)
    )
    with scene.live.store.write() as conn:
        row = conn.execute(newest).one()
        scene.log.damaged_rows.add(row.id)
        conn.execute(update(table).where(table.c.seq == row.seq).values({column: value}))
    yield


def broken_plugin(file: Path, worker: str, code: str) -> Cause:
    """The plug-in of a worker is replaced by `code`, and the worker is killed, so that it loads it."""

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        good = file.read_text(encoding="utf-8")
        file.write_text(code, encoding="utf-8")
        try:
            await scene.kill(worker)
            yield
        finally:
            file.write_text(good, encoding="utf-8")

    return cause


def shifted_clock(offset: str, *, kill: str | None = None) -> Cause:
    """The clock of all processes is shifted by e.g. "+3h". `kill`: a worker that is killed while it is."""

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        assert scene.clock_file is not None
        scene.clock_file.write_text(offset)
        try:
            yield
            if kill is not None:
                await scene.kill(kill)
        finally:
            scene.clock_file.write_text("+0")

    return cause
