"""Protocols of a wire format: decode bytes to a `ChatRequest`, encode a reply to bytes. One class per format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.serve.chat_request import ChatRequest, FinishedChoice, ReplyHeader, StreamPart, TokenInfo

EVENT_STREAM = "text/event-stream; charset=utf-8"


class StreamEncoder(Protocol):
    """Encoder of one streamed response."""

    def encode_part(self, part: StreamPart, choice: int = 0) -> bytes:
        """Return the bytes for `part` of reply `choice`; the end of the last reply also ends the stream."""
        ...

    def encode_error(self, status: int, message: str, code: str) -> bytes:
        """Return the bytes of an error. No finish follows, so that clients do not take the reply for complete."""
        ...


class Dialect(Protocol):
    """Wire format of a path that replies."""

    @property
    def name(self) -> str: ...

    def decode(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""
        ...

    def stream_encoder(self, opening: ReplyHeader, ask: ChatRequest) -> StreamEncoder: ...

    def encode_response(self, opening: ReplyHeader, ask: ChatRequest, choices: Sequence[FinishedChoice]) -> bytes:
        """Return the body of a response that is not streamed."""
        ...


class TokenCountDialect(Protocol):
    """Wire format of a path that counts prompt tokens."""

    def decode_count_request(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""
        ...

    def encode_count(self, tokens: int) -> bytes:
        """Return the body of the response."""
        ...


def token_entry(info: TokenInfo) -> dict[str, Any]:
    """Return one token's log-probability in OpenAI's format."""
    return {
        "token": info.text,
        "logprob": _finite_logprob(info.logprob),
        "bytes": list(info.utf8_bytes),
        "top_logprobs": [
            {"token": t, "bytes": list(raw), "logprob": _finite_logprob(lp)} for t, raw, lp in info.top_logprobs
        ],
    }


def _finite_logprob(logprob: float) -> float:
    """Replace infinity, which JSON cannot express, by -9999, as OpenAI does."""
    return logprob if math.isfinite(logprob) else -9999.0
