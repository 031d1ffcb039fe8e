"""Time to open a box, to run a command in it, and to close it: `python benchmarks/sandbox.py [--kind K] [--boxes N]`.

Prints medians and the slowest of N boxes, one after the other and then side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Sequence

from openclaw_rl.sandbox.box import BoxRoot
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.settings.load import from_flat


async def measure(step: Awaitable[object]) -> float:
    began = time.perf_counter()
    await step
    return 1000 * (time.perf_counter() - began)


async def measure_box(flat: dict[str, object]) -> tuple[float, float, float]:
    """Return milliseconds of open, of a command, and of close."""
    box = make_box(from_flat(flat).sandbox, BoxRoot())
    try:
        opened = await measure(box.open())
        await box.run("true")  # the first command reads the shell from the disk
        ran = await measure(box.run("true"))
    finally:
        closed = await measure(box.close())
    return opened, ran, closed


def print_row(name: str, rows: Sequence[tuple[float, float, float]]) -> None:
    columns = zip(("open", "command", "close"), zip(*rows, strict=True), strict=True)
    words = [f"{step} {statistics.median(values):6.1f} (slowest {max(values):6.1f})" for step, values in columns]
    print(f"{name:24} ms: {'   '.join(words)}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="bubblewrap")
    parser.add_argument("--image")
    parser.add_argument("--boxes", type=int, default=30)
    options = parser.parse_args()
    flat = {"sandbox.kind": options.kind} | ({"sandbox.image": options.image} if options.image else {})
    await measure_box(flat)
    print_row("one after the other", [await measure_box(flat) for _ in range(options.boxes)])
    began = time.perf_counter()
    rows = await asyncio.gather(*(measure_box(flat) for _ in range(options.boxes)))
    print_row(f"{options.boxes} side by side", rows)
    print(f"{options.boxes} boxes side by side, opened, used and closed: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
