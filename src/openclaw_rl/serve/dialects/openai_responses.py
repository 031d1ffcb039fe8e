"""OpenAI Responses wire format. Its parts are in `openai_responses_*.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    FinishedChoice,
    ReplyHeader,
    check_id_length,
    field_error,
)
from openclaw_rl.serve.dialects.base import TOOLS_CACHE_BYTES, Dialect, RawCache
from openclaw_rl.serve.dialects.forced_format import FORMAT_KEYS, read_constraint
from openclaw_rl.serve.dialects.openai_chat_options import read_ignored, read_keys
from openclaw_rl.serve.dialects.openai_responses_input import (
    DIALECT,
    ID_PREFIX,
    read_input,
    system_message,
)
from openclaw_rl.serve.dialects.openai_responses_output import (
    ItemIdGenerator,
    ResponseOptions,
    output_items,
    response_object,
    status_of,
)
from openclaw_rl.serve.dialects.openai_responses_stream import ResponsesStreamEncoder
from openclaw_rl.serve.dialects.openai_responses_tools import Toolbox, chosen_name, read_tools
from openclaw_rl.serve.dialects.prompt_tools import read_schema
from openclaw_rl.serve.dialects.validation import (
    OpenAIBody,
    decode_json,
    read_kind,
    read_sampling,
    read_top_logprobs,
)
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Kind

INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_REASONING = "reasoning.encrypted_content"
# Nesting levels, including stack frames.
_DEPTH_MARGIN = 200
# Sent by Codex, newest version first.
_SESSION_HEADERS = ("session-id", "session_id", "conversation_id")
_CODEX_TURN_HEADER = "x-codex-turn-metadata"


class _TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _ReasoningOptions(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class _CodexTurn(msgspec.Struct):
    request_kind: str = "turn"


class _ResponsesBody(OpenAIBody, kw_only=True):
    """Request body, with the keys that are used; others are ignored and named, or refused."""

    input: str | list[Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    text: _TextOptions | None = None
    reasoning: _ReasoningOptions | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    truncation: str | None = None


_decoder = msgspec.json.Decoder(_ResponsesBody)
_KNOWN_KEYS = frozenset(_ResponsesBody.__struct_fields__) | FORMAT_KEYS
_codex_turn_decoder = msgspec.json.Decoder(_CodexTurn)


class ResponsesDialect(Dialect):
    """Dialect of the Responses API."""

    name = DIALECT
    path = "/v1/responses"
    count_path = "/v1/responses/input_tokens"
    prompt_field = "input"

    def __init__(self) -> None:
        self._tools = RawCache(TOOLS_CACHE_BYTES, read_tools)

    def decode(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        try:
            b = decode_json(_decoder, body)
            return self._to_request(b, headers, len(body), read_keys(body))
        except RecursionError:
            raise RequestError("the body is nested too deeply.") from None

    def _to_request(
        self,
        b: _ResponsesBody,
        headers: Mapping[str, str],
        size: int,
        fields: Mapping[str, msgspec.Raw],
    ) -> ChatRequest:
        _check_unsupported(b)
        ignored = read_ignored(fields, _KNOWN_KEYS)
        box = self._tools.read(bytes(b.tools), "tools")
        choice = box.read_choice(b.tool_choice, chosen_name)
        tools, raw_tools = box.select(choice)
        schema = read_schema(b.text.format if b.text else None, "text.format")
        echo = _echoed_fields(b, box)
        _check_depth(echo)
        instructions = [system_message(b.instructions)] if b.instructions else []
        parsed = read_input(b.input)
        messages = [*instructions, *parsed.messages]
        effort = (b.reasoning and b.reasoning.effort) or ""
        template_variables: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
        template_variables |= b.chat_template_kwargs or {}
        include = b.include or ()
        has_logprobs = INCLUDE_LOGPROBS in include
        return ChatRequest(
            model=b.model or "",
            messages=messages,
            tools=tools,
            sampling=read_sampling(
                b, limit=b.max_output_tokens, stop=None, names=("max_output_tokens", "stop")
            ),
            template_variables=template_variables,
            reasoning_effort=effort,
            stream=bool(b.stream),
            logprobs=has_logprobs,
            top_logprobs=read_top_logprobs(b.top_logprobs) if has_logprobs else 0,
            user=b.read_user(),
            session=_read_session(b, headers),
            metadata=b.metadata or {},
            may_store=b.store is not False,
            kind=_request_kind(b, headers),
            session_done=bool(b.session_done),
            size=size,
            raw=[to_json(m) for m in messages],
            raw_tools=raw_tools,
            dialect=self.name,
            prompt_field=self.prompt_field,
            id_prefix=ID_PREFIX,
            constraint=read_constraint(fields, choice, schema, "text.format", tools),
            parallel_calls=b.parallel_tool_calls is not False,
            previous_id=b.previous_response_id or None,
            references={n + len(instructions): id for n, id in parsed.references.items()},
            has_instructions=bool(instructions),
            degraded=parsed.degraded,
            dialect_state=ResponseOptions(
                echo=echo, origins=box.origins, seal=INCLUDE_REASONING in include
            ),
            ignored_fields=tuple(
                dict.fromkeys([*box.ignored, *parsed.ignored, *_ignored_fields(b), *ignored])
            ),
        )

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"object": "response.input_tokens", "input_tokens": tokens})

    def stream_encoder(self, header: ReplyHeader, request: ChatRequest) -> ResponsesStreamEncoder:
        return ResponsesStreamEncoder(header, request)

    def encode_response(
        self, header: ReplyHeader, request: ChatRequest, choices: Sequence[FinishedChoice]
    ) -> bytes:
        (choice,) = choices
        extra: ResponseOptions = request.dialect_state
        status = status_of(choice.end.finish_reason)
        ids = ItemIdGenerator(header.id)
        tokens = choice.tokens if request.logprobs else ()
        items = output_items(
            choice.message, ids, extra.origins, status=status, tokens=tokens, seal=extra.seal
        )
        return to_json(response_object(header, extra.echo, status, items, usage=choice.end.usage))


def _check_unsupported(b: _ResponsesBody) -> None:
    if b.background:
        raise field_error(
            "background", "background replies are not supported; send background: false."
        )
    if b.conversation is not None:
        raise field_error(
            "conversation", "not supported; send previous_response_id, or the whole input."
        )
    if b.prompt is not None:
        raise field_error(
            "prompt",
            "templates stored at OpenAI are not supported; send their text as instructions.",
        )


def _check_depth(echo: Any) -> None:
    """Raise `RecursionError` if a value that could be decoded is nested too deeply to be encoded in a response."""
    for _ in range(_DEPTH_MARGIN):
        echo = [echo]
    to_json(echo)


def _read_session(b: _ResponsesBody, headers: Mapping[str, str]) -> str | None:
    """Return the client's session id. (`prompt_cache_key` cannot serve as one: many conversations share a key.)"""
    stated = [headers.get(name) for name in _SESSION_HEADERS]
    session = next(filter(None, stated), b.session_id or "")
    session = session.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return check_id_length(session, "session_id") or None


def _request_kind(b: _ResponsesBody, headers: Mapping[str, str]) -> Kind | None:
    """Return the kind the client declares. Codex marks requests that are not turns (summaries, memory) in a header."""
    if kind := read_kind(b.turn_type, "turn_type"):
        return kind
    metadata = headers.get(_CODEX_TURN_HEADER, "{}")
    try:
        turn = _codex_turn_decoder.decode(metadata.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None if turn.request_kind == "turn" else Kind.SIDE


def _ignored_fields(b: _ResponsesBody) -> list[str]:
    ignored = []
    if b.truncation == "auto":
        ignored.append("truncation: auto (a conversation that is too long is refused)")
    return ignored


def _echoed_fields(b: _ResponsesBody, box: Toolbox) -> dict[str, Any]:
    """Return the request fields that a Response object repeats."""
    text = b.text or _TextOptions()
    return {
        "background": False,
        "instructions": b.instructions,
        "max_output_tokens": b.max_output_tokens,
        "max_tool_calls": b.max_tool_calls,
        "metadata": b.metadata or {},
        "parallel_tool_calls": b.parallel_tool_calls is not False,
        "previous_response_id": b.previous_response_id,
        "prompt_cache_key": b.prompt_cache_key,
        "reasoning": msgspec.structs.asdict(b.reasoning or _ReasoningOptions()),
        "safety_identifier": b.safety_identifier,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0 if b.temperature is None else b.temperature,
        "text": {
            "format": text.format or {"type": "text"},
            "verbosity": text.verbosity or "medium",
        },
        "tool_choice": b.tool_choice or "auto",
        "tools": box.echo,
        "top_logprobs": b.top_logprobs or 0,
        "top_p": 1.0 if b.top_p is None else b.top_p,
        "truncation": b.truncation or "disabled",
        "user": b.user,
    }


DEFAULT_ECHO: Mapping[str, Any] = _echoed_fields(_ResponsesBody(), Toolbox())
"""Request fields that a Response object repeats, for a request without any of them."""
