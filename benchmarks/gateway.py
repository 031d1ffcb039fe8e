"""How fast is the gateway, and what does it add? One run against a stub engine that does the same work for all.

    python benchmarks/gateway.py [--seconds 6] [--skip-litellm]

Rows: our gateway (every exchange durable before its finish is sent), LiteLLM's proxy, a bare pass-through, the stub
itself. Prints the tables and writes benchmarks/results/gateway.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

import servers
from load import Result, Target, measure
from model_folder import CONTEXT, make
from provenance import measured_at

RESULTS = Path(__file__).parent / "results" / "gateway.md"
GATEWAY = "gateway, durable capture"
LITELLM = "LiteLLM proxy"
PLAIN = "bare pass-through"
STUB = "stub itself"
CLIENTS = (1, 16)
# (agent, stream).
SHAPES = {
    (False, False): "short prompt, not streamed",
    (False, True): "short prompt, streamed",
    (True, False): "agent request, not streamed",
    (True, True): "agent request, streamed",
}
# Agent, stream, clients, row.
Cell = tuple[bool, bool, int, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of each cell, after a warm-up of a third of it"
    )
    parser.add_argument("--skip-litellm", action="store_true")
    parser.add_argument("--skip-gateway", action="store_true")
    parser.add_argument("--only", default="", help="cells whose name holds this, e.g. agent")
    options = parser.parse_args()
    version = "" if options.skip_litellm else servers.install_litellm()
    servers.RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="b-", dir=servers.RUNS) as name:
        folder = Path(name)
        pieces, token_ids, stop = make(folder / "model")
        up = start_servers(
            folder,
            pieces,
            token_ids,
            stop,
            skip_litellm=options.skip_litellm,
            skip_gateway=options.skip_gateway,
        )
        with servers.running(up):
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {servers.LOAD_CORE})
            cells = _cells(up, "".join(pieces), options.seconds, options.only)
    text = _report(cells, options.seconds, version)
    print(text)
    if not options.only:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text)
    wrong = {cell: result.wrong for cell, result in cells.items() if result.wrong}
    if wrong:
        sys.exit(f"wrong answers: {wrong}")


def start_servers(
    folder: Path,
    pieces: list[str],
    token_ids: list[int],
    stop: int,
    *,
    skip_litellm: bool = False,
    skip_gateway: bool = False,
    gateway_env: Mapping[str, str] | None = None,
) -> dict[str, servers.Server]:
    home = folder / "home"
    home.mkdir(mode=0o700)
    info = {
        "model": "openclaw",
        "context_length": CONTEXT,
        "vocab_size": 16384,
        "device": "cpu",
        "dtype": "float32",
    }
    settings = {
        "pieces": pieces,
        "token_ids": token_ids,
        "stop": stop,
        "socket": str(home / "engine.sock"),
        "info": info,
    }
    up = {STUB: servers.stub(folder, settings)}
    upstream = f"http://127.0.0.1:{up[STUB].port}/v1"
    try:
        up[PLAIN] = servers.passthrough(folder, upstream)
        if not skip_litellm:
            up[LITELLM] = servers.litellm(folder, upstream)
        if not skip_gateway:
            up[GATEWAY] = servers.gateway(folder, folder / "model", gateway_env)
    except BaseException:
        for server in up.values():
            server.stop()
        raise
    return up


def _cells(
    up: Mapping[str, servers.Server], text: str, seconds: float, only: str
) -> dict[Cell, Result]:
    """Cell by cell, all rows in turn: what drifts on the machine drifts for all. Who is not measured stands still."""
    proxies = {row: server for row, server in up.items() if row != STUB}
    for server in proxies.values():
        server.freeze()
    cells: dict[Cell, Result] = {}
    for (agent, stream), title in SHAPES.items():
        if only not in title:
            continue
        for clients in CLIENTS:
            for row, server in up.items():
                if row in proxies:
                    server.thaw()
                target = Target(port=server.port, key=server.key, text=text, pid=server.process.pid)
                call = measure(
                    target,
                    agent=agent,
                    stream=stream,
                    clients=clients,
                    seconds=seconds,
                    warm_up=seconds / 3,
                    name=f"{title}-{clients}",
                )
                result = _run(call)
                cells[agent, stream, clients, row] = result
                print(
                    f"{title:30} {clients:2} clients  {row:26} {result.rps:8.0f} rps "
                    f"{result.processor_us:8.0f} us of processor time a request",
                    file=sys.stderr,
                    flush=True,
                )
                if row in proxies:
                    server.freeze()
    return cells


def _run(call: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(call)


def _report(cells: Mapping[Cell, Result], seconds: float, litellm: str) -> str:
    pinned = hasattr(os, "sched_setaffinity")
    lines = [
        "# Gateway overhead against other proxies",
        "",
        f"{measured_at()}, {_cpu()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        + (f", LiteLLM {litellm}" if litellm else "")
        + f". `python benchmarks/gateway.py --seconds {seconds:g}`, one run, one worker process each.",
        "",
        (
            f"Load generator and stub engine are pinned to core {servers.LOAD_CORE}, the server under test to core "
            f"{servers.SERVER_CORE}; processes that are not being measured are stopped (SIGSTOP)."
            if pinned
            else "This system cannot pin processes to cores, so the rows affect each other."
        ),
        "Every row returns the same 20 tokens of text, without delay (streamed over HTTP: 22 events), and every "
        "reply is checked. The gateway gets them as token ids from the stub's engine socket, renders each prompt, and "
        "commits each exchange (SQLite, `synchronous=FULL`) before it sends the end of the reply.",
        "An agent request is about 36 KB: an OpenClaw-like system prompt (26 KB), 12 tools, a conversation in its "
        "tenth to twentieth turn, in which each client continues with the replies that it received.",
        "*CPU us*: microseconds of the server's processor time, user and system, per request. "
        "*added*: median minus the stub's own median. *events*: mean SSE events per reply; the gateway sends tokens "
        "that reach it together as one event.",
        "",
    ]
    for (agent, stream), title in SHAPES.items():
        rows = [
            row
            for row in (GATEWAY, LITELLM, PLAIN, STUB)
            if (agent, stream, CLIENTS[0], row) in cells
        ]
        if rows:
            lines += _table(
                title, [(row, [cells[agent, stream, n, row] for n in CLIENTS]) for row in rows]
            )
    return "\n".join(lines) + "\n"


def _table(title: str, rows: Sequence[tuple[str, Sequence[Result]]]) -> list[str]:
    by_name = dict(rows)
    head = ["rps", "CPU us", "p50 ms", "p99 ms", "added ms", "x pass-through", "x LiteLLM"]
    columns = [
        f"{n} client{'s' if n > 1 else ''}: {head[0]}" if i == 0 else h
        for n in CLIENTS
        for i, h in enumerate(head)
    ]
    lines = [
        f"## {title.capitalize()}",
        "",
        f"| | {' | '.join(columns)} | events |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for row, results in rows:
        cells: list[str] = []
        for at, result in enumerate(results):
            added = result.ms(50) - by_name[STUB][at].ms(50)
            cells += [f"{result.rps:.0f}", f"{result.processor_us:.0f}"]
            cells += [f"{result.ms(50):.2f}", f"{result.ms(99):.2f}"]
            cells += ["" if row == STUB else f"{added:+.2f}"]
            cells += [_ratio(row, other, result, by_name, at) for other in (PLAIN, LITELLM)]
        events = [count for result in results for count in result.events]
        mean = sum(events) / max(len(events), 1)
        lines.append(f"| {row} | {' | '.join(cells)} | {mean:.1f} |")
    return [*lines, ""]


def _ratio(
    row: str, other: str, result: Result, rows: Mapping[str, Sequence[Result]], at: int
) -> str:
    if other not in rows or row in (other, STUB):
        return ""
    return f"{result.rps / rows[other][at].rps:.2f}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
