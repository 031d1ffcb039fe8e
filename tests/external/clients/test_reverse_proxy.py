"""A stream through a real nginx with its default settings: nothing is buffered, and no silence closes it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import KEY, Site, Start, wait_for
from tests.serve.test_keep_alive import CALL, REQUESTS

from openclaw_rl.serve import completion_handler, keep_alive
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Chunk, Generation

# `proxy_pass` is the only directive about the proxy; the others say where nginx may write.
CONFIGURATION = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen unix:{folder}/nginx.sock;
        location / {{ proxy_pass {url}; }}
    }}
}}
"""
ENDS = {"/v1/messages": "message_stop", "/v1/responses": "response.completed"}
PINGS = {"/v1/messages": "event: ping"}
Proxy = Callable[[Site], Path]


class HeldEngine(ScriptedEngine):
    """Gives `free` tokens of a reply, and the others once `is_released` is set."""

    free = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_released = threading.Event()

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        given = 0
        async with aclosing(super().generate(generation)) as chunks:
            async for chunk in chunks:
                while given >= self.free and not self.is_released.is_set():
                    await asyncio.sleep(0.01)
                given += 1
                yield chunk


class HoldsCall(HeldEngine):
    """Begins a call, and holds its end back."""

    free = 12


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=240)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """Start nginx before a gateway. Returns its socket."""
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    assert program, "no nginx is on PATH. On Debian: apt install nginx-light"
    processes: list[subprocess.Popen[bytes]] = []

    def start_proxy(site: Site) -> Path:
        folder = tmp_path / "nginx"
        folder.mkdir()
        user = "user root;" if os.getuid() == 0 else ""
        text = CONFIGURATION.format(folder=folder, url=site.url, user=user)
        (folder / "nginx.conf").write_text(text)
        command = [program, "-p", str(folder), "-e", str(folder / "error.log")]
        process = subprocess.Popen([*command, "-c", str(folder / "nginx.conf")])
        processes.append(process)
        path = folder / "nginx.sock"
        wait_for(lambda: process.poll() is not None or _listens(path), bool)
        assert process.poll() is None, (folder / "error.log").read_text()
        return path

    yield start_proxy
    for process in processes:
        process.terminate()
        process.wait(240)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes connections, also those of a test that failed."""
    with ExitStack() as stack:
        yield stack


def read_event(answer: http.client.HTTPResponse) -> str:
    """Return the next event of a stream, or what is left before its end."""
    lines: list[str] = []
    while line := answer.readline().decode().strip():
        lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("engine_kind", [HeldEngine, HoldsCall])
@pytest.mark.parametrize("path", REQUESTS)
def test_a_stream_begins_and_pings_while_the_engine_is_held(
    path: str,
    engine_kind: type[HeldEngine],
    start: Start,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    stack: ExitStack,
) -> None:
    """The headers, an event and pings pass nginx before the engine may give another token.

    Each ping is allowed when the one before it has arrived, so that none is pushed through by those behind it.
    """
    allowed = threading.Semaphore(0)

    def may_speak(replies: object) -> bool:
        return allowed.acquire(blocking=False)

    monkeypatch.setattr(completion_handler, "_are_recorded", may_speak)
    monkeypatch.setattr(keep_alive, "SILENCE", 0.05)
    site = start(engine_kind=engine_kind)
    site.script.say(CALL)
    connection = stack.enter_context(closing(UnixConnection(proxy(site))))
    body = {"model": "openclaw", "stream": True, **REQUESTS[path]}
    connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {KEY}"})
    ping = PINGS.get(path, ": the reply")
    allowed.release()
    answer = connection.getresponse()
    assert answer.status == 200
    for _ in range(2):
        while not (event := read_event(answer)).startswith(ping):
            assert event, "the stream ended while the engine was held"
        allowed.release()
    engine = site.engine
    assert isinstance(engine, HeldEngine)
    assert not engine.is_released.is_set()
    engine.is_released.set()
    rest = answer.read().decode()
    assert ENDS.get(path, "[DONE]") in rest
    reply = site.last().reply
    assert reply is not None
    assert reply.response_ids.tolist() == site.script.ids


def test_a_reply_in_one_piece_passes(start: Start, proxy: Proxy, stack: ExitStack) -> None:
    site = start()
    connection = stack.enter_context(closing(UnixConnection(proxy(site))))
    body = {"model": "openclaw", "messages": [{"role": "user", "content": "go"}]}
    headers = {"Authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    assert answer["choices"][0]["message"]["content"] == "Hello there."
