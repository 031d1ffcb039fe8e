"""`status --watch`: a status page in the terminal that updates itself. Ends on q or Ctrl-C."""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.status import report
from openclaw_rl.status.health import training_queue_length
from openclaw_rl.store.lineage.version_stats import satisfaction_by_version
from openclaw_rl.types import TurnState

# Seconds between updates.
UPDATE_SECONDS = 1.0
BARS = "▁▂▃▄▅▆▇█"
# Versions in the satisfaction chart.
MAX_VERSIONS = 60
MAX_REASONS = 6
STEP_METRICS = (
    *(
        "loss/total",
        "loss/binary",
        "loss/opd",
        "reward/mean",
        "kl",
        "gradient/norm",
        "learning_rate",
        "entropy",
    ),
    *("gap", "step/scale", "seconds", "eval/satisfaction"),
)
StatusData = Mapping[str, Any]


def watch_status(config: Config) -> None:
    """Show the page until q or Ctrl-C. Raises `OpenClawError` if there is no store, or stdout is no terminal."""
    # Rich would write nothing there.
    if sys.stdout is None or not sys.stdout.isatty():
        raise OpenClawError(
            "--watch needs a terminal as standard output. Leave --watch out, or use --json"
        )
    store = report.open_store(config)
    console = TerminalConsole()

    def current_page() -> RenderableType:
        with store.read() as conn:
            return build_page(collect_page_data(config, conn, time.time()))

    try:
        first = current_page()
        with (
            _deferred_interrupt() as comes,
            _key_reader() as wait,
            Live(first, console=console, auto_refresh=False, screen=True) as live,
        ):
            while True:
                with comes:
                    if wait(UPDATE_SECONDS) == "q":
                        break
                    newer = current_page()
                live.update(newer, refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        store.close()


class _DeferredInterrupt:
    """Context manager that allows Ctrl-C inside its block only; an earlier Ctrl-C is raised at the block's start.

    Ctrl-C during a switch or an update of the screen would leave the terminal without its cursor, its echo or its
    earlier contents.
    """

    def __init__(self) -> None:
        self._is_allowed = self._is_pending = False

    def handle_signal(self, *_signal: object) -> None:
        self._is_pending = True
        if self._is_allowed:
            self._is_allowed = False
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._is_allowed = True
        if self._is_pending:
            self.handle_signal()

    def __exit__(self, *_error: object) -> None:
        self._is_allowed = False


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[_DeferredInterrupt]:
    """Install the deferred Ctrl-C handler until the block ends. Yields the context in which Ctrl-C is allowed."""
    comes = _DeferredInterrupt()
    before = signal.getsignal(signal.SIGINT)
    # Ignored in a background process.
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, comes.handle_signal)
    try:
        yield comes
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _key_reader() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for a key and returns it in lower case, or an empty string."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _wait_without_keys
        return
    before = termios.tcgetattr(sys.stdin)

    def wait_for_key(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1).lower() if ready else ""

    tty.setcbreak(sys.stdin)
    try:
        yield wait_for_key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait_without_keys(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def collect_page_data(config: Config, conn: Connection, now: float) -> dict[str, Any]:
    """Return the data of `report.collect_status`, each worker's queue length and each version's satisfaction."""
    status = report.collect_status(conn, now)
    line = list(range(max(0, status["head"] - MAX_VERSIONS + 1), status["head"] + 1))
    known = satisfaction_by_version(conn, line)
    return status | {
        "queues": {
            "collect": (status["turns"].get(TurnState.SERVED, 0), "without a reaction"),
            "judge": (status["turns"].get(TurnState.CLOSED, 0), "without a verdict"),
            "train": (training_queue_length(config, conn), "to train on"),
        },
        "liked": [
            known[version][0] / known[version][1] if version in known else None for version in line
        ],
        "liked_overall": [
            sum(good for good, _ in known.values()),
            sum(scored for _, scored in known.values()),
        ],
    }


def build_page(status: StatusData) -> RenderableType:
    """Build the page. Lines that are too long for the terminal are cut, not wrapped."""
    states = ", ".join(f"{n} {state}" for state, n in status["states"].items())
    title = Text.assemble(
        ("OpenClaw-RL", "bold"), f"  serving version {status['head']}  ", (states, "dim")
    )
    parts: list[RenderableType] = [title, _render_satisfaction(status)]
    for heading, content in (
        ("workers", _render_workers(status)),
        ("newest step", _render_newest_step(status["versions"])),
        ("turns not trained on", _render_reasons(status)),
    ):
        parts += [Rule(heading, align="left", style="dim"), content]
    parts.append(Text("q: quit", style="dim"))
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap = True
            part.overflow = "ellipsis"
    return Group(*parts)


def sparkline(shares: Sequence[float | None]) -> str:
    """Return a bar for each share in [0, 1], and a dot for each None."""
    return "".join(
        "·" if s is None else BARS[min(int(s * len(BARS)), len(BARS) - 1)] for s in shares
    )


def _render_satisfaction(status: StatusData) -> Text:
    good, scored = status["liked_overall"]
    share = f"{good / scored:.0%} of {scored} turns" if scored else "no scores yet"
    return Text.assemble(
        "satisfaction ",
        (share, "bold"),
        "  ",
        (sparkline(status["liked"]), "green"),
        ("  by version", "dim"),
    )


def _render_workers(status: StatusData) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, None, None, 1):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
    for row in status["loops"]:
        waiting, what = status["queues"].get(row["name"], (0, ""))
        heard = Text("●", "green")
        if not row["alive"]:
            heard = Text(f"● silent for {row['age']:.0f} s", "red")
        style = "red" if report.shows_problem(row) else "dim"
        note = Text(report.describe_work(row), style=style)
        table.add_row(row["name"], heard, f"{waiting} {what}" if what else "", note)
    return table


def _render_newest_step(versions: Sequence[StatusData]) -> RenderableType:
    row = versions[-1]
    known = [(name, row["metrics"][name]) for name in STEP_METRICS if name in row["metrics"]]
    if not known:
        return Text("none yet", style="dim")
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row(f"v{row['version']}", row["state"], f"{row['turns']} turns", "")
    cells: list[RenderableType] = []
    for name, value in known:
        cells += [Text(name, style="dim"), f"{value:.3g}"]
    for start in range(0, len(cells), 4):
        table.add_row(*cells[start : start + 4])
    return table


def _render_reasons(status: StatusData) -> RenderableType:
    rows = [row for title in ("dropped", "untrainable") for row in status["reasons"][title]]
    if not rows:
        return Text("none", style="dim")
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for row in sorted(rows, key=lambda row: -row["count"])[:MAX_REASONS]:
        table.add_row(str(row["count"]), row["reason"])
    return table
