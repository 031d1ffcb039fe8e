"""What people notice while somebody browses the page: the gaps between tokens of their replies, with it and without.

    python -m benchmarks.page_gaps HOME [--model smollm2] [--clients 8] [--seconds 40] [--rounds 3] [--pause 1]

HOME is a large home of `benchmarks.page_home`; it is changed: its versions get the model's identity, and the base
answers. Clients stream replies one after the other through the gateway. In turns, one more client asks for the views of
the page, with a pause after each, or does not. Writes benchmarks/results/page_gaps.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

from benchmarks.judge_load import Window, listen_window
from benchmarks.page_home import build_home
from benchmarks.page_load import ADDRESSES
from benchmarks.provenance import write_result
from benchmarks.streams import Heard, user

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.page.security import cookie_name
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.settings.load import Config
from openclaw_rl.store import file_digests, page_access
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

RESULTS = Path(__file__).parent / "results" / "page_gaps.md"
P99_RATIO = 1.1
"""Bound of the p99 of gaps with browsing against that without."""
WARM_UP_SECONDS = 15.0


class PageVisitor:
    """Asks for the views of the page in turn while `wanted` is set."""

    def __init__(self, url: str, cookie: str, pause: float) -> None:
        """`pause`: seconds after each view."""
        self._url = url
        self._cookie = cookie
        self._pause = pause
        self.wanted = asyncio.Event()
        self.readings = 0

    async def run(self) -> None:
        """Browse until it is cancelled. Raises `AssertionError` for a view that is not shown."""
        async with open_http_session(headers={"Cookie": self._cookie}) as http:
            while True:
                await self.wanted.wait()
                path = ADDRESSES[self.readings % len(ADDRESSES)]
                async with http.get(self._url + path) as response:
                    await response.read()
                    assert response.status == 200, f"{path}: {response.status}"
                self.readings += 1
                await asyncio.sleep(self._pause)


def adopt_home(config: Config) -> str:
    """Give the home's versions the identity of the model, and let the base answer. Return a browser's cookie."""
    with Store.open(config.store_path, create=False) as store:
        files = ModelFiles.from_config(config.model)
        digests = file_digests.digest_files(
            store, files.weights, report=lambda _: None, should_stop=lambda: False
        )
        identity = compute_identity(files, digests)
        with store.write() as conn:
            token = page_access.exchange_ticket(
                conn, page_access.create_ticket(conn, at=time.time()), at=time.time()
            )
        name = cookie_name(store.secret)
    with closing(connect(config.store_path)) as database:
        database.execute(
            "UPDATE policies SET identity = ?, base = ?", (identity, config.model.path)
        )
        database.execute("UPDATE heads SET version = 0")
        database.commit()
    return f"{name}={token}"


async def measure(config: Config, options: argparse.Namespace) -> list[dict[str, Window]]:
    """Return the windows of each round."""
    cookie = adopt_home(config)
    rounds: list[dict[str, Window]] = []
    with SubprocessSystem(config, command="serve") as system:
        visitor = PageVisitor(system.base_url, cookie, options.pause)
        browsing = asyncio.create_task(visitor.run())
        stop = asyncio.Event()
        heard = Heard()
        crowd = [
            asyncio.create_task(user(config.serve.port, system.api_key, seed, heard, stop))
            for seed in range(options.clients)
        ]
        try:
            await asyncio.sleep(WARM_UP_SECONDS)
            for number in range(options.rounds):
                windows = {}
                for name in ("without", "with") if number % 2 == 0 else ("with", "without"):
                    windows[name] = await listen_window(
                        visitor, heard, options.seconds, reads=name == "with"
                    )
                rounds.append(windows)
        finally:
            stop.set()
            visitor.wanted.clear()
            await asyncio.gather(*crowd)
            browsing.cancel()
            await asyncio.gather(browsing, return_exceptions=True)
    return rounds


def report(rounds: Sequence[dict[str, Window]], options: argparse.Namespace) -> tuple[str, bool]:
    """Return the results page, and whether the bound holds."""
    ratios = [each["with"].gap_ms(99) / each["without"].gap_ms(99) for each in rounds]
    views = sum(each["with"].readings for each in rounds)
    failures = [failure for each in rounds for failure in each["with"].heard.failures]
    ratio = statistics.median(ratios)
    good = ratio <= P99_RATIO and not failures and views > 0
    lines = [
        "# Browsing beside replies",
        "",
        f"{os.cpu_count()} cores. `python -m benchmarks.page_gaps HOME --model {options.model}`: {options.clients} "
        f"clients stream replies one after the other, {options.seconds:g} s a window, on a home of 100,000 turns. "
        f"`with`: one more client asks for the views of the page, with {options.pause:g} s after each. "
        "Gaps are milliseconds between two tokens of one reply at the client. All share the cores.",
        "",
        "| round | browsing | replies | gaps | gap p50 | p95 | p99 | views |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, windows in enumerate(rounds, 1):
        for name in ("without", "with"):
            window = windows[name]
            gaps = " | ".join(f"{window.gap_ms(one):.1f}" for one in (50, 95, 99))
            lines.append(
                f"| {number} | {name} | {window.heard.replies} | {len(window.heard.gaps)} | {gaps} | "
                f"{window.readings} |"
            )
    each = ", ".join(f"{one:.2f}" for one in ratios)
    lines += [
        "",
        f"p99 of gaps, with against without: {ratio:.2f} in the median of the rounds ({each}); bound: {P99_RATIO:g}. "
        f"Errors: {len(failures)}. **{'Holds' if good else 'DOES NOT HOLD'}**.",
    ]
    return "\n".join(lines), good


def main() -> None:
    """Measure, and write the results page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_gaps", description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds after each view [1]")
    options = parser.parse_args()
    if not options.home.exists():
        build_home(options.home)
    settings = {
        "model.path": options.model,
        "serve.sampling_override.max_tokens": 96,
        "serve.examine_lessons": False,
        "run.log_level": "warning",
    }
    config = scratch_config(options.home.resolve(), settings)
    rounds = asyncio.run(measure(config, options))
    text, good = report(rounds, options)
    print(text)
    write_result(RESULTS, text)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
