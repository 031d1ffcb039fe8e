"""Harness of the engine contract. Each kind of engine has a `harness` fixture."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import uvloop

from openclaw_rl.protocols import Engine
from openclaw_rl.settings.load import Config
from openclaw_rl.types import PolicyRef

BASE = PolicyRef(version=0, path=None, digest="")
T = TypeVar("T", bound=Engine)


@asynccontextmanager
async def closing(engine: T) -> AsyncIterator[T]:
    """Also when the test fails: what is left open is told of in a later test, which has nothing to do with it."""
    try:
        yield engine
    finally:
        if (close := getattr(engine, "close", None)) is not None:
            await close()


def serve_engine(config: Config) -> None:
    """Run the engine process; the caller has imported torch, and forked."""
    from openclaw_rl.engines.embedded.server import main

    main(config)


def serve_in_child(config: Config) -> None:
    """Run the engine in a child of this process, which does nothing itself."""
    if os.fork() == 0:
        serve_engine(config)
        os._exit(0)
    signal.pause()


@dataclass
class EngineHarness:
    """An engine under test. `running`: number of replies that the engine counts; `tolerance`: of log-probabilities."""

    connect: Callable[[], Engine]
    adapter: PolicyRef
    context: int
    running: Callable[[Engine], Awaitable[int]]
    tolerance: float = 1e-5
    timeout: float = 60.0  # seconds for one test

    def version(self, number: int) -> PolicyRef:
        """The same files under another number."""
        return PolicyRef(version=number, path=self.adapter.path, digest=self.adapter.digest)

    def run(self, body: Callable[[Engine], Awaitable[None]]) -> None:
        async def run_body() -> None:
            async with closing(self.connect()) as engine:
                await engine.load([self.version(1), BASE])
                await body(engine)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the gateway does
            runner.run(asyncio.wait_for(run_body(), self.timeout))
