"""Protocols of a wire format: decode bytes to a `ChatRequest`, encode a reply to bytes. One class per format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.serve.chat_request import Ask, Choice, Opening, Part, TokenInfo

EVENT_STREAM = "text/event-stream; charset=utf-8"


class Wire(Protocol):
    """Encoder of one streamed response."""

    def part(self, part: Part, choice: int = 0) -> bytes:
        """Return the bytes for `part` of reply `choice`; the end of the last reply also ends the stream."""
        ...

    def broken(self, status: int, message: str, code: str) -> bytes:
        """Return the bytes of an error. No finish follows, so that clients do not take the reply for complete."""
        ...


class Dialect(Protocol):
    """Wire format of a path that replies."""

    @property
    def name(self) -> str: ...

    def decode(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""
        ...

    def stream(self, opening: Opening, ask: Ask) -> Wire: ...

    def final(self, opening: Opening, ask: Ask, choices: Sequence[Choice]) -> bytes:
        """Return the body of a response that is not streamed."""
        ...


class Counts(Protocol):
    """Wire format of a path that counts prompt tokens."""

    def decode_count(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""
        ...

    def counted(self, tokens: int) -> bytes:
        """Return the body of the response."""
        ...


def token_entry(info: TokenInfo) -> dict[str, Any]:
    """Return one token's log-probability in OpenAI's format."""
    return {
        "token": info.text,
        "logprob": _finite(info.logprob),
        "bytes": list(info.raw),
        "top_logprobs": [{"token": t, "bytes": list(raw), "logprob": _finite(lp)} for t, raw, lp in info.top],
    }


def _finite(logprob: float) -> float:
    """Replace infinity, which JSON cannot express, by -9999, as OpenAI does."""
    return logprob if math.isfinite(logprob) else -9999.0
