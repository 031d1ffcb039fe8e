"""What users feel of a swap: gaps between tokens while 16 clients stream and the trainer steps.

    python benchmarks/swaps.py [--pairs 5] [--swaps 20] [--clients 16]

Each pair runs the real system (`openclaw-rl up` on a home of its own, the starter, simulated users) twice: once every
step is published and swapped in, once the gate refuses every candidate. Both arms so have the same trainer load: claim,
step, write, sync, gate, commit. Compared are the gaps between two tokens of a reply, as seen by the clients.
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openclaw_rl.store import events, heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from servers import RUNS
from streams import Heard, user

RESULTS = Path(__file__).parent / "results" / "swaps.md"
P999_RATIO, MAX_MORE = 1.5, 0.250  # the bounds; the second in seconds
WARM_UP_STEPS = 3
ARM_WITHIN = 300.0  # seconds
# Small steps keep the policy, and so the length of its replies, the same in all arms. No turn grows too old.
SETTINGS = {
    "train.batch.min_turns": 8,
    "train.batch.max_turns": 8,
    "train.optimizer.learning_rate": 1e-6,
    "train.safety.max_staleness": 100_000,
    "run.log_level": "warning",
}
REFUSE_ALL = {"train.safety.gate_grad_norm": 1e-12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run. Times in seconds."""

    swaps: int  # versions published while it was measured
    seen: int  # versions that answered in it
    steps: int
    seconds: float
    trainer_cpu: float  # of the trainer's process, per second of wall time
    gaps: np.ndarray
    replies: int
    failures: list[str]

    def ms(self, percentile: float) -> float:
        return float(np.percentile(self.gaps, percentile)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--swaps", type=int, default=20, help="steps of each arm; published in one, refused in the other"
    )
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    pairs: list[tuple[Arm, Arm]] = []
    for number in range(options.pairs):
        order = (True, False) if number % 2 == 0 else (False, True)  # who goes first alternates
        arms = {swapping: run_arm(swapping, options.swaps, options.clients) for swapping in order}
        pairs.append((arms[True], arms[False]))
        print(_row(number + 1, *pairs[-1]), file=sys.stderr, flush=True)
    text, good = report(pairs, options.clients)
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    sys.exit(0 if good else 1)


def run_arm(swapping: bool, steps: int, clients: int) -> Arm:
    """Start a system, let the clients talk until the trainer has taken so many steps, and measure meanwhile."""
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="s-", dir=RUNS) as home:
        config = scratch_config(Path(home), SETTINGS | ({} if swapping else REFUSE_ALL))
        with SubprocessSystem(config) as system:
            store = Store.open(config.store_path, create=False)
            try:
                return asyncio.run(_measure(system, store, swapping, steps, clients))
            finally:
                store.close()


async def _measure(system: SubprocessSystem, store: Store, swapping: bool, steps: int, clients: int) -> Arm:
    heard, stop = Heard(), asyncio.Event()
    crowd = [
        asyncio.create_task(user(system.config.serve.port, system.api_key, seed, heard, stop))
        for seed in range(clients)
    ]
    try:
        first = await _steps_reach(store, WARM_UP_STEPS, crowd)
        pid = await asyncio.to_thread(_trainer, store)
        gc.collect()
        gc.freeze()
        gc.disable()  # a pause of the client would count as the system's
        heard.listening, start, busy = True, time.perf_counter(), _cpu_seconds(pid)
        last = await _steps_reach(store, first + steps, crowd)
        seconds = time.perf_counter() - start
        heard.listening = False
        busy = _cpu_seconds(pid) - busy
    finally:
        gc.enable()
        stop.set()
        await asyncio.gather(*crowd)
    return Arm(
        swaps=last - first if swapping else 0,
        seen=len(heard.versions),
        steps=last - first,
        seconds=seconds,
        trainer_cpu=busy / seconds,
        gaps=np.array(heard.gaps),
        replies=heard.replies,
        failures=heard.failures,
    )


async def _steps_reach(store: Store, count: int, crowd: list[asyncio.Task[None]]) -> int:
    until = time.monotonic() + ARM_WITHIN
    while time.monotonic() < until:
        for task in crowd:
            if task.done():
                task.result()
        if (done := await asyncio.to_thread(_steps, store)) >= count:
            return done
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the trainer did not reach {count} steps within {ARM_WITHIN:g} s; see `up.log`")


def _steps(store: Store) -> int:
    with store.read() as conn:
        return len(events.read_after(conn, 0, 1_000_000, kinds=["policy.live", "policy.rejected"]))


def _trainer(store: Store) -> int:
    with store.read() as conn:
        return next(beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == "train")


def _cpu_seconds(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return float("nan")  # no /proc (macOS)
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _row(number: int, a: Arm, b: Arm) -> str:
    cells = [str(number)]
    for arm in (a, b):
        cells += [f"{arm.steps} / {arm.swaps} / {arm.seen}", f"{arm.seconds:.0f} s, {arm.trainer_cpu:.2f}"]
        cells += [f"{len(arm.gaps)}", *(f"{arm.ms(p):.1f}" for p in (50, 99, 99.9, 100))]
    cells += [f"{a.ms(99.9) / b.ms(99.9):.2f}", f"{a.ms(100) - b.ms(100):+.0f}"]
    cells += [str(len(a.failures) + len(b.failures))]
    return f"| {' | '.join(cells)} |"


def report(pairs: list[tuple[Arm, Arm]], clients: int) -> tuple[str, bool]:
    """The page, and whether the bounds hold."""
    ratio = statistics.median(a.ms(99.9) / b.ms(99.9) for a, b in pairs)
    more = statistics.median(a.ms(100) - b.ms(100) for a, b in pairs)
    failures = [failure for pair in pairs for arm in pair for failure in arm.failures]
    good = ratio <= P999_RATIO and more <= MAX_MORE * 1e3 and not failures
    head = ["steps / swaps / versions seen", "time, trainer CPU", "gaps", "p50", "p99", "p99.9", "max"]
    columns = ["pair", *(f"swaps: {h}" for h in head), *(f"none: {h}" for h in head)]
    columns += ["p99.9 ratio", "max diff ms", "errors"]
    lines = [
        "# Token gaps during hot swaps",
        "",
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores. `python benchmarks/swaps.py`: {clients} clients stream "
        "from `openclaw-rl up` (starter policy) while the trainer takes a step whenever it has a batch. A pair has one "
        "run in which every step is swapped in, and one in which the gate refuses every candidate, so that the trainer "
        "does the same work. Gaps are milliseconds between two tokens of one reply at the client; clients, engine, "
        "gateway and trainer share the machine's cores.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(_row(number, a, b) for number, (a, b) in enumerate(pairs, 1)),
        "",
        f"Median of {len(pairs)} alternated pairs: p99.9 {ratio:.2f} times (bound {P999_RATIO:g}), longest gap "
        f"{more:+.0f} ms (bound {MAX_MORE * 1e3:+.0f} ms), {len(failures)} errors: "
        f"**{'holds' if good else 'DOES NOT HOLD'}**.",
        *(f"- {failure}" for failure in failures[:10]),
    ]
    return "\n".join(lines) + "\n", good


if __name__ == "__main__":
    main()
