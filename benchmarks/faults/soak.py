"""A long run without faults: memory, descriptors and disk, against bounds that are set beforehand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.client_log import open_log
from benchmarks.faults.clients import USUAL_LOAD, crowd
from benchmarks.faults.live_system import PROCESSES, LiveSystem
from benchmarks.long_prompts import resident_mb

from openclaw_rl.settings.load import Config
from openclaw_rl.status.report import folder_size

# Full before growth is measured: a cache that fills is no leak.
SETTINGS = {"engine.prefix_cache_tokens": 4096}
SAMPLE_SECONDS = 5.0
# Of the time; growth is measured from there on.
WARM_UP_SHARE = 0.25
# Of each process.
MEMORY_GROWTH_MB = 64.0
# Of each process.
DESCRIPTOR_GROWTH = 16
# Store and write-ahead log.
STORE_KB_PER_REPLY = 24.0
# Of all version folders, however many versions were made.
VERSIONS_MB = 512.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSample:
    """The size of everything at one time."""

    at: float  # seconds since the begin
    memory: dict[str, float]  # process -> resident MB
    descriptors: dict[str, int]
    store_kb: float
    versions_mb: float
    replies: int
    head: int


def take_sample(live: LiveSystem, at: float, replies: int) -> SoakSample:
    pids = {name: pid for name in PROCESSES if (pid := live.pid_of(name)) is not None}
    home = live.config.home_dir
    return SoakSample(
        at=at,
        memory={name: resident_mb(pid) for name, pid in pids.items()},
        descriptors={
            name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()
        },
        store_kb=sum(file.stat().st_size for file in home.glob("store.db*")) / 1e3,
        versions_mb=folder_size(live.config.policies_dir) / 1e6,
        replies=replies,
        head=live.head_version(),
    )


def find_violations(samples: list[SoakSample]) -> list[str]:
    """Return which bounds the samples break."""
    warm = samples[int(len(samples) * WARM_UP_SHARE)]
    last = samples[-1]
    found = []
    for name in PROCESSES:
        grown = last.memory.get(name, 0) - warm.memory.get(name, 0)
        if grown > MEMORY_GROWTH_MB:
            found.append(
                f"{name} grew by {grown:.0f} MB instead of at most {MEMORY_GROWTH_MB:g} MB"
            )
        opened = last.descriptors.get(name, 0) - warm.descriptors.get(name, 0)
        if opened > DESCRIPTOR_GROWTH:
            found.append(
                f"{name} opened {opened} descriptors instead of at most {DESCRIPTOR_GROWTH}"
            )
    per_reply = (last.store_kb - warm.store_kb) / max(last.replies - warm.replies, 1)
    if per_reply > STORE_KB_PER_REPLY:
        found.append(
            f"the store grew by {per_reply:.1f} kB a reply instead of at most {STORE_KB_PER_REPLY:g} kB"
        )
    if last.versions_mb > VERSIONS_MB:
        found.append(
            f"{last.head} versions take {last.versions_mb:.0f} MB instead of at most {VERSIONS_MB:g} MB"
        )
    if last.head <= warm.head:
        found.append("no version was published after the warm-up")
    return found


async def run_soak(
    config: Config, minutes: float, out: Path, seen: Callable[[SoakSample], None]
) -> None:
    """Run a system under load for some minutes. `seen` is called with a sample of its size every few seconds."""
    log = open_log(out / "clients.jsonl")
    load = USUAL_LOAD
    live = await asyncio.to_thread(LiveSystem, config)
    try:
        async with crowd(
            live.system, load.users, log, pause=load.pause, probe_pause=load.probe_pause
        ):
            began = time.monotonic()
            while (passed := time.monotonic() - began) < minutes * 60:
                await asyncio.sleep(SAMPLE_SECONDS)
                seen(await asyncio.to_thread(take_sample, live, passed, len(log.finished)))
    finally:
        await asyncio.to_thread(live.close)
