"""Requests and answers of vLLM's `/v1/chat/completions`, for conversations with images. No I/O.

vLLM renders such a conversation itself, because only its processor knows how many tokens an image takes. It gives no
tool calls and no reasoning back, but token ids: the gateway parses them as those of any other reply.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.common.images.image_prompt import ImageGeneration, ImagePrompt, image_digest
from openclaw_rl.engines.remote import completions_api
from openclaw_rl.engines.remote.completions_api import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from openclaw_rl.engines.remote.http_client import error_from_event
from openclaw_rl.errors import EngineError
from openclaw_rl.types import Ids, Message

CHAT_PATH = "/v1/chat/completions"
TOKENIZE_PATH = "/tokenize"
_ROLE_ALIASES = {"developer": "system", "function": "tool"}
_KEPT_KEYS = ("name", "tool_calls", "tool_call_id")
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# Width and height of the image by which a server shows that it reads images.
_PROBE_PIXELS = 64


class _TokenLogprob(msgspec.Struct):
    token: str
    logprob: float | None = None
    top_logprobs: list[_TokenLogprob] = []


class _ChatLogprobs(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _ChatChoice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _ChatLogprobs | None = None
    finish_reason: str | None = None


class _ChatResponse(msgspec.Struct):
    choices: list[_ChatChoice] = []
    error: Any = None
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None


_response_decoder = msgspec.json.Decoder(_ChatResponse)
_encoder = msgspec.json.Encoder()


def encode_messages(prompt: ImagePrompt) -> msgspec.Raw:
    """Return the messages of a conversation as JSON, with the images in them."""
    return msgspec.Raw(
        _encoder.encode([_engine_message(message, prompt.images) for message in prompt.messages])
    )


def encode_body(fields: Mapping[str, Any], messages: msgspec.Raw) -> bytes:
    """Return a request body as JSON. `fields`: all others than the messages."""
    return _encoder.encode({**fields, "messages": messages})


def tokenize_fields(model: str, prompt: ImagePrompt) -> dict[str, Any]:
    """Return the request that renders a conversation to token ids, the places of its images included."""
    return _conversation_fields(prompt) | {"model": model}


def streaming_fields(generation: ImageGeneration, *, model: str, limit: int) -> dict[str, Any]:
    """Return the request for one streamed reply."""
    sampling = generation.sampling
    top = generation.top_logprobs
    fields = completions_api.request_body(
        model, (), sampling, limit=limit, stop=generation.stop_token_ids
    )
    del fields["prompt"]
    fields |= {
        "logprobs": True,
        "top_logprobs": top,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if generation.prompt.tools:
        # The model sees the tools, and vLLM parses no calls.
        fields["tool_choice"] = "none"
    return fields | _conversation_fields(generation.prompt)


def _conversation_fields(prompt: ImagePrompt) -> dict[str, Any]:
    out: dict[str, Any] = {"tools": list(prompt.tools)} if prompt.tools else {}
    return out | {"chat_template_kwargs": dict(prompt.variables)} if prompt.variables else out


def _engine_message(message: Message, images: Mapping[str, str]) -> dict[str, Any]:
    """Return a client's message with the keys and roles that vLLM knows, and with the images themselves."""
    role = str(message["role"])
    content = message.get("content")
    if isinstance(content, list):
        content = [_engine_part(part, images) for part in content]
    engine_message = {"role": _ROLE_ALIASES.get(role, role), "content": content}
    return engine_message | _present_values(message)


def _present_values(message: Message) -> dict[str, Any]:
    """Return the values of a message that are kept as they are, and its reasoning."""
    present = {key: value for key, value in message.items() if value is not None}
    kept = {key: present[key] for key in _KEPT_KEYS if key in present}
    reasoning = [present[key] for key in _REASONING_KEYS if key in present]
    return kept | ({"reasoning": reasoning[0]} if reasoning else {})


def _engine_part(part: Any, images: Mapping[str, str]) -> dict[str, Any]:
    digest = image_digest(part)
    if digest is not None:
        return {"type": "image_url", "image_url": {"url": images[digest]}}
    text = part if isinstance(part, str) else part.get("text", part.get("refusal", ""))
    return {"type": "text", "text": text}


def rendered_ids(answer: Any) -> list[int]:
    """Return the token ids of an answer of `TOKENIZE_PATH`. Raises `EngineError` if it has another shape."""
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise EngineError(
            f"the engine's answer of {TOKENIZE_PATH} has no token ids; expected a vLLM server"
        )
    return ids


class ChatEventDecoder:
    """Decodes the events of one reply to `prompt_ids` [P] as those of `/v1/completions`.

    Raises `EngineError` for an error event, and if the engine read another prompt than `prompt_ids`.
    """

    def __init__(self, prompt_ids: Ids) -> None:
        self._prompt_ids = prompt_ids.tolist()
        self._is_confirmed = False

    def __call__(self, raw: bytes) -> CompletionResponse:
        try:
            response = _response_decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise EngineError(
                f"the engine's answer is not a chat completion ({error}): {raw[:200]!r}"
            ) from None
        if response.error is not None:
            raise error_from_event(response.error)
        if not self._is_confirmed and response.choices:
            self._confirm_prompt(response.prompt_token_ids or [])
        return CompletionResponse(
            choices=[_to_completion(choice) for choice in response.choices], usage=response.usage
        )

    def _confirm_prompt(self, read: Sequence[int]) -> None:
        if list(read) != self._prompt_ids:
            raise EngineError(
                f"the engine read {len(read)} prompt tokens that differ from the {len(self._prompt_ids)} that it "
                "rendered before, so the recorded prompt would be wrong. Does its chat template use the time or chance?"
            )
        self._is_confirmed = True


def _to_completion(choice: _ChatChoice) -> CompletionChoice:
    content = choice.logprobs.content if choice.logprobs is not None else None
    return CompletionChoice(
        token_ids=choice.token_ids,
        logprobs=_completion_logprobs(content or ()),
        finish_reason=choice.finish_reason,
    )


def _completion_logprobs(entries: Sequence[_TokenLogprob]) -> CompletionLogprobs:
    return CompletionLogprobs(
        token_logprobs=[entry.logprob for entry in entries],
        tokens=[entry.token for entry in entries],
        top_logprobs=[
            {other.token: other.logprob for other in entry.top_logprobs} for entry in entries
        ],
    )


def probe_prompt() -> ImagePrompt:
    """Return a conversation with a small grey image, which every model that reads images renders."""
    parts = [{"type": "text", "text": "?"}, {"type": "image", "sha256": "probe"}]
    return ImagePrompt(
        messages=[{"role": "user", "content": parts}], variables={}, images={"probe": _grey_png()}
    )


def _grey_png() -> str:
    """Return a data URL of a PNG of `_PROBE_PIXELS` squared, in RGB."""
    header = struct.pack(">IIBBBBB", _PROBE_PIXELS, _PROBE_PIXELS, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\x80" * 3 * _PROBE_PIXELS) * _PROBE_PIXELS)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    body = b"".join(_png_chunk(kind, data) for kind, data in chunks)
    return "data:image/png;base64," + b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
