"""Base of the dialects: decode bytes to a `ChatRequest`, encode a reply to bytes. One class per wire format."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from openclaw_rl.errors import PromptTooLong
from openclaw_rl.render.caches import TwoGenerationLRU
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    FinishedChoice,
    ReplyHeader,
    StreamPart,
    TokenInfo,
    TokenUsage,
)
from openclaw_rl.store.rows import to_json

EVENT_STREAM = "text/event-stream; charset=utf-8"
# Bytes in the caches of one dialect.
MESSAGE_CACHE_BYTES = 16 * 2**20
TOOLS_CACHE_BYTES = 4 * 2**20
_T = TypeVar("_T")


class StreamEncoder(Protocol):
    """Encoder of one streamed response."""

    def encode_part(self, part: StreamPart, choice: int = 0) -> bytes:
        """Return the bytes for `part` of reply `choice`; the end of the last reply also ends the stream."""
        ...

    def encode_error(self, status: int, message: str, code: str) -> bytes:
        """Return the bytes of an error. No finish follows, so that clients do not take the reply for complete."""
        ...

    def encode_ping(self) -> bytes:
        """Return bytes without a meaning, for a stream that is silent while text is held back or a prompt waits."""
        ...


SSE_COMMENT = b": the reply is not ready yet\n\n"
"""A line that every reader of server-sent events passes over."""


class Dialect(ABC):
    """Wire format of one path that replies. `registry` lists all of them."""

    name: ClassVar[str]
    path: ClassVar[str]
    # Field of the request that an error about its prompt names.
    prompt_field: ClassVar[str] = "messages"
    count_path: ClassVar[str | None] = None  # path that counts the tokens of a prompt
    # Whether a body has a single prompt, which must fit into the context.
    has_one_prompt: ClassVar[bool] = True

    @abstractmethod
    def decode(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""

    @abstractmethod
    def stream_encoder(self, header: ReplyHeader, request: ChatRequest) -> StreamEncoder:
        """Return a new encoder for one response."""

    @abstractmethod
    def encode_response(
        self, header: ReplyHeader, request: ChatRequest, choices: Sequence[FinishedChoice]
    ) -> bytes:
        """Return the body of a response that is not streamed."""

    def decode_count_request(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """Decode the body of a token count request."""
        return self.decode(body, headers)

    def encode_count(self, tokens: int) -> bytes:
        """Return the body of the response to a token count request."""
        return to_json({"input_tokens": tokens})

    @classmethod
    def prompt_too_long(cls, error: PromptTooLong) -> str:
        """Return the message for a prompt that is too long, in the words that clients of this API recognise."""
        return error.message_for(cls.prompt_field)

    @staticmethod
    def error_body(
        status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> bytes:
        """Return an error body, by default in OpenAI's format."""
        kind = "server_error"
        if status == 401:
            kind = "authentication_error"
        elif status < 500:
            kind = "invalid_request_error"
        return to_json(
            {
                "error": {
                    "message": readable_text(message),
                    "type": kind,
                    "param": param,
                    "code": code,
                }
            }
        )


class RawCache(Generic[_T]):
    """Cache of `read(raw, place)` by the raw JSON: a client repeats its messages and tools in every request."""

    def __init__(self, capacity: int, read: Callable[[bytes, str], _T]) -> None:
        """`capacity`: bytes of raw JSON and of its values, roughly."""
        self._read = read
        self._values: TwoGenerationLRU[bytes, _T] = TwoGenerationLRU(
            capacity, lambda raw, value: 2 * len(raw) + 512
        )

    def read(self, raw: bytes, place: str) -> _T:
        """Return the value of `raw`. `place`: its path in the request, for errors."""
        value = self._values.get(raw)
        if value is None:
            value = self._read(raw, place)
            self._values.put(raw, value)
        return value


def readable_text(message: str) -> str:
    """Return an error message as valid UTF-8: it may quote a path or header that is not."""
    return message.encode("utf-8", "replace").decode()


def sse_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return a server-sent event whose data repeat its type."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json({"type": kind, **fields}))


def header_fields(header: ReplyHeader) -> dict[str, Any]:
    """Return the fields that every response object has."""
    return {"id": header.id, "model": header.model, "system_fingerprint": f"v{header.version}"}


def openai_usage(usage: TokenUsage, prompt: str, completion: str) -> dict[str, Any]:
    """Return the usage in OpenAI's format. `prompt`, `completion`: names of the two numbers."""
    return {
        prompt: usage.prompt_tokens,
        completion: usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        f"{prompt}_details": {"cached_tokens": usage.cached_tokens},
        f"{completion}_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def token_entry(info: TokenInfo) -> dict[str, Any]:
    """Return one token's log-probability in OpenAI's format."""
    return {
        "token": info.text,
        "logprob": finite_logprob(info.logprob),
        "bytes": list(info.utf8_bytes),
        "top_logprobs": [
            {"token": t, "bytes": list(raw), "logprob": finite_logprob(lp)}
            for t, raw, lp in info.top_logprobs
        ],
    }


def finite_logprob(logprob: float) -> float:
    """Replace infinity, which JSON cannot express, by -9999, as OpenAI does."""
    return logprob if math.isfinite(logprob) else -9999.0
