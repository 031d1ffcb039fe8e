"""The engine as a process: it dies, comes back, leaves no socket behind, and never outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.contract_fixtures import BASE, closing

from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.socket_server import bind_socket
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Chunk, Generation, PolicyRef, Sampling


def call(version: int = 0, tokens: int = 480) -> Generation:
    return Generation(
        id="g",
        version=version,
        prompt_ids=np.arange(5, dtype=np.int32),
        sampling=Sampling(max_tokens=tokens, seed=0),
        stop_token_ids=(),
    )


async def drain(stream: AsyncIterator[Chunk], into: list[int]) -> None:
    async for chunk in stream:
        into += chunk.token_ids


def _until(condition: Callable[[], bool], seconds: float = 240) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_engine_breaks_its_streams_and_the_client_finds_the_next_one(
    engine_config: Callable[..., Config],
    short_home: Callable[[], Path],
    refs: dict[int, PolicyRef],
    start: Callable[..., Any],
) -> None:
    config = engine_config(short_home())
    first = start(config)
    epochs: list[int] = []

    async def kill_and_come_back() -> int:
        async with closing(EngineClient(config.engine_socket, on_connect=epochs.append)) as client:
            info = await client.wait_ready(180)
            assert (info.versions, info.vocab_size, info.context_length) == ((0,), 64, 512)
            assert stat.S_IMODE(config.engine_socket.stat().st_mode) == 0o600
            with pytest.raises(EngineError, match="another engine answers there"):
                bind_socket(config.engine_socket)
            await client.load([refs[0], refs[1]])

            streams = [client.generate(call(version)) for version in (0, 1)]
            started = [await s.__anext__() for s in streams]
            os.kill(info.pid, signal.SIGKILL)
            for stream, chunk in zip(streams, started, strict=True):
                got = list(chunk.token_ids)
                with pytest.raises(EngineGone, match="broken off"):
                    await drain(stream, got)
                assert 0 < len(got) < 480
            first.end()
            assert config.engine_socket.exists(), "a killed engine leaves its socket behind"
            with pytest.raises(EngineGone, match="no engine answers"):
                await client.score(
                    version=0, prompt_ids=np.arange(3), response_ids=np.arange(3), temperature=1.0
                )

            second = start(config, below_parent=True)
            again = await client.wait_ready(180)
            assert again.versions == (0,)
            assert epochs == [1, client.epoch], "the hook says that versions must be loaded again"
            assert client.epoch > 1
            with pytest.raises(EngineError, match="version 1 is not loaded"):
                await client.generate(call(1)).__anext__()
            await client.load([refs[1]])
            assert sum([len(c.token_ids) async for c in client.generate(call(1, 5))]) == 5
        with pytest.raises(EngineGone, match="closed"):
            await client.info()
        second.end()  # the parent only
        return again.pid

    pid = asyncio.run(kill_and_come_back())
    assert _until(lambda: not _alive(pid)), "it outlived its parent"
    assert not config.engine_socket.exists()


def test_a_connection_with_another_protocol_is_closed_and_others_are_served(process: Any) -> None:
    path = process.socket
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x05\x00\x00\x00hello"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(path))
            stranger.settimeout(10)
            stranger.sendall(noise)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""

    async def ask() -> None:
        async with closing(EngineClient(path)) as client:
            await client.load([BASE])
            assert sum([len(c.token_ids) async for c in client.generate(call(tokens=3))]) == 3

    asyncio.run(ask())


def test_replies_end_when_their_client_disconnects(process: Any) -> None:
    async def leave() -> None:
        async with (
            closing(EngineClient(process.socket)) as rude,
            closing(EngineClient(process.socket)) as watcher,
        ):
            await rude.load([BASE])
            streams = [rude.generate(call()) for _ in range(4)]
            for stream in streams:
                await stream.__anext__()
            assert (await watcher.info()).running == 4
            await rude.close()
            for _ in range(200):
                if (await watcher.info()).running == 0:
                    break
                await asyncio.sleep(0.01)
            assert (await watcher.info()).running == 0
            for stream in streams:
                with pytest.raises(EngineGone):
                    await drain(stream, [])

    asyncio.run(leave())


def test_a_stale_socket_is_replaced_and_a_long_path_is_explained(
    short_home: Callable[[], Path],
) -> None:
    path = short_home() / "engine.sock"
    bind_socket(path).close()
    assert path.exists()
    with bind_socket(path):
        pass
    with pytest.raises(EngineError, match="Choose a shorter"):
        bind_socket(short_home() / ("x" * 120))


def test_an_engine_that_is_not_ready_in_time_raises_engine_gone(
    short_home: Callable[[], Path],
) -> None:
    async def ask() -> None:
        async with closing(EngineClient(short_home() / "engine.sock")) as client:
            with pytest.raises(EngineGone, match=r"not ready within 0\.1 s"):
                await client.wait_ready(0.1)

    asyncio.run(ask())
