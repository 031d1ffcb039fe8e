"""What do attacks on the wire cost the other clients of a gateway that serves the starter?

    python -m benchmarks.wire_attacks [--port 8438] [--only NAME]

During each attack another process sends small requests, each on a new connection. Prints a table: what the attacker
got, how long the others waited (longest and median), how many of their requests failed, and the gateway's resident
memory after the attack. Aim: no failure, at most 0.5 s, and at most 100 MB more than before all attacks.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.long_prompts import gateway_pid, resident_mb, wait_ready

CHAT = "/v1/chat/completions"
# Tokens: so large that the bound by the body's size holds nothing back.
CONTEXT = 2**20
PROMPT_BYTES = 31 * 10**6
SOCKETS = 1100
TICKET_CONNECTIONS = 500
HELD_BODIES = 60
HELD_BYTES = 31 * 2**20
# For which the bodies are held.
HOLD_SECONDS = 20.0
# Soft limit of the gateway, the default of most systems.
OPEN_FILES = 1024
# Seconds between two small requests.
PAUSE = 0.02
# Seconds after an attack, before the memory is read.
SETTLE = 3.0
# Seconds.
TIMEOUT = 180.0
NO_ATTACK = "none"
SMALL = json.dumps(
    {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 1, "temperature": 0}
).encode()


@dataclass(frozen=True)
class Target:
    port: int
    key: str
    pid: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    def head(
        self, *headers: str, key: str | None = None, path: str = CHAT, method: str = "POST"
    ) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", *headers]
        lines += [f"Authorization: Bearer {self.key if key is None else key}"] if key != "" else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def small(self) -> int:
        """Send a small request with the key. Returns the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", CHAT, SMALL, {"Authorization": f"Bearer {self.key}"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


def answer_of(connection: socket.socket, since: float) -> str:
    """Return the status line of what comes back, and after how many seconds."""
    try:
        line = connection.recv(65536).split(b"\r\n")[0].decode("latin-1").removeprefix("HTTP/1.1 ")
    except (OSError, TimeoutError) as error:
        line = type(error).__name__
    return f"{line or 'closed'} after {time.perf_counter() - since:.2f} s"


# ---------------------------------------------------------------------------------------- attacks


def bomb(pieces: int, *, with_key: bool) -> Callable[[Target], str]:
    """A gzip body of `pieces` times 1 MiB, each of which is 1 GiB of zeros."""

    def attack(target: Target) -> str:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        zeros = bytes(2**20)
        # A full flush makes the bytes independent of what was before, so that they can be repeated.
        piece = b"".join(packer.compress(zeros) for _ in range(1024)) + packer.flush(
            zlib.Z_FULL_FLUSH
        )
        first = struct.pack("<BBBBLBB", 31, 139, 8, 0, 0, 0, 255)
        length = len(first) + pieces * len(piece)
        since = time.perf_counter()
        with target.connect() as connection:
            lines = ("Content-Encoding: gzip", f"Content-Length: {length}")
            connection.sendall(target.head(*lines, key=None if with_key else ""))
            with contextlib.suppress(OSError):
                connection.sendall(first)
                for _ in range(pieces):
                    connection.sendall(piece)
            return answer_of(connection, since)

    return attack


def sockets(*sent: str) -> Callable[[Target], str]:
    """1,100 connections that send the beginning of a request, or nothing, and stay open for some seconds."""

    def attack(target: Target) -> str:
        begun = ("\r\n".join(sent)).encode()
        opened = []
        with contextlib.ExitStack() as stack:
            for _ in range(SOCKETS):
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(target.connect())
                    if begun:
                        connection.sendall(begun)
                    opened.append(connection)
            time.sleep(8)
            alive = sum(_is_open(connection) for connection in opened)
        return f"{alive} of {len(opened)} still open after 8 s"

    return attack


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def large(
    make: Callable[[], bytes], *, times: int = 1, leave: bool = False
) -> Callable[[Target], str]:
    """Bodies with the key, `times` at once. With `leave` the client closes the connection when everything is sent."""

    def attack(target: Target) -> str:
        body = make()
        since = time.perf_counter()
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(target.connect()) for _ in range(times)]
            for connection in opened:
                connection.sendall(target.head(f"Content-Length: {len(body)}"))
                with contextlib.suppress(OSError):
                    connection.sendall(body)
            if not leave:
                return [answer_of(connection, since) for connection in opened][-1]
        since_left = cpu_seconds(target.pid)
        time.sleep(SETTLE)
        return f"left; the gateway computed {cpu_seconds(target.pid) - since_left:.1f} s afterwards"

    return attack


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def different_messages(target: Target) -> str:
    """Ten prompts of 15,000 messages, none of which is equal to another, are counted: what do the caches keep?"""
    since = time.perf_counter()
    answer = ""
    for number in range(10):
        sent = [
            {"role": ("user", "assistant")[n % 2], "content": f"{number} {n}"}
            for n in range(15_001)
        ]
        body = json.dumps({"messages": sent}).encode()
        with target.connect() as connection:
            head = target.head(f"Content-Length: {len(body)}", path="/v1/messages/count_tokens")
            connection.sendall(head + body)
            answer = answer_of(connection, since)
    return answer


def prose() -> bytes:
    words = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz     ", k=PROMPT_BYTES))
    return json.dumps({"messages": [{"role": "user", "content": words}]}).encode()


def messages(size: int) -> Callable[[], bytes]:
    """Messages of `size` bytes, as many as there is room for."""

    def make() -> bytes:
        item = json.dumps(
            {"role": "user", "content": "a" * max(size - 29, 0)}, separators=(",", ":")
        ).encode()
        return b'{"messages":[' + b",".join([item] * (PROMPT_BYTES // (len(item) + 1))) + b"]}"

    return make


def keys_in_message() -> bytes:
    keys = ",".join(f'"{n:x}":0' for n in range(PROMPT_BYTES // 10))
    return b'{"messages":[{"role":"user","content":"Hi.","extra":{' + keys.encode() + b"}}]}"


def keys_of_body() -> bytes:
    keys = ",".join(f'"{n:x}":0' for n in range(PROMPT_BYTES // 10))
    return b'{"messages":[{"role":"user","content":"Hi."}],' + keys.encode() + b"}"


def empty_objects() -> bytes:
    return (
        b'{"messages":[{"role":"user","content":"Hi.","extra":['
        + b",".join([b"{}"] * (PROMPT_BYTES // 3))
        + b"]}]}"
    )


def numbers() -> bytes:
    return (
        b'{"messages":[{"role":"user","content":"Hi.","extra":['
        + b",".join([b"0"] * (PROMPT_BYTES // 2))
        + b"]}]}"
    )


def tools() -> bytes:
    one = b'{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{}}}}}'
    return (
        b'{"messages":[{"role":"user","content":"Hi."}],"tools":['
        + b",".join([one] * (PROMPT_BYTES // (len(one) + 1)))
        + b"]}"
    )


def long_chunk(target: Target) -> str:
    since = time.perf_counter()
    with target.connect() as connection:
        connection.settimeout(10)
        connection.sendall(target.head("Transfer-Encoding: chunked"))
        time.sleep(0.5)
        connection.sendall(b"5\r\n" + SMALL + b"\r\n0\r\n\r\n")
        return answer_of(connection, since)


def wrong_keys(target: Target) -> str:
    """500 wrong keys, one after the other on 50 connections at the same time."""
    since = time.perf_counter()
    answered = 0
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(target.connect()) for _ in range(50)]
        for number in range(10):
            for connection in opened:
                with contextlib.suppress(OSError):
                    connection.sendall(target.head("Content-Length: 0", key=f"guess-{number}"))
            for connection in opened:
                with contextlib.suppress(OSError):
                    answered += connection.recv(65536).startswith(b"HTTP/1.1 401")
            if time.perf_counter() - since > 15:
                break
        seconds = time.perf_counter() - since
    return f"{answered} answers in {seconds:.1f} s"


def open_ticket(target: Target, episode: str) -> str:
    """Open an episode with the key, and return its ticket."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=20)
    body = json.dumps({"task": "t", "group": {"id": f"g-{episode}", "size": 1}})
    connection.request(
        "PUT", f"/v1/episodes/{episode}", body, {"Authorization": f"Bearer {target.key}"}
    )
    ticket = str(json.load(connection.getresponse())["api_key"])
    connection.close()
    return ticket


def ticket_connections(target: Target) -> str:
    """Connections with a valid ticket that have been answered once, and stay open for some seconds."""
    ticket = open_ticket(target, "connections")
    statuses: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(TICKET_CONNECTIONS):
            connection = stack.enter_context(target.connect())
            connection.sendall(target.head(key=ticket, path="/v1/models", method="GET"))
            opened.append(connection)
        for connection in opened:
            with contextlib.suppress(OSError):
                statuses[connection.recv(65536)[9:12].decode()] += 1
        time.sleep(8)
        alive = sum(_is_open(connection) for connection in opened)
    listed = ", ".join(f"{count} times {status or 'closed'}" for status, count in statuses.items())
    return f"{listed}; {alive} still open"


def held_bodies(*, with_ticket: bool) -> Callable[[Target], str]:
    """Bodies of 31 MiB, all sent at the same time but for their last byte, and held for some seconds."""

    def attack(target: Target) -> str:
        key = open_ticket(target, "bodies") if with_ticket else None
        before = resident_mb(target.pid)
        sent = [0] * HELD_BODIES
        until = time.monotonic() + HOLD_SECONDS
        part = b" " * 2**16
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(target.connect()) for _ in range(HELD_BODIES)]
            for connection in opened:
                connection.sendall(target.head(f"Content-Length: {HELD_BYTES + 1}", key=key))
                connection.setblocking(False)
            while time.monotonic() < until:
                for number, connection in enumerate(opened):
                    with contextlib.suppress(OSError):
                        sent[number] += connection.send(part[: HELD_BYTES - sent[number]])
                time.sleep(0.001)
            held = resident_mb(target.pid) - before
        taken = f"{sum(sent) / 2**20:.0f} of {HELD_BODIES * HELD_BYTES / 2**20:.0f} MiB were taken"
        return f"{held:+.0f} MB while they are held; {taken}"

    return attack


ATTACKS: dict[str, Callable[[Target], str]] = {
    "bomb of 170 MiB without a key": bomb(170, with_key=False),
    "bomb of 1 MiB without a key": bomb(1, with_key=False),
    "bomb of 1 MiB with the key": bomb(1, with_key=True),
    "1,100 silent sockets": sockets(),
    "1,100 begun heads": sockets(f"POST {CHAT} HTTP/1.1", "Host: 127.0.0.1", "X-A: "),
    "31 MB of prose": large(prose),
    "31 MB of prose, 8 times at once": large(prose, times=8),
    "31 MB of prose, 8 clients leave": large(prose, times=8, leave=True),
    "31 MB of messages of 1 kB": large(messages(1000)),
    "31 MB of messages of 30 bytes": large(messages(30)),
    "31 MB of keys in a message": large(keys_in_message),
    "31 MB of keys in the body": large(keys_of_body),
    "31 MB of empty objects": large(empty_objects),
    "31 MB of numbers": large(numbers),
    "31 MB of tools": large(tools),
    "10 times 15,000 messages": different_messages,
    "a chunk longer than it says": long_chunk,
    "500 wrong keys": wrong_keys,
    "500 connections with a ticket": ticket_connections,
    "60 held bodies of 31 MiB with a ticket": held_bodies(with_ticket=True),
    "60 held bodies of 31 MiB with the key": held_bodies(with_ticket=False),
}

# ----------------------------------------------------------------------------- the other clients


def send_small_requests(target: Target, stop: Connection, results: Connection) -> None:
    """Send small requests until told to stop, then report the seconds of each, and the number that failed."""
    seconds = []
    failures = 0
    while not stop.poll(PAUSE):
        since = time.perf_counter()
        try:
            failures += target.small() != 200
        except OSError:
            failures += 1
        except http.client.HTTPException:
            failures += 1
        seconds.append(time.perf_counter() - since)
    results.send((seconds, failures))


@contextlib.contextmanager
def other_client(target: Target) -> Iterator[Callable[[], tuple[list[float], int]]]:
    """Run `send_small_requests` in a process; yields a function that stops it and returns what it reports."""
    context = multiprocessing.get_context("fork")
    (stop_in, stop) = context.Pipe(False)
    (results, results_out) = context.Pipe(False)
    process = context.Process(
        target=send_small_requests, args=(target, stop_in, results_out), daemon=True
    )
    process.start()

    def finish() -> tuple[list[float], int]:
        stop.send(None)
        found: tuple[list[float], int] = results.recv()
        return found

    try:
        yield finish
    finally:
        process.terminate()
        process.join()


@dataclass(frozen=True)
class AttackResult:
    """One attack. `answer`: what the attacker got; `longest`, `median`: seconds that the others waited."""

    name: str
    answer: str
    longest: float
    median: float
    failures: int
    requests: int
    growth: float  # MB of the gateway's resident memory since before all attacks


def measure(target: Target, names: Sequence[str]) -> Iterator[AttackResult]:
    for _ in range(20):
        target.small()
    before = resident_mb(target.pid)
    attacks = {NO_ATTACK: lambda _: time.sleep(3) or "", **ATTACKS}
    for name in names:
        with other_client(target) as finish:
            time.sleep(0.5)
            answer = attacks[name](target)
            time.sleep(SETTLE)
            seconds, failures = finish()
        yield AttackResult(
            name=name,
            answer=answer,
            longest=max(seconds),
            median=statistics.median(seconds),
            failures=failures,
            requests=len(seconds),
            growth=resident_mb(target.pid) - before,
        )


def large_context_model(folder: Path) -> Path:
    """Return a copy of the starter whose context is so large that bodies of 31 MB are read."""
    import openclaw_rl

    shutil.copytree(Path(openclaw_rl.__file__).parent / "assets" / "starter", folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folder


def limit_open_files() -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )


def allow_open_files(wanted: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard),
    )


@contextlib.contextmanager
def attacked_gateway(port: int) -> Iterator[Target]:
    """Start a gateway with the usual limit of open files, on a model with a large context."""
    allow_open_files(SOCKETS + 200)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        home = Path(folder) / "home"
        model = large_context_model(Path(folder) / "model")
        command = [
            sys.executable,
            "-m",
            "openclaw_rl",
            "serve",
            "--home",
            str(home),
            "--port",
            str(port),
        ]
        process = subprocess.Popen(
            [*command, "--model-path", str(model)],
            stdout=log,
            stderr=log,
            env=dict(os.environ),
            preexec_fn=limit_open_files,
        )
        try:
            wait_ready(port, process)
            key = (home / "api_key").read_text().strip()
            yield Target(port, key, gateway_pid(process.pid))
        finally:
            process.terminate()
            process.wait(30)


def table_head() -> str:
    return "| attack | the attacker got | others: longest | median | failed | memory after |\n|---|---|---|---|---|---|"


def table_row(r: AttackResult) -> str:
    waits = f"{r.longest:.2f} s | {r.median * 1e3:.0f} ms | {r.failures} of {r.requests}"
    return f"| {r.name} | {r.answer} | {waits} | {r.growth:+.0f} MB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8438)
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    options = parser.parse_args()
    print(table_head())
    with attacked_gateway(options.port) as target:
        for result in measure(
            target, [name for name in (NO_ATTACK, *ATTACKS) if options.only in name]
        ):
            print(table_row(result), flush=True)


if __name__ == "__main__":
    main()
