"""Token gaps at clients while versions are swapped, while the trainer only trains, and without training.

    python -m benchmarks.swaps [--rounds 5] [--swaps 20] [--clients 16]

Each round runs the real system (the starter, simulated users) three times, each on a home of its own in which three
versions have been published: once every step is published and swapped in; once the gate refuses every candidate, so
that the trainer does the same work (claim, step, write, sync, gate, commit) but nothing is swapped; once only engine
and gateway run. Compared are the gaps between two tokens of a reply, as seen by the clients.
Writes benchmarks/results/swaps.md; ends with 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.provenance import measured_at
from benchmarks.servers import RUNS
from benchmarks.streams import Heard, user

from openclaw_rl.settings.load import Config
from openclaw_rl.store import events, heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

RESULTS = Path(__file__).parent / "results" / "swaps.md"
# Bounds of swaps against none; the last in seconds.
P999_RATIO = 1.5
MEDIAN_RATIO = 1.2
MAX_MORE = 0.250
# Versions.
PUBLISHED_BEFORE = 3
WARM_UP_STEPS = 3
SECONDS_WITHOUT_TRAINING = 8.0
ARM_WITHIN = 300.0  # seconds
# Small steps keep the policy, and so the length of its replies, the same in all runs. No turn grows too old.
SETTINGS = {
    "train.batch.min_turns": 8,
    "train.batch.max_turns": 8,
    "train.optimizer.learning_rate": 1e-6,
    "train.safety.max_staleness": 100_000,
    "run.log_level": "warning",
}
REFUSE_ALL = {"train.safety.gate_grad_norm": 1e-12}
ARMS = {"swaps": SETTINGS, "no swaps": SETTINGS | REFUSE_ALL, "no training": SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run. Times in seconds."""

    versions: int  # that answered while it was measured
    steps: int
    seconds: float
    trainer_cpu: float  # of the trainer's process, per second of wall time
    gaps: np.ndarray
    failures: list[str]

    def ms(self, percentile: float) -> float:
        return float(np.percentile(self.gaps, percentile)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--swaps",
        type=int,
        default=20,
        help="steps of a run; published in one, refused in the other",
    )
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    rounds: list[dict[str, Arm]] = []
    for number in range(options.rounds):
        order = list(ARMS) if number % 2 == 0 else list(reversed(ARMS))
        arms = {name: run_arm(name, options.swaps, options.clients) for name in order}
        rounds.append(arms)
        print(*_rows(number + 1, arms), sep="\n", file=sys.stderr, flush=True)
    text, good = report(rounds, options.clients)
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    sys.exit(0 if good else 1)


def run_arm(name: str, steps: int, clients: int) -> Arm:
    """Publish some versions, start a system with the arm's settings, and measure while the clients talk."""
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="s-", dir=RUNS) as folder:
        home = Path(folder)
        asyncio.run(_publish_versions(scratch_config(home, SETTINGS), clients))
        return asyncio.run(
            _measure(
                scratch_config(home, ARMS[name]), steps if name != "no training" else 0, clients
            )
        )


async def _publish_versions(config: Config, clients: int) -> None:
    with SubprocessSystem(config) as system, Store.open(config.store_path, create=False) as store:
        heard = Heard()
        stop = asyncio.Event()
        crowd = _start_clients(system, clients, heard, stop)
        try:
            await _steps_reach(store, PUBLISHED_BEFORE, crowd)
        finally:
            stop.set()
            await asyncio.gather(*crowd)


async def _measure(config: Config, steps: int, clients: int) -> Arm:
    """Measure until the trainer has taken so many steps; 0: without a trainer, for a fixed time."""
    command = "up" if steps else "serve"
    with (
        SubprocessSystem(config, command=command) as system,  # type: ignore[arg-type]
        Store.open(config.store_path, create=False) as store,
    ):
        heard = Heard()
        stop = asyncio.Event()
        crowd = _start_clients(system, clients, heard, stop)
        try:
            if steps:
                first = await _steps_reach(store, _steps(store) + WARM_UP_STEPS, crowd)
                pid = trainer_pid(store)
            else:
                first = 0
                pid = os.getpid()
                await asyncio.sleep(1.0)
            gc.collect()
            gc.freeze()
            # A pause of the client would count as the system's.
            gc.disable()
            heard.listening = True
            start = time.perf_counter()
            busy = cpu_seconds(pid)
            last = await _steps_reach(store, first + steps, crowd) if steps else 0
            await asyncio.sleep(0 if steps else SECONDS_WITHOUT_TRAINING)
            seconds = time.perf_counter() - start
            heard.listening = False
            busy = cpu_seconds(pid) - busy
        finally:
            gc.enable()
            stop.set()
            await asyncio.gather(*crowd)
        return Arm(
            versions=len(heard.versions),
            steps=last - first,
            seconds=seconds,
            trainer_cpu=busy / seconds if steps else 0.0,
            gaps=np.array(heard.gaps),
            failures=heard.failures,
        )


def _start_clients(
    system: SubprocessSystem, clients: int, heard: Heard, stop: asyncio.Event
) -> list[asyncio.Task[None]]:
    port = system.config.serve.port
    key = system.api_key
    return [asyncio.create_task(user(port, key, seed, heard, stop)) for seed in range(clients)]


async def _steps_reach(store: Store, count: int, crowd: Sequence[asyncio.Task[None]]) -> int:
    until = time.monotonic() + ARM_WITHIN
    while time.monotonic() < until:
        for task in crowd:
            if task.done():
                task.result()
        if (done := await asyncio.to_thread(_steps, store)) >= count:
            return done
        await asyncio.sleep(0.05)
    raise RuntimeError(
        f"the trainer did not reach {count} steps within {ARM_WITHIN:g} s; see `up.log`"
    )


def _steps(store: Store) -> int:
    with store.read() as conn:
        return len(events.read_after(conn, 0, 1_000_000, kinds=["policy.live", "policy.rejected"]))


def trainer_pid(store: Store) -> int:
    """Return the process id of the trainer."""
    with store.read() as conn:
        return next(beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == "train")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        # No /proc (macOS).
        return float("nan")
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rows(number: int, arms: dict[str, Arm]) -> list[str]:
    rows = []
    for name in ARMS:
        arm = arms[name]
        cells = [
            str(number),
            name,
            str(arm.steps),
            str(arm.versions),
            f"{arm.seconds:.0f}",
            f"{arm.trainer_cpu:.2f}",
        ]
        cells += [
            f"{len(arm.gaps)}",
            *(f"{arm.ms(p):.1f}" for p in (50, 99, 99.9, 100)),
            str(len(arm.failures)),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _ratios(rounds: Sequence[dict[str, Arm]], other: str, percentile: float) -> list[float]:
    return [arms["swaps"].ms(percentile) / arms[other].ms(percentile) for arms in rounds]


def _ratio_row(rounds: Sequence[dict[str, Arm]], other: str, percentile: float) -> str:
    ratios = _ratios(rounds, other, percentile)
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"| p{percentile:g} | {other} | {statistics.median(ratios):.2f} | {each} |"


def report(rounds: Sequence[dict[str, Arm]], clients: int) -> tuple[str, bool]:
    """The page, and whether the bounds hold."""
    more = statistics.median(arms["swaps"].ms(100) - arms["no swaps"].ms(100) for arms in rounds)
    failures = [failure for arms in rounds for arm in arms.values() for failure in arm.failures]
    p999 = _ratios(rounds, "no swaps", 99.9)
    median = _ratios(rounds, "no swaps", 50)
    holds = statistics.median(p999) <= P999_RATIO and statistics.median(median) <= MEDIAN_RATIO
    good = holds and more <= MAX_MORE * 1e3 and not failures
    columns = ["round", "run", "steps", "versions that answered", "s", "trainer CPU", "gaps"]
    columns += ["p50 ms", "p99 ms", "p99.9 ms", "max ms", "errors"]
    lines = [
        "# Token gaps during hot swaps",
        "",
        f"{measured_at()}, {os.cpu_count()} cores. `python -m benchmarks.swaps`: {clients} clients stream "
        "from the starter policy, of which three versions have been published before. `swaps`: each step of the "
        "trainer is swapped in. `no swaps`: the trainer does the same work, but the gate refuses every candidate. `no "
        "training`: only engine and gateway run. Gaps are milliseconds between two tokens of one reply at the client. "
        "Clients, engine, gateway and trainer share the machine's cores.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(row for number, arms in enumerate(rounds, 1) for row in _rows(number, arms)),
        "",
        "| gap | swaps compared with | ratio, median | ratio of each round |",
        "|---|---|---|---|",
        *(
            _ratio_row(rounds, other, p)
            for other in ("no swaps", "no training")
            for p in (50, 99, 99.9)
        ),
        "",
        f"Bounds, of swaps against no swaps: p99.9 at most {P999_RATIO:g} times in the median round "
        f"({sum(r > P999_RATIO for r in p999)} of {len(rounds)} rounds exceed it), p50 at most {MEDIAN_RATIO:g} times, "
        f"longest gap at most {MAX_MORE * 1e3:+.0f} ms (measured: {more:+.0f} ms), no errors: "
        f"**{'holds' if good else 'DOES NOT HOLD'}**.",
        *(f"- {failure}" for failure in failures[:10]),
    ]
    return "\n".join(lines) + "\n", good


if __name__ == "__main__":
    main()
