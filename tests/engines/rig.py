"""What the contract needs to know of an engine of one kind. Every kind has a `rig` fixture that makes one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from openclaw_rl.protocols import Engine
from openclaw_rl.types import PolicyRef

BASE = PolicyRef(version=0, path=None, digest="")


@dataclass
class Rig:
    """`running`: how many replies the engine itself is at, by its own count. `tolerance`: of log-probabilities."""

    connect: Callable[[], Engine]
    adapter: PolicyRef
    context: int
    running: Callable[[Engine], Awaitable[int]]
    tolerance: float = 1e-5
    patience: float = 60.0  # seconds for one test

    def version(self, number: int) -> PolicyRef:
        """The same files under another number."""
        return PolicyRef(version=number, path=self.adapter.path, digest=self.adapter.digest)

    def run(self, body: Callable[[Engine], Awaitable[None]]) -> None:
        async def whole() -> None:
            engine = self.connect()
            try:
                await engine.load([self.version(1), BASE])
                await body(engine)
            finally:
                if (close := getattr(engine, "close", None)) is not None:
                    await close()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the gateway does
            runner.run(asyncio.wait_for(whole(), self.patience))
