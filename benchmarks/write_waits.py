"""How long writers of one store wait for the write lock: with the queue of `WriteQueue`, and with polling alone.

    python -m benchmarks.write_waits [--writers 4] [--rounds 3] [--seconds 10] [--calls 16]

Each writer is a process that commits `--calls` requests at a time, again and again without a pause. Rounds with and
without the queue alternate; without it, the writers see a file system without locks. Prints the waits in milliseconds
and their quotients, and the commits of the writer that had the fewest. Ends with 1 if the 99th percentile with the
queue is not below that without it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
from benchmarks.home_turns import TurnWriter
from benchmarks.provenance import measured_at

from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.writing import write_queue
from openclaw_rl.types import Request

_READY = "ready\n"
_BEGIN = "begin\n"
_END_SECONDS = 60.0
_PERCENTILES = (50, 99, 100)


@dataclass(slots=True, kw_only=True)
class Arm:
    """The rounds with the queue, or without it. `waits`: milliseconds; `commits`: of each writer in each round."""

    waits: list[float] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)

    def percentiles(self) -> list[float]:
        """Return the percentiles of `_PERCENTILES`."""
        return [float(value) for value in np.percentile(self.waits, _PERCENTILES)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--calls", type=int, default=16)
    parser.add_argument("--writer-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--polls", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.writer_of is not None:
        with _without_locks() if args.polls else contextlib.nullcontext():
            waits = write_until_end(args.writer_of, args.seconds, args.calls)
        print(json.dumps(waits))
        return 0
    queued = Arm()
    polled = Arm()
    for _ in range(args.rounds):
        for arm, polls in ((queued, False), (polled, True)):
            for waits in run_writers(args.writers, args.seconds, args.calls, polls=polls):
                arm.waits += waits
                arm.commits.append(len(waits))
    print(describe(queued, polled, args.writers, args.calls))
    return int(queued.percentiles()[1] >= polled.percentiles()[1])


def run_writers(
    writers: int, seconds: float, calls: int, *, polls: bool
) -> Iterator[Sequence[float]]:
    """Let processes write to a new store at the same time. Yield the waits of each, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        Store.open(path).close()
        command = [sys.executable, "-m", "benchmarks.write_waits", "--writer-of", str(path)]
        command += ["--seconds", str(seconds), "--calls", str(calls)]
        command += ["--polls"] if polls else []
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(writers)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == _READY
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(_BEGIN)
            process.stdin.flush()
        for process in processes:
            output, _ = process.communicate(timeout=seconds + _END_SECONDS)
            if process.returncode:
                raise SystemExit(f"a writer ended with {process.returncode}")
            yield json.loads(output)


def write_until_end(path: Path, seconds: float, calls: int) -> list[float]:
    """Write for so many seconds, once all writers are ready. Return the wait before each transaction, in ms."""
    waits = []
    with Store.open(path, create=False) as store:
        requests = _make_requests(store, calls)
        sys.stdout.write(_READY)
        sys.stdout.flush()
        assert sys.stdin.readline() == _BEGIN
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            batch = next(requests)
            asked = time.perf_counter()
            with store.write() as conn:
                waits.append(1000 * (time.perf_counter() - asked))
                exchanges.admit(conn, batch)
    return waits


def _make_requests(store: Store, calls: int) -> Iterator[Sequence[Request]]:
    """Yield requests with ids of their own, made beforehand but for these."""
    # Each process has ids of its own.
    first = os.getpid() << 40
    writer = TurnWriter(store=store, scope="waits", identity="waits", number=first)
    history = [{"role": "user", "content": writer.text(2000)}]
    marks = writer.mark(history, ())
    while True:
        yield [
            writer.request(history, marks, agent="main", version=0, at=time.time())
            for _ in range(calls)
        ]


@contextlib.contextmanager
def _without_locks() -> Iterator[None]:
    """Let locks on files fail as on a file system that has none."""

    def refuse(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with mock.patch.object(write_queue.fcntl, "flock", refuse):
        yield


def describe(queued: Arm, polled: Arm, writers: int, calls: int) -> str:
    """Return the table of both arms as text."""
    lines = [
        f"Waits for the write lock in ms, {writers} writers, {calls} requests a commit ({measured_at()})",
        "",
        "| | queue | polling | polling / queue |",
        "|---|---|---|---|",
    ]
    for share, first, second in zip(
        _PERCENTILES, queued.percentiles(), polled.percentiles(), strict=True
    ):
        name = "longest" if share == 100 else f"{share}%"
        lines.append(f"| {name} | {first:.1f} | {second:.1f} | {second / first:.2f} |")
    for name, count in (("commits in all", sum), ("commits of the slowest writer", min)):
        first = count(queued.commits)
        second = count(polled.commits)
        lines.append(f"| {name} | {first} | {second} | {second / first:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
