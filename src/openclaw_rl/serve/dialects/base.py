"""What a wire format is: bytes in, `Ask` out; a reply's parts in, bytes out. One class per format, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.serve.chat_request import Ask, Choice, Opening, Part, TokenInfo

EVENT_STREAM = "text/event-stream; charset=utf-8"


class Wire(Protocol):
    """One streamed answer."""

    def part(self, part: Part, choice: int = 0) -> bytes:
        """What `part` of the reply number `choice` adds; with its end also what ends the stream, after the last one."""
        ...

    def broken(self, status: int, message: str, code: str) -> bytes:
        """What breaks the stream off: no finish follows, so that nobody takes it for a whole reply."""
        ...


class Dialect(Protocol):
    """One wire format."""

    @property
    def name(self) -> str: ...

    def decode(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Raises `RequestError` that names the field and says what was expected."""
        ...

    def stream(self, opening: Opening, ask: Ask) -> Wire: ...

    def final(self, opening: Opening, ask: Ask, choices: Sequence[Choice]) -> bytes:
        """The body of an answer that is not streamed."""
        ...


class Counts(Protocol):
    """A wire format that can be asked how long a prompt is."""

    def decode_count(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Raises `RequestError` that names the field and says what was expected."""
        ...

    def counted(self, tokens: int) -> bytes:
        """The body of the answer."""
        ...


def token_entry(info: TokenInfo) -> dict[str, Any]:
    """One token's log-probability, as OpenAI's formats write it."""
    return {
        "token": info.text,
        "logprob": _finite(info.logprob),
        "bytes": list(info.raw),
        "top_logprobs": [{"token": t, "bytes": list(raw), "logprob": _finite(lp)} for t, raw, lp in info.top],
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is OpenAI's word for it."""
    return logprob if math.isfinite(logprob) else -9999.0
