"""Server time and memory of the page's views on a large home.

    python -m benchmarks.page_load HOME [--rounds 20] [--only PART]

Builds the home with `benchmarks.page_home` if it does not exist. Each view is asked for through the page's own
application on a real socket. The first request of each counts as well, so that empty caches show. Exits 1 if the
95th percentile of a view is above 150 ms. The time of the processor depends less on what else the machine does; it
includes that of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from aiohttp.test_utils import TestClient, TestServer
from benchmarks.page_home import build_home
from rich.console import Console
from rich.table import Table

from openclaw_rl.common.gateway_address import page_key
from openclaw_rl.page.app import PageApp
from openclaw_rl.page.security import KEY_HEADER, cookie_name
from openclaw_rl.page.worker import CACHE_MIB, THREADS
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import page_access
from openclaw_rl.store.db import Store

MAX_MILLISECONDS = 150.0
MAX_MEGABYTES = 150.0
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="part of the addresses")
    args = parser.parse_args()
    if not (args.home / "store.db").exists():
        build_home(args.home)
    addresses = [address for address in ADDRESSES if args.only in address]
    times = asyncio.run(measure(args.home, addresses, args.rounds))
    memory = resident_megabytes()
    table = Table(title=f"python {' '.join(sys.argv)}", title_justify="left")
    table.add_column("view", overflow="fold")
    for column in ("first, ms", "p50, ms", "p95, ms", "processor, ms"):
        table.add_column(column, justify="right")
    worst = 0.0
    for address, (milliseconds, processor) in zip(addresses, times, strict=True):
        median, high = np.percentile(milliseconds, (50, 95))
        worst = max(worst, float(high))
        figures = [milliseconds[0], median, high, processor]
        style = "red" if high > MAX_MILLISECONDS else ""
        table.add_row(address, *(f"{figure:.1f}" for figure in figures), style=style)
    console = Console()
    console.print(table)
    console.print(f"memory of this process: {memory:.0f} MB (bound: {MAX_MEGABYTES:.0f} MB)")
    sys.exit(worst > MAX_MILLISECONDS)


async def measure(
    home: Path, addresses: Sequence[str], rounds: int
) -> list[tuple[list[float], float]]:
    """Return the milliseconds of each request to each address, and the processor's for one of them."""
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
            return [await _ask(client, address, rounds) for address in addresses]


async def _ask(client: TestClient, address: str, rounds: int) -> tuple[list[float], float]:
    milliseconds = []
    processor = time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        async with client.get(address) as response:
            text = await response.text()
        milliseconds.append(1000 * (time.perf_counter() - began))
        if response.status != 200:
            raise SystemExit(f"{address}: {response.status}\n{text[:2000]}")
    return milliseconds, 1000 * (time.process_time() - processor) / rounds


def resident_megabytes() -> float:
    """Return the memory that this process holds."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmRSS")


if __name__ == "__main__":
    main()
