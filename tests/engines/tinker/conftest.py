"""The engine for Tinker on its socket, in a thread, with a double of the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.contract_fixtures import EngineHarness
from tests.engines.tinker.tinker_sdk import MODEL, SdkDouble, end_loop

from openclaw_rl.common.policy_digest import TINKER_FILE, digest_of_folder
from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.engines.socket_server import bind_socket
from openclaw_rl.engines.tinker.server import TinkerConnection, TinkerServer
from openclaw_rl.protocols import Engine
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.tinker.service import TinkerService
from openclaw_rl.tinker.version_file import TinkerVersion, encode_version
from openclaw_rl.types import PolicyRef

SCRIPT, CONTEXT = [5, 9, 11, 3, 7, 2], 512


class EngineThread:
    """Serves the engine socket of the settings until it is closed."""

    def __init__(self, config: Config, sdk: SdkDouble) -> None:
        self._loop = asyncio.new_event_loop()
        server = TinkerServer(TinkerService(config, lambda: sdk), config)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        bound = bind_socket(config.engine_socket)
        listen = self._loop.create_unix_server(lambda: TinkerConnection(server), sock=bound)
        self._server = asyncio.run_coroutine_threadsafe(listen, self._loop).result(240)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        end_loop(self._loop, self._thread)


@pytest.fixture
def sdk() -> Iterator[SdkDouble]:
    engine = ScriptedEngine(lambda prompt, version: SCRIPT, delay=0.0005, context_length=CONTEXT)
    with contextlib.closing(SdkDouble(engine)) as double:
        yield double


Connect = Callable[..., EngineClient]


@pytest.fixture
def connect(sdk: SdkDouble, short_home: Callable[[], Path]) -> Iterator[Connect]:
    """Start an engine with these settings, and return a client; both end with the test."""
    threads = []

    def start(**settings: object) -> EngineClient:
        flat = {
            "home": str(short_home()),
            "engine.backend": "tinker",
            "tinker.model": MODEL,
            "tinker.api_key": "tml-x",
        }
        config = from_flat(flat | settings)
        threads.append(EngineThread(config, sdk))
        return EngineClient(config.engine_socket)

    yield start
    for thread in threads:
        thread.close()


@pytest.fixture
def version(tmp_path: Path) -> Callable[[int], PolicyRef]:
    """Policy versions that the service holds."""

    def write(number: int, base: str = MODEL) -> PolicyRef:
        folder = tmp_path / f"version-{number}"
        folder.mkdir(exist_ok=True)
        held = TinkerVersion(
            base=base, rank=8, sampler=f"tinker://run/v-{number}", state=f"tinker://run/s-{number}"
        )
        (folder / TINKER_FILE).write_bytes(encode_version(held))
        return PolicyRef(version=number, path=str(folder), digest=digest_of_folder(folder))

    return write


class TinkerHarness(EngineHarness):
    """Versions differ in where the service holds them, so each has a folder of its own."""

    make_version: Callable[[int], PolicyRef]

    def version(self, number: int) -> PolicyRef:
        return self.make_version(number)


@pytest.fixture
def harness(connect: Connect, version: Callable[[int], PolicyRef]) -> EngineHarness:
    async def running(engine: Engine) -> int:
        assert isinstance(engine, EngineClient)
        return (await engine.info()).running

    made = TinkerHarness(connect, version(1), CONTEXT, running)
    made.make_version = version
    return made
