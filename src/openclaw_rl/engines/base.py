"""What every engine is to the gateway: `protocols.Engine` over a connection that can be lost and asked about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.errors import EngineGone
from openclaw_rl.protocols import Engine

OnConnect = Callable[[int], None]
"""Called with the epoch at each new connection; must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What an engine is and holds right now."""

    model: str
    context_length: int  # tokens, prompt and reply together
    vocab_size: int  # 0: the engine does not say
    versions: tuple[int, ...]  # that can answer
    device: str
    dtype: str
    running: int  # replies in the batch
    waiting: int  # calls that are not in the batch yet
    pid: int | None = None  # of the engine's process, where it is ours
    grammar: bool = False  # whether it can force a reply into a grammar


class EngineLink(Engine, Protocol):
    """An engine behind a connection.

    Connects at the first call and again, with a back-off, after a loss. `epoch` counts the connections made: an engine
    that was started anew holds only the base, so whoever called `load` must call it again when `epoch` has moved.
    """

    epoch: int

    @property
    def connected(self) -> bool: ...

    async def info(self) -> Info:
        """Raises `EngineGone`."""
        ...

    async def wait_ready(self, timeout: float) -> Info:  # noqa: ASYNC109 (a deadline over several attempts)
        """Wait until the engine answers. Raises `EngineGone` after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Hang up and stay away; streams that still run raise `EngineGone`."""
        ...


async def until_ready(
    ask: Callable[[], Awaitable[Info]],
    timeout: float,  # noqa: ASYNC109 (a deadline over several attempts)
    back_off: tuple[float, float],
) -> Info:
    """Ask until there is an answer. `back_off`: seconds between attempts, first and longest. Raises `EngineGone`."""
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
