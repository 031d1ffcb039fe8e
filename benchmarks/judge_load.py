"""What people notice while the judge reads states: the gaps between the tokens of their replies, with it and without.

    python -m benchmarks.judge_load [--model smollm2] [--clients 4] [--seconds 60] [--rounds 3]

Clients stream replies one after the other from an engine and its gateway. In turns, this process lets the engine read
labelled reactions all the time, as a judge does that never waits for a reaction, or does not. In the end nobody asks
for replies, and the processor time of a reading is measured. Writes benchmarks/results/judge_load.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from benchmarks.practice_load import no_garbage_collection
from benchmarks.provenance import write_result
from benchmarks.streams import Heard, user
from benchmarks.swaps import cpu_seconds

from openclaw_rl.engines import registry
from openclaw_rl.judge.head.base_states import BaseStates
from openclaw_rl.judge.head.labelled_reactions import load_reactions
from openclaw_rl.judge.head.records import HeadRecord
from openclaw_rl.judge.head.training import training_rows
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

RESULTS = Path(__file__).parent / "results" / "judge_load.md"
P99_RATIO = 1.1
"""Bound of the p99 of gaps with the judge against that without."""
WARM_UP_SECONDS = 10.0
TIMED_READINGS = 20


@dataclass(slots=True, kw_only=True)
class Window:
    """What clients saw for some time. `readings`: that ended meanwhile."""

    heard: Heard = field(default_factory=Heard)
    readings: int = 0

    def gap_ms(self, percentile: float) -> float:
        """Return a percentile of the gaps in milliseconds."""
        return float(np.percentile(self.heard.gaps, percentile)) * 1e3


class SideLoad(Protocol):
    """Work beside the clients, while `wanted` is set. `readings`: pieces of it that were done."""

    wanted: asyncio.Event
    readings: int


class Reader:
    """Reads records in turn while `wanted` is set."""

    def __init__(self, states: BaseStates, records: Sequence[HeadRecord]) -> None:
        self._states = states
        self._records = records
        self.wanted = asyncio.Event()
        self.readings = 0

    async def run(self) -> None:
        """Read until it is cancelled."""
        while True:
            await self.wanted.wait()
            await self._states.read(self._records[self.readings % len(self._records)])
            self.readings += 1


async def measure(options: argparse.Namespace, home: Path) -> tuple[list[dict[str, Window]], float]:
    """Return the windows of each round, and the median processor seconds of a reading."""
    config = scratch_config(
        home,
        {
            "model.path": options.model,
            "serve.sampling_override.max_tokens": 96,
            "run.log_level": "warning",
        },
    )
    records = [row.record for row in training_rows(load_reactions().reactions)]
    with (
        SubprocessSystem(config, command="serve") as system,
        Store.open(config.store_path, create=False) as store,
    ):
        states = BaseStates(
            registry.connect_engine(config), ModelFiles.from_config(config.model), own_engine=False
        )
        await states.wait_ready()
        reader = Reader(states, records)
        reading = asyncio.create_task(reader.run())
        stop = asyncio.Event()
        heard = Heard()
        crowd = [
            asyncio.create_task(user(config.serve.port, system.api_key, seed, heard, stop))
            for seed in range(options.clients)
        ]
        rounds: list[dict[str, Window]] = []
        try:
            await asyncio.sleep(WARM_UP_SECONDS)
            for number in range(options.rounds):
                names = ["without", "with"] if number % 2 == 0 else ["with", "without"]
                found: dict[str, Window] = {}
                for name in names:
                    window = await listen_window(
                        reader, heard, options.seconds, reads=name == "with"
                    )
                    found[name] = window
                    print(
                        f"round {number + 1}, {name} the judge: {describe(window)}", file=sys.stderr
                    )
                rounds.append(found)
        finally:
            stop.set()
            reader.wanted.clear()
            await asyncio.gather(*crowd)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        seconds = await _time_readings(states, records, _engine_pid(store))
        await states.close()
    return rounds, seconds


async def listen_window(reader: SideLoad, heard: Heard, seconds: float, *, reads: bool) -> Window:
    """Return what clients saw in some seconds, with or without the load beside them."""
    if reads:
        reader.wanted.set()
    else:
        reader.wanted.clear()
    await asyncio.sleep(1.0)
    before = reader.readings
    seen = len(heard.gaps), len(heard.first_tokens), heard.replies
    with no_garbage_collection():
        heard.listening = True
        await asyncio.sleep(seconds)
        heard.listening = False
    return Window(
        heard=Heard(
            gaps=heard.gaps[seen[0] :],
            first_tokens=heard.first_tokens[seen[1] :],
            replies=heard.replies - seen[2],
            failures=list(heard.failures),
        ),
        readings=reader.readings - before,
    )


def _engine_pid(store: Store) -> int:
    with store.read() as conn:
        return next(beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == "engine")


async def _time_readings(states: BaseStates, records: Sequence[HeadRecord], pid: int) -> float:
    """Return the median processor seconds that the engine spends on a reading; the shared beginning is in memory."""
    taken = []
    for record in records[: TIMED_READINGS + 1]:
        before = cpu_seconds(pid)
        await states.read(record)
        taken.append(cpu_seconds(pid) - before)
    return statistics.median(taken[1:])


def describe(window: Window) -> str:
    """Return a window in words."""
    heard = window.heard
    return (
        f"{len(heard.gaps)} gaps, p50 {window.gap_ms(50):.1f} ms, p99 {window.gap_ms(99):.1f} ms, "
        f"{window.readings} readings, {len(heard.failures)} errors"
    )


def report(
    rounds: Sequence[dict[str, Window]], seconds: float, options: argparse.Namespace
) -> tuple[str, bool]:
    """Return the page, and whether the bound holds."""
    ratios = [found["with"].gap_ms(99) / found["without"].gap_ms(99) for found in rounds]
    failures = [failure for found in rounds for failure in found["with"].heard.failures]
    readings = sum(found["with"].readings for found in rounds)
    ratio = statistics.median(ratios)
    good = ratio <= P99_RATIO and not failures and readings > 0
    lines = [
        "# The judge's reading beside replies",
        "",
        f"{os.cpu_count()} cores. `python -m benchmarks.judge_load --model {options.model}`: {options.clients} clients "
        f"stream replies of at most 96 tokens one after the other, {options.seconds:g} s a window. `with`: the engine "
        "is asked to read labelled reactions all the time. Gaps are milliseconds between two tokens of one reply at "
        "the client. Clients, engine and gateway share the cores.",
        "",
        "| round | judge | replies | gaps | gap p50 | p95 | p99 | first token p50 | readings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, found in enumerate(rounds, 1):
        for name in ("without", "with"):
            window = found[name]
            first = float(np.median(window.heard.first_tokens)) * 1e3
            gaps = " | ".join(f"{window.gap_ms(one):.1f}" for one in (50, 95, 99))
            lines.append(
                f"| {number} | {name} | {window.heard.replies} | {len(window.heard.gaps)} | {gaps} | {first:.0f} | "
                f"{window.readings} |"
            )
    each = ", ".join(f"{one:.2f}" for one in ratios)
    lines += [
        "",
        f"p99 of gaps, with against without: {ratio:.2f} in the median of the rounds ({each}); bound: {P99_RATIO:g}. "
        f"A reading takes {seconds:.2f} s of the engine's processor time in the median, with the shared beginning in "
        f"memory. Errors: {len(failures)}. **{'Holds' if good else 'DOES NOT HOLD'}**.",
    ]
    return "\n".join(lines), good


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_load", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openclaw-judge-") as home:
        rounds, seconds = asyncio.run(measure(options, Path(home)))
    text, good = report(rounds, seconds, options)
    print(text)
    write_result(RESULTS, text)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
