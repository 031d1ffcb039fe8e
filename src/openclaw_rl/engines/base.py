"""The gateway's interface to any engine: `protocols.Engine` over a connection that can break and reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.errors import EngineGone
from openclaw_rl.protocols import Engine

OnConnect = Callable[[int], None]
"""Callback for each new connection; receives the epoch and must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Model, capacity and present state of an engine."""

    model: str
    context_length: int  # tokens, prompt and reply together
    vocab_size: int  # 0: not reported by the engine
    versions: tuple[int, ...]  # loaded policy versions
    device: str
    dtype: str
    running: int  # sequences in the batch
    waiting: int  # sequences that wait for a place in the batch
    pid: int | None = None  # of the engine process, if this system started it
    grammar: bool = False  # whether it can constrain a reply by a grammar


class EngineLink(Engine, Protocol):
    """An engine behind a connection.

    Connects at the first call, and reconnects with a back-off after a loss. `epoch` counts the connections made: a
    restarted engine has only the base loaded, so whoever called `load` must call it again when `epoch` has changed.
    """

    epoch: int

    @property
    def connected(self) -> bool: ...

    async def info(self) -> EngineInfo:
        """Return the engine's present state. Raise `EngineGone` if it does not answer."""
        ...

    async def wait_ready(self, timeout: float) -> EngineInfo:  # noqa: ASYNC109 (a deadline over several attempts)
        """Wait until the engine answers. Raise `EngineGone` after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Close the connection for good; running streams raise `EngineGone`."""
        ...


async def wait_until_ready(
    ask: Callable[[], Awaitable[EngineInfo]],
    timeout: float,  # noqa: ASYNC109 (a deadline over several attempts)
    back_off: tuple[float, float],
) -> EngineInfo:
    """Call `ask` until it succeeds; raise `EngineGone` after `timeout`. `back_off`: first and longest pause in s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    pause, longest = back_off
    while True:
        left = deadline - loop.time()
        try:
            return await asyncio.wait_for(ask(), max(left, 0.001))
        except (EngineGone, TimeoutError) as error:
            if left - pause <= 0:
                why = str(error) or "no answer"
                raise EngineGone(f"the engine was not ready within {timeout:g} s: {why}") from None
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)
