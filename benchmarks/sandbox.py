"""Time to open a box, to run a command in it, and to close it: `python benchmarks/sandbox.py [--kind K] [--boxes N]`.

Prints medians and the slowest of N boxes, one after the other and then side by side. Ends with 1 if the median time to
open a box of bubblewrap, one after the other, is above the bound. Without bubblewrap it prints why it measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Sequence

from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import BoxRoot
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.sandbox.bubblewrap_args import find_bubblewrap
from openclaw_rl.settings.load import from_flat

# Milliseconds.
BOUND = 30.0


async def measure(step: Awaitable[object]) -> float:
    began = time.perf_counter()
    await step
    return 1000 * (time.perf_counter() - began)


async def measure_box(flat: dict[str, object]) -> tuple[float, float, float]:
    """Return milliseconds of open, of a command, and of close."""
    box = make_box(from_flat(flat).sandbox, BoxRoot())
    try:
        opened = await measure(box.open())
        # The first command reads the shell from the disk.
        await box.run("true")
        ran = await measure(box.run("true"))
    finally:
        closed = await measure(box.close())
    return opened, ran, closed


def print_row(name: str, rows: Sequence[tuple[float, float, float]]) -> None:
    columns = zip(("open", "command", "close"), zip(*rows, strict=True), strict=True)
    words = [
        f"{step} {statistics.median(values):6.1f} (slowest {max(values):6.1f})"
        for step, values in columns
    ]
    print(f"{name:24} ms: {'   '.join(words)}")


async def measure_all(flat: dict[str, object], count: int) -> float:
    """Print the table. Return the median milliseconds to open one box after the other."""
    await measure_box(flat)
    rows = [await measure_box(flat) for _ in range(count)]
    print_row("one after the other", rows)
    began = time.perf_counter()
    print_row(
        f"{count} side by side", await asyncio.gather(*(measure_box(flat) for _ in range(count)))
    )
    print(
        f"{count} boxes side by side, opened, used and closed: {time.perf_counter() - began:.2f} s"
    )
    return statistics.median(opened for opened, _, _ in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="bubblewrap")
    parser.add_argument("--image")
    parser.add_argument("--boxes", type=int, default=30)
    parser.add_argument("--bound", type=float, default=BOUND, help="milliseconds")
    options = parser.parse_args()
    if options.kind == "bubblewrap":
        try:
            find_bubblewrap()
        except SandboxError as error:
            print(f"boxes are not measured: {error}")
            return
    flat = {"sandbox.kind": options.kind} | (
        {"sandbox.image": options.image} if options.image else {}
    )
    opened = asyncio.run(measure_all(flat, options.boxes))
    if options.kind == "bubblewrap":
        print(f"a box opens within {opened:.1f} ms (bound {options.bound:g} ms)")
        sys.exit(0 if opened <= options.bound else 1)


if __name__ == "__main__":
    main()
