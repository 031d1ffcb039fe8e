"""OpenAI's older Completions wire format: a text and its continuation, without a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    FinishedChoice,
    ReplyHeader,
    StreamPart,
    TokenInfo,
    TokenUsage,
    check_id_length,
    field_error,
)
from openclaw_rl.serve.dialects.base import (
    SSE_COMMENT,
    Dialect,
    finite_logprob,
    header_fields,
    openai_usage,
)
from openclaw_rl.serve.dialects.forced_format import FORMAT_KEYS, read_constraint
from openclaw_rl.serve.dialects.openai_chat_options import read_ignored, read_keys
from openclaw_rl.serve.dialects.prompt_tools import ToolChoice, read_schema
from openclaw_rl.serve.dialects.validation import RequestBody, decode_json, read_kind, read_sampling
from openclaw_rl.store.rows import to_json

MAX_PROMPTS = 64
MAX_CHOICES = 128
MAX_LOGPROBS = 20
# OpenAI's default.
DEFAULT_MAX_TOKENS = 16
UNTRAINABLE = Reason(
    ReasonCode.COMPLETION, "a text completion (/v1/completions) has no conversation"
)


class _CompletionStreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _CompletionBody(RequestBody, kw_only=True):
    """Request body, with the keys that are used."""

    prompt: str | list[Any]
    n: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    stream_options: _CompletionStreamOptions | None = None
    user: str | None = None
    session_id: str | None = None
    turn_type: str | None = None
    response_format: Any = None


_decoder = msgspec.json.Decoder(_CompletionBody)
_USED_FIELDS = (frozenset(_CompletionBody.__struct_fields__) | FORMAT_KEYS) - {"tools"}


class CompletionsDialect(Dialect):
    """Dialect of the Completions API. Each prompt is an exchange of its own, which is never trained on."""

    name = "completions"
    path = "/v1/completions"
    prompt_field = "prompt"
    has_one_prompt = False

    def decode(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        b = decode_json(_decoder, body)
        n = 1 if b.n is None else b.n
        prompts = _read_prompts(b.prompt)
        _check_counts(b, n, prompts)
        _check_support(b, n, prompts)
        fields = read_keys(body)
        schema = read_schema(b.response_format, "response_format", nested="json_schema")
        limit = DEFAULT_MAX_TOKENS if b.max_tokens is None else b.max_tokens
        first = ChatRequest(
            model=b.model or "",
            messages=(),
            tools=(),
            sampling=read_sampling(b, limit=limit, stop=b.stop, names=("max_tokens", "stop")),
            n=n,
            stream=bool(b.stream),
            include_usage=bool(b.stream_options and b.stream_options.include_usage),
            logprobs=b.logprobs is not None,
            top_logprobs=b.logprobs or 0,
            user=check_id_length(b.user or "", "user"),
            session=check_id_length(b.session_id or "", "session_id") or None,
            kind=read_kind(b.turn_type, "turn_type"),
            size=len(body),
            dialect=self.name,
            id_prefix="cmpl-",
            completion_prompt=prompts[0],
            dialect_state=prompts if b.echo else None,
            untrainable=UNTRAINABLE,
            constraint=read_constraint(fields, ToolChoice(), schema, "response_format", ()),
            ignored_fields=tuple(read_ignored(fields, _USED_FIELDS)),
        )
        further = [replace(first, completion_prompt=prompt) for prompt in prompts[1:]]
        return replace(first, further=further)

    def stream_encoder(self, header: ReplyHeader, request: ChatRequest) -> CompletionStreamEncoder:
        return CompletionStreamEncoder(header, request)

    def encode_response(
        self, header: ReplyHeader, request: ChatRequest, choices: Sequence[FinishedChoice]
    ) -> bytes:
        entries = [
            {
                "index": index,
                "id": choice.id,
                "text": _echoed_prompt(request, index) + str(choice.message["content"]),
                "logprobs": _logprobs(choice.tokens, 0) if request.logprobs else None,
                "finish_reason": choice.end.finish_reason.value,
            }
            for index, choice in enumerate(choices)
        ]
        usage = _total_usage([c.end.usage for c in choices], request.n)
        return to_json(_constant_fields(header) | {"choices": entries, "usage": usage})


class CompletionStreamEncoder:
    """Stream encoder for the choices of one prompt."""

    def __init__(self, header: ReplyHeader, request: ChatRequest) -> None:
        self._constant = _constant_fields(header)
        self._request = request
        # Choice -> characters of its tokens so far.
        self._offsets: dict[int, int] = {}
        self._usages: dict[int, TokenUsage] = {}

    def encode_part(self, part: StreamPart, choice: int = 0) -> bytes:
        """Return one chunk; after the last reply also the requested usage and [DONE]."""
        text = part.delta.content
        if choice not in self._offsets:
            text = _echoed_prompt(self._request, choice) + text
        offset = self._offsets.setdefault(choice, 0)
        self._offsets[choice] += sum(len(t.text) for t in part.tokens)
        entry = {
            "index": choice,
            "text": text,
            "logprobs": _logprobs(part.tokens, offset) if self._request.logprobs else None,
            "finish_reason": part.end.finish_reason.value if part.end else None,
        }
        events = self._event({"choices": [entry]})
        if part.end is not None:
            self._usages[choice] = part.end.usage
            if len(self._usages) == self._request.n:
                events += self._stream_end()
        return events

    def encode_ping(self) -> bytes:
        """See `StreamEncoder`."""
        return SSE_COMMENT

    def encode_error(self, status: int, message: str, code: str) -> bytes:
        """Return an error. Neither a finish nor [DONE] follows."""
        return b"data: " + CompletionsDialect.error_body(status, message, code=code) + b"\n\n"

    def _stream_end(self) -> bytes:
        last = b""
        if self._request.include_usage:
            n = self._request.n
            usage = _total_usage([self._usages[choice] for choice in range(n)], n)
            last = self._event({"choices": [], "usage": usage})
        return last + b"data: [DONE]\n\n"

    def _event(self, fields: Mapping[str, Any]) -> bytes:
        return b"data: " + to_json({**self._constant, **fields}) + b"\n\n"


def _read_prompts(value: str | list[Any]) -> list[str | list[int]]:
    """Return the prompts of the body: texts, or lists of token ids. Raises `RequestError`."""
    if isinstance(value, str) or _begins_with_token_id(value):
        _check_prompt(value, "prompt")
        return [value]
    if not 1 <= len(value) <= MAX_PROMPTS:
        raise field_error("prompt", f"expected 1 to {MAX_PROMPTS} prompts, got {len(value)}.")
    for index, prompt in enumerate(value):
        _check_prompt(prompt, f"prompt[{index}]")
    return value


def _check_prompt(prompt: Any, place: str) -> None:
    is_text = isinstance(prompt, str)
    is_tokens = isinstance(prompt, list) and all(map(_is_token_id, prompt))
    if not prompt or not (is_text or is_tokens):
        raise field_error(place, "expected a text or a list of token ids that is not empty.")


def _begins_with_token_id(value: list[Any]) -> bool:
    return bool(value) and _is_token_id(value[0])


def _is_token_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def _check_counts(b: _CompletionBody, n: int, prompts: Sequence[str | list[int]]) -> None:
    """Raise `RequestError` for too many or too few replies, prompts or alternatives."""
    choice_count = n * len(prompts)
    if not 1 <= choice_count <= MAX_CHOICES:
        raise field_error(
            "n", f"expected 1 to {MAX_CHOICES} choices over all prompts, got {choice_count}."
        )
    if b.stream and len(prompts) > 1:
        raise field_error(
            "stream", "only one prompt can be streamed; send one request for each prompt."
        )
    if not 0 <= (b.logprobs or 0) <= MAX_LOGPROBS:
        raise field_error("logprobs", f"expected 0 to {MAX_LOGPROBS}, got {b.logprobs}.")


def _check_support(b: _CompletionBody, n: int, prompts: Sequence[str | list[int]]) -> None:
    """Raise `RequestError` for what this model or this gateway cannot do."""
    if b.suffix:
        raise field_error(
            "suffix",
            "this model continues a text and cannot fill a gap; send the prompt without it.",
        )
    if b.best_of not in (None, n):
        raise field_error("best_of", "not supported; use n and choose among its replies.")
    if b.echo:
        _check_echo(b, prompts)


def _check_echo(b: _CompletionBody, prompts: Sequence[str | list[int]]) -> None:
    if b.logprobs is not None:
        raise field_error(
            "echo",
            "log-probabilities of the prompt are not available; send echo or logprobs, not both.",
        )
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise field_error("echo", "expected a prompt of text, got token ids.")


def _echoed_prompt(request: ChatRequest, choice: int) -> str:
    return str(request.dialect_state[choice // request.n]) if request.dialect_state else ""


def _logprobs(tokens: Sequence[TokenInfo], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [t.text for t in tokens],
        "token_logprobs": [finite_logprob(t.logprob) for t in tokens],
        "top_logprobs": [
            {text: finite_logprob(lp) for text, _, lp in t.top_logprobs} for t in tokens
        ],
        "text_offset": offsets,
    }


def _constant_fields(header: ReplyHeader) -> dict[str, Any]:
    return {"object": "text_completion", "created": header.created, **header_fields(header)}


def _total_usage(usages: Sequence[TokenUsage], n: int) -> dict[str, Any]:
    """Encode the usage of all replies; each prompt counts once, also if it has `n` replies."""
    cached_tokens = 0
    for start in range(0, len(usages), n):
        cached_tokens += min(usage.cached_tokens for usage in usages[start : start + n])
    total = TokenUsage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages[::n]),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        reasoning_tokens=0,
        cached_tokens=cached_tokens,
    )
    return openai_usage(total, "prompt_tokens", "completion_tokens")
