"""What every engine is to the gateway: `protocols.Engine` over a connection that can be lost and asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
