"""Server time and memory of the page's views on a large home, and when a browser paints them.

    python -m benchmarks.page_load HOME [--rounds 20] [--only PART]
    .page-venv/bin/python -m benchmarks.page_load HOME --paint          (in a real browser as well)

Builds the home with `benchmarks.page_home` if it does not exist. Each view is asked for through the page's own
application on a real socket. The first request of each counts as well, so that empty caches show. The time of the
processor depends less on what else the machine does; it includes that of the client. Exits 1 if a bound does not hold.
Writes benchmarks/results/page_load.md, if all views were asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aiohttp.test_utils import TestClient, TestServer
from benchmarks.page_home import build_home
from benchmarks.provenance import write_result

from openclaw_rl.common.gateway_address import page_key
from openclaw_rl.page.app import PageApp
from openclaw_rl.page.security import KEY_HEADER, cookie_name
from openclaw_rl.page.worker import CACHE_MIB, THREADS
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import page_access
from openclaw_rl.store.db import Store

MAX_MILLISECONDS = 150.0
MAX_MEGABYTES = 150.0
MAX_PAINT = 500.0
PAINTS = 3
RESULTS = Path(__file__).parent / "results" / "page_load.md"
FIRST_PAINT = """() => new Promise(done => {
    const observer = new PerformanceObserver(list => done(list.getEntries()[0].startTime));
    observer.observe({ type: "paint", buffered: true });
})"""
# Of the home with 100,000 turns. Each view has a line here.
ADDRESSES = (
    "/ui/now",
    "/ui/conversations",
    "/ui/conversations?before=50000",
    "/ui/conversations?verdict=bad",
    "/ui/conversations?verdict=waiting",
    "/ui/conversations?why=greedy",
    "/ui/conversations?why=top_p",
    "/ui/conversations?agent=nobody",
    "/ui/conversations?agent=support&user=ada&verdict=good",
    "/ui/conversations?day=2026-03-01",
    "/ui/conversations?q=owls",
    "/ui/conversations?q=unheard",
    "/ui/conversations/chatcmpl-00000000000000000000c351",
    "/ui/turns/chatcmpl-00000000000000000000c351",
    "/ui/learned",
    "/ui/learned/00000010",
    "/ui/not-understood",
    "/ui/versions",
    "/ui/versions/12",
    "/ui/versions/acts",
    "/ui/take-back",
    "/ui/take-back?turn=chatcmpl-00000000000000000000c351",
    "/ui/take-back?conversation=chatcmpl-00000000000000000000c351",
    "/ui/episodes",
    "/ui/episodes/group?id=g-50-3",
    "/ui/episodes/episode?id=e-50-13",
    "/ui/chat",
    "/ui/troubles",
)


@dataclass(slots=True, kw_only=True)
class ViewTimes:
    """Milliseconds of each request to a view, of the processor for one of them, and until a browser paints it."""

    milliseconds: list[float]
    processor: float
    paint: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="part of the addresses")
    parser.add_argument("--paint", action="store_true", help="in Chromium, too")
    args = parser.parse_args()
    if not (args.home / "store.db").exists():
        build_home(args.home)
    addresses = [address for address in ADDRESSES if args.only in address]
    times, memory = asyncio.run(measure(args.home, addresses, args.rounds, paint=args.paint))
    text, good = report(addresses, times, memory, args.rounds)
    print(text)
    if not args.only:
        write_result(RESULTS, text)
    sys.exit(0 if good else 1)


def report(
    addresses: Sequence[str], times: Sequence[ViewTimes], memory: float, rounds: int
) -> tuple[str, bool]:
    """Return the results page, and whether the bounds hold."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        "# Views of the page on a large home",
        "",
        f"{os.cpu_count()} cores, load average {load} (with this program). `python -m benchmarks.page_load HOME`: "
        f"each view {rounds} times on a home of 100,000 turns, 1,000 versions, 500 lessons and 10,000 episodes, in "
        "milliseconds. `processor`: of one request, with its client. `paint`: when Chromium first paints the view.",
        "",
        "| view | first | p50 | p95 | processor | paint |",
        "|---|---|---|---|---|---|",
    ]
    worst = 0.0
    paints = [each.paint for each in times if each.paint is not None]
    for address, each in zip(addresses, times, strict=True):
        median, high = np.percentile(each.milliseconds, (50, 95))
        worst = max(worst, float(high))
        figures = [each.milliseconds[0], median, high, each.processor]
        paint = "" if each.paint is None else f"{each.paint:.0f}"
        shown = " | ".join(f"{figure:.1f}" for figure in figures)
        lines.append(f"| `{address}` | {shown} | {paint} |")
    slowest = max(paints, default=0.0)
    good = worst <= MAX_MILLISECONDS and memory <= MAX_MEGABYTES and slowest <= MAX_PAINT
    lines += [
        "",
        f"Highest p95: {worst:.0f} ms (bound: {MAX_MILLISECONDS:.0f}). Memory of the process: {memory:.0f} MB (bound: "
        f"{MAX_MEGABYTES:.0f}). Latest first paint: {f'{slowest:.0f} ms' if paints else 'not measured'} (bound: "
        f"{MAX_PAINT:.0f}). **{'Holds' if good else 'DOES NOT HOLD'}**.",
    ]
    return "\n".join(lines), good


async def measure(
    home: Path, addresses: Sequence[str], rounds: int, *, paint: bool
) -> tuple[list[ViewTimes], float]:
    """Return the times of each address, and the memory of this process after the requests, in megabytes."""
    config = from_flat({"home": str(home)})
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    with Store.open(config.store_path, create=False, cache_mib=CACHE_MIB) as store:
        with store.write() as conn:
            ticket = page_access.create_ticket(conn, at=time.time())
            token = page_access.exchange_ticket(conn, ticket, at=time.time())
        app = PageApp(config, store).make_app()
        headers = {
            KEY_HEADER: page_key(store.secret),
            "Cookie": f"{cookie_name(store.secret)}={token}",
        }
        async with TestClient(TestServer(app), headers=headers) as client:
            times = [await _ask(client, address, rounds) for address in addresses]
            memory = resident_megabytes()
            if paint:
                await _measure_paints(str(client.make_url("")), headers, addresses, times)
            return times, memory


async def _measure_paints(
    url: str, headers: dict[str, str], addresses: Sequence[str], times: Sequence[ViewTimes]
) -> None:
    """Add the time of the first paint of each view, the median of three visits with an empty cache."""
    from playwright.async_api import async_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for address, each in zip(addresses, times, strict=True):
            paints = []
            for _ in range(PAINTS):
                context = await browser.new_context(extra_http_headers=headers)
                page = await context.new_page()
                await page.goto(url.rstrip("/") + address)
                paints.append(await page.evaluate(FIRST_PAINT))
                await context.close()
            each.paint = float(np.median(paints))
        await browser.close()


async def _ask(client: TestClient, address: str, rounds: int) -> ViewTimes:
    milliseconds = []
    began_processor = time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        async with client.get(address) as response:
            text = await response.text()
        milliseconds.append(1000 * (time.perf_counter() - began))
        if response.status != 200:
            raise SystemExit(f"{address}: {response.status}\n{text[:2000]}")
    processor = 1000 * (time.process_time() - began_processor) / rounds
    return ViewTimes(milliseconds=milliseconds, processor=processor)


def resident_megabytes() -> float:
    """Return the memory that this process holds."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmRSS")


if __name__ == "__main__":
    main()
