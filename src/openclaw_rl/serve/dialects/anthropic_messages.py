"""Anthropic Messages wire format. `anthropic_input` reads the messages, `anthropic_tools` the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from openclaw_rl.errors import PromptTooLong, RequestError
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.render.reply_parser import ToolCall
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    FinishedChoice,
    ReplyEnd,
    ReplyHeader,
    StreamPart,
    TokenUsage,
    check_id_length,
    field_error,
)
from openclaw_rl.serve.dialects.anthropic_input import (
    merge_assistant_messages,
    read_message,
    read_system,
    read_user_id,
)
from openclaw_rl.serve.dialects.anthropic_tools import AnthropicToolChoice, plain_choice, read_tools
from openclaw_rl.serve.dialects.base import (
    MESSAGE_CACHE_BYTES,
    TOOLS_CACHE_BYTES,
    Dialect,
    RawCache,
    header_fields,
    readable_text,
    sse_event,
)
from openclaw_rl.serve.dialects.forced_format import FORMAT_KEYS, read_constraint
from openclaw_rl.serve.dialects.openai_chat_options import read_ignored, read_keys
from openclaw_rl.serve.dialects.prompt_tools import read_schema
from openclaw_rl.serve.dialects.replayed_anthropic import read_replayed_message
from openclaw_rl.serve.dialects.replayed_chat import ReplayedMessages
from openclaw_rl.serve.dialects.validation import (
    RequestBody,
    decode_json,
    number_in_range,
    read_sampling,
    take_prefix,
)
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import FinishReason, Message, Sampling

SESSION_HEADER = "X-Claude-Code-Session-Id"
# None: the model's default
_THINKING_MODES = {"enabled": True, "disabled": False, "adaptive": None, "between_tools": None}
_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_UNKNOWN_MODEL_HINT = (
    " Set the client's model to that name (Claude Code: ANTHROPIC_MODEL and ANTHROPIC_DEFAULT_HAIKU_MODEL), "
    "or serve.any_model on the gateway."
)


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Thinking(msgspec.Struct):
    type: str
    display: str | None = None


class _OutputConfig(msgspec.Struct):
    format: dict[str, Any] | None = None


class _MessagesBody(RequestBody, kw_only=True):
    """Request body, with the keys that are used; others are ignored and named, or refused."""

    messages: list[msgspec.Raw]
    max_tokens: int | None = None
    system: msgspec.Raw = msgspec.Raw(b"")
    tool_choice: AnthropicToolChoice | None = None
    stop_sequences: list[str] | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: dict[str, Any] | None = None  # earlier name of output_config.format
    metadata: _Metadata | None = None


_decoder = msgspec.json.Decoder(_MessagesBody)
_KNOWN_KEYS = frozenset(_MessagesBody.__struct_fields__) | FORMAT_KEYS


class MessagesDialect(Dialect):
    """Dialect of the Messages API. A temperature below 0.01 is taken as 0 (greedy)."""

    name = "messages"
    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"

    def __init__(self) -> None:
        self._messages = RawCache(MESSAGE_CACHE_BYTES, read_message)
        self._replayed = RawCache(MESSAGE_CACHE_BYTES, read_replayed_message)
        self._tools = RawCache(TOOLS_CACHE_BYTES, read_tools)

    def decode(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        b = decode_json(_decoder, body)
        if b.max_tokens is None:
            raise field_error(
                "max_tokens", "this field is required; expected the maximum number of reply tokens."
            )
        return self._to_request(b, headers, len(body), read_keys(body))

    def decode_count_request(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """Decode the body of a token count request, in which `max_tokens` is optional."""
        return self._to_request(decode_json(_decoder, body), headers, len(body))

    def _to_request(
        self,
        b: _MessagesBody,
        headers: Mapping[str, str],
        size: int,
        fields: Mapping[str, msgspec.Raw] = MappingProxyType({}),
    ) -> ChatRequest:
        ignored = read_ignored(fields, _KNOWN_KEYS)
        raw, messages, newest_count, degraded = self._read_conversation(b)
        prefix = None
        if messages[-1]["role"] == "assistant":
            prefix = take_prefix(raw, messages, "messages")
            newest_count = 0
        known = self._tools.read(bytes(b.tools), "tools")
        schema, schema_field = _read_format(b)
        choice = known.read_choice(
            plain_choice(b.tool_choice), lambda chosen, place: str(chosen["name"])
        )
        tools, raw_tools = known.select(choice)
        user, session = read_user_id((b.metadata and b.metadata.user_id) or "")
        return ChatRequest(
            model=b.model or "",
            messages=messages,
            prefix=prefix,
            newest_count=newest_count,
            degraded=degraded,
            tools=tools,
            sampling=_read_sampling_fields(b),
            template_variables=_template_variables(b.thinking),
            stream=bool(b.stream),
            user=check_id_length(user, "metadata.user_id"),
            session=check_id_length(session, "metadata.user_id") or _header_session(headers),
            size=size,
            raw=raw,
            raw_tools=raw_tools,
            dialect=self.name,
            id_prefix="msg_",
            constraint=read_constraint(fields, choice, schema, schema_field, tools),
            parallel_calls=not (b.tool_choice and b.tool_choice.disable_parallel_tool_use),
            ignored_fields=(*known.ignored, *ignored),
        )

    def _read_conversation(
        self, b: _MessagesBody
    ) -> tuple[list[bytes], list[Message], int, tuple[Degradation, ...]]:
        """Return the cache key of each message, the messages, the number of those of the newest message, and changes.

        The changes are those to earlier messages so that they can be read.
        """
        if not b.messages:
            raise field_error("messages", "expected at least one message, got none.")
        system = bytes(b.system)
        keyed_messages = [(b"messages system " + system, m) for m in read_system(system)]
        degraded: dict[Degradation, None] = {}
        newest: list[tuple[bytes, dict[str, Any]]] = []
        for index, part in enumerate(b.messages):
            is_newest = index == len(b.messages) - 1
            newest, changes = self._read_keyed(bytes(part), f"messages[{index}]", is_newest)
            keyed_messages += newest
            degraded.update(dict.fromkeys(changes))
        keyed_messages = merge_assistant_messages(keyed_messages)
        keys = [key for key, _ in keyed_messages]
        messages: list[Message] = [message for _, message in keyed_messages]
        return keys, messages, len(newest), tuple(degraded)

    def _read_keyed(
        self, raw: bytes, place: str, is_newest: bool
    ) -> tuple[list[tuple[bytes, dict[str, Any]]], tuple[Degradation, ...]]:
        """Return the chat messages of one message, each with its cache key, and what reading an earlier one took."""
        try:
            read = ReplayedMessages(self._messages.read(raw, place), ())
        except RequestError:
            if is_newest:
                raise
            read = self._replayed.read(raw, place)
        # The prefix is needed because other dialects read the same bytes differently.
        keyed = [
            (b"messages %d " % number + raw, message)
            for number, message in enumerate(read.messages)
        ]
        return keyed, read.degraded

    @classmethod
    def prompt_too_long(cls, error: PromptTooLong) -> str:
        """Return the message in Anthropic's words, with a plain number: Claude Code reads both numbers."""
        return f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"

    @staticmethod
    def error_body(
        status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> bytes:
        """Return an error body. `code` goes where Anthropic's SDKs look for one."""
        message = readable_text(message)
        if code == "model_not_found":
            message += _UNKNOWN_MODEL_HINT
        other_type = "invalid_request_error" if status < 500 else "api_error"
        error: dict[str, Any] = {
            "type": _ERROR_TYPES.get(status, other_type),
            "message": message,
        }
        if code:
            error["details"] = {"error_code": code}
        return to_json({"type": "error", "error": error, "request_id": None})

    def stream_encoder(self, header: ReplyHeader, request: ChatRequest) -> MessagesStreamEncoder:
        return MessagesStreamEncoder(header)

    def encode_response(
        self, header: ReplyHeader, request: ChatRequest, choices: Sequence[FinishedChoice]
    ) -> bytes:
        (choice,) = choices
        end = {**_stop_fields(choice.end), "usage": _usage_fields(choice.end.usage)}
        return to_json(_message_fields(header) | {"content": _content_blocks(choice)} | end)


class MessagesStreamEncoder:
    """Stream encoder: sends thinking and text as they come, tool calls and the finish when the reply ends.

    Tool calls wait because agents start a tool when its block is complete; by then the exchange must be durable.
    """

    def __init__(self, header: ReplyHeader) -> None:
        self._header = header
        self._started = False
        self._block_index = -1
        # Type of the open block.
        self._block_type = ""
        # Encoded start of its deltas.
        self._delta_head = b""
        self._calls: list[ToolCall] = []

    def encode_part(self, part: StreamPart, choice: int = 0) -> bytes:
        """Return the events of one part; with `part.end` also those that end the message."""
        out = b"" if self._started else self._message_start()
        delta = part.delta
        if delta.reasoning:
            out += self._text_delta("thinking", "thinking", delta.reasoning)
        if delta.content:
            out += self._text_delta("text", "text", delta.content)
        self._calls += delta.calls
        if part.end is not None:
            out += self._finish_events(part.end)
        return out

    def encode_ping(self) -> bytes:
        """See `StreamEncoder`."""
        return b'event: ping\ndata: {"type": "ping"}\n\n'

    def encode_error(self, status: int, message: str, code: str) -> bytes:
        """Return an error event. Neither message_delta nor message_stop follows."""
        return (
            b"event: error\ndata: "
            + MessagesDialect.error_body(status, message, code=code)
            + b"\n\n"
        )

    def _message_start(self) -> bytes:
        self._started = True
        usage = _usage_fields(
            TokenUsage(
                prompt_tokens=self._header.prompt_tokens, completion_tokens=0, reasoning_tokens=0
            )
        )
        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return sse_event("message_start", {"message": _message_fields(self._header) | empty})

    def _text_delta(self, kind: str, key: str, text: str) -> bytes:
        out = b"" if self._block_type == kind else self._open_block(kind, _EMPTY_BLOCKS[kind])
        return out + self._delta_head + to_json(text) + b"}}\n\n"

    def _open_block(self, kind: str, block: Mapping[str, Any]) -> bytes:
        out = self._close_block()
        self._block_index = self._block_index + 1
        self._block_type = kind
        self._delta_head = _DELTA_HEAD % (self._block_index, *_DELTA_KEYS[kind])
        return out + sse_event(
            "content_block_start", {"index": self._block_index, "content_block": block}
        )

    def _close_block(self) -> bytes:
        if not self._block_type:
            return b""
        out = b""
        if self._block_type == "thinking":
            delta = {"type": "signature_delta", "signature": self._header.id}
            out = sse_event("content_block_delta", {"index": self._block_index, "delta": delta})
        self._block_type = ""
        return out + sse_event("content_block_stop", {"index": self._block_index})

    def _tool_use_events(self, call: ToolCall) -> bytes:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        return (
            self._open_block("tool_use", block)
            + self._delta_head
            + to_json(call.arguments)
            + b"}}\n\n"
            + self._close_block()
        )

    def _finish_events(self, end: ReplyEnd) -> bytes:
        ending = {"delta": _stop_fields(end), "usage": _usage_fields(end.usage)}
        calls = b"".join(self._tool_use_events(call) for call in self._calls)
        return (
            calls
            + self._close_block()
            + sse_event("message_delta", ending)
            + sse_event("message_stop", {})
        )


_EMPTY_BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
_DELTA_KEYS = {
    "thinking": (b"thinking_delta", b"thinking"),
    "text": (b"text_delta", b"text"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}
_DELTA_HEAD = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'


def _message_fields(header: ReplyHeader) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", **header_fields(header)}


def _content_blocks(choice: FinishedChoice) -> list[dict[str, Any]]:
    message = choice.message
    out = list[dict[str, Any]]()
    if reasoning := message.get("reasoning_content"):
        out.append({"type": "thinking", "thinking": reasoning, "signature": choice.id})
    if content := message["content"]:
        out.append({"type": "text", "text": content})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        # The model's own JSON.
        arguments = msgspec.Raw(function["arguments"].encode())
        out.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
        )
    return out


def _stop_fields(end: ReplyEnd) -> dict[str, Any]:
    stop = end.stop_string if end.finish_reason is FinishReason.STOP else None
    return {
        "stop_reason": _STOP_REASONS[end.finish_reason] if stop is None else "stop_sequence",
        "stop_sequence": stop,
    }


def _usage_fields(usage: TokenUsage) -> dict[str, Any]:
    """Encode the usage. Anthropic counts cached prompt tokens separately: the whole prompt is the sum."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }


def _read_sampling_fields(b: _MessagesBody) -> Sampling:
    number_in_range(b, "temperature", 0, 1, 1.0)
    return read_sampling(
        b, limit=b.max_tokens, stop=b.stop_sequences, names=("max_tokens", "stop_sequences")
    )


def _template_variables(thinking: _Thinking | None) -> dict[str, Any]:
    if thinking is None:
        return {}
    if thinking.type not in _THINKING_MODES:
        expected = "enabled, adaptive or disabled"
        raise field_error("thinking.type", f"expected {expected}, got {thinking.type[:40]!r}.")
    thinks = _THINKING_MODES[thinking.type]
    return {} if thinks is None else {"enable_thinking": thinks}


def _read_format(b: _MessagesBody) -> tuple[Mapping[str, Any] | None, str]:
    """Return the JSON schema of the reply, or None, and the name of its field."""
    form = b.output_config.format if b.output_config else None
    place = "output_config.format"
    if form is None:
        form = b.output_format
        place = "output_format"
    return read_schema(form, place), place


def _header_session(headers: Mapping[str, str]) -> str | None:
    sent = headers.get(SESSION_HEADER, "")
    return check_id_length(sent, SESSION_HEADER) or None if sent.isascii() else None
