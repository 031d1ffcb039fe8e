"""OpenAI's wire format of embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.validation import decode_json
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import States

MAX_INPUTS = 2048
_ENCODINGS = ("float", "base64")


class _EmbeddingBody(msgspec.Struct, kw_only=True):
    """Request body, with the keys that are used."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


_decoder = msgspec.json.Decoder(_EmbeddingBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """A decoded and validated request."""

    model: str
    inputs: Sequence[str | list[int]]
    """Texts, or token ids of the served model."""
    as_base64: bool = False
    dimensions: int | None = None


def decode_request(body: bytes) -> EmbeddingRequest:
    """Decode a body. Raises `RequestError` that names the field and what was expected."""
    b = decode_json(_decoder, body)
    encoding = b.encoding_format or "float"
    if encoding not in _ENCODINGS:
        raise field_error("encoding_format", f"expected float or base64, got {encoding[:40]!r}.")
    return EmbeddingRequest(
        model=b.model or "",
        inputs=_read_inputs(b.input),
        as_base64=encoding == "base64",
        dimensions=b.dimensions,
    )


def _read_inputs(value: str | list[Any]) -> Sequence[str | list[int]]:
    if isinstance(value, str) or (value and _is_token_id(value[0])):
        _check_input(value, "input")
        return [value]
    if not 1 <= len(value) <= MAX_INPUTS:
        raise field_error("input", f"expected 1 to {MAX_INPUTS} texts, got {len(value)}.")
    for index, one in enumerate(value):
        _check_input(one, f"input[{index}]")
    return value


def _check_input(value: Any, place: str) -> None:
    is_text = isinstance(value, str)
    is_tokens = isinstance(value, list) and all(map(_is_token_id, value))
    if not value or not (is_text or is_tokens):
        raise field_error(place, "expected a text or a list of token ids that is not empty.")


def _is_token_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def encode_response(
    request: EmbeddingRequest, model: str, vectors: Sequence[States], tokens: int
) -> bytes:
    """Return the body of the response. `vectors`: [D] each; `tokens`: of all inputs."""
    entries = [
        {"object": "embedding", "index": index, "embedding": _encode_vector(request, vector)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return to_json({"object": "list", "data": entries, "model": model, "usage": usage})


def _encode_vector(request: EmbeddingRequest, vector: States) -> Any:
    if request.as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return vector.tolist()
