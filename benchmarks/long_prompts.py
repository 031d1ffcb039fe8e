"""What do prompts of 8 MB cost a gateway that serves the starter? Each is far too long, and must be refused at once.

    python benchmarks/long_prompts.py [--port 8437]

Prints a table: seconds to the refusal, resident memory of the gateway after it, and the latency of small requests
alone and beside it. Aim: 0.5 s, 50 MB more than before all of them, and twice the latency.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Bytes of a body.
SIZE = 8 * 10**6
SMALL: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi."}],
    "max_tokens": 1,
    "temperature": 0,
}
# Small requests without a large one, and beside large ones.
ALONE = 40
BESIDE = 100


def bodies() -> dict[str, list[dict[str, str]]]:
    """The messages of the large requests, by name."""
    random.seed(0)
    words = "".join(random.choices("abcdefghijklmnopqrstuvwxyz     ", k=SIZE))
    results = [
        {"role": role, "content": words[n : n + 100_000]}
        for n in range(0, SIZE, 200_000)
        for role in ("user", "tool")
    ]
    return {
        "one long user message": [{"role": "user", "content": words}],
        "emoji": [{"role": "user", "content": "\U0001f600" * (SIZE // 4)}],
        "one word repeated": [{"role": "user", "content": "word" * (SIZE // 4)}],
        "many short messages": [
            {"role": "user", "content": words[n : n + 150]} for n in range(0, SIZE, 190)
        ],
        "long tool results": results,
        "base64": [
            {"role": "user", "content": base64.b64encode(random.randbytes(SIZE * 3 // 4)).decode()}
        ],
    }


def post(port: int, key: str, body: bytes) -> tuple[int, dict[str, Any], float]:
    """Return (status, answer, seconds)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    since = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text), time.perf_counter() - since


def send_forever(port: int, key: str, body: bytes) -> None:
    while True:
        post(port, key, body)


def latency_beside(send_small: Callable[[], float], port: int, key: str, body: bytes) -> float:
    """Return the median latency of small requests while another process sends the large body again and again."""
    sender = multiprocessing.get_context("fork").Process(
        target=send_forever, args=(port, key, body), daemon=True
    )
    sender.start()
    try:
        time.sleep(0.2)
        return statistics.median(send_small() for _ in range(BESIDE))
    finally:
        sender.terminate()
        sender.join()


def gateway_pid(parent: int) -> int:
    """Return the id of the process below `parent` that runs the gateway."""
    listed = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    return next(
        (int(p) for p, owner, words in rows if int(owner) == parent and "worker gateway" in words),
        parent,
    )


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def wait_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit("the gateway did not start")


def measure(port: int, key: str, pid: int) -> None:
    small = json.dumps(SMALL).encode()

    def send_small() -> float:
        status, answer, seconds = post(port, key, small)
        assert status == 200, answer
        return seconds

    for _ in range(ALONE):
        send_small()
    alone = statistics.median(send_small() for _ in range(ALONE))
    before = resident_mb(pid)
    print(
        f"small requests alone: {alone * 1e3:.1f} ms (median); resident memory: {before:.0f} MB\n"
    )
    print(
        "| body of 8 MB | refused in | memory after it | small requests beside it |\n|---|---|---|---|"
    )
    for name, messages in bodies().items():
        body = json.dumps({"messages": messages}, ensure_ascii=False).encode()
        status, answer, seconds = post(port, key, body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer
        beside = latency_beside(send_small, port, key, body)
        more = resident_mb(pid) - before
        print(
            f"| {name} | {seconds:.2f} s | {more:+.0f} MB | {beside * 1e3:.1f} ms ({beside / alone:.1f}x) |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8437)
    port = parser.parse_args().port
    with tempfile.TemporaryDirectory() as home, (Path(home) / "log").open("wb") as log:
        command = [
            sys.executable,
            "-m",
            "openclaw_rl",
            "serve",
            "--home",
            home,
            "--port",
            str(port),
        ]
        process = subprocess.Popen(
            [*command, "--model-path", "starter"], stdout=log, stderr=log, env=dict(os.environ)
        )
        try:
            wait_ready(port, process)
            measure(port, (Path(home) / "api_key").read_text().strip(), gateway_pid(process.pid))
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
