"""Anthropic Messages wire format. `anthropic_input` reads the messages, `anthropic_tools` the tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from openclaw_rl.render.caches import Recent
from openclaw_rl.render.reply_parser import ToolCall
from openclaw_rl.serve.chat_request import Ask, Choice, End, Opening, Part, Usage, checked_id
from openclaw_rl.serve.dialects.anthropic_input import merged, read_message, read_system, read_user
from openclaw_rl.serve.dialects.anthropic_tools import ToolChoice, forced, read_choice, read_tools
from openclaw_rl.serve.dialects.validation import SamplingFields, bad, decode_json, ranged, read_sampling
from openclaw_rl.types import FinishReason, Message, Sampling

CACHE_BYTES = 16 * 2**20  # raw bytes of the messages in the cache
SESSION_HEADER = "X-Claude-Code-Session-Id"
_THINKS = {"enabled": True, "disabled": False, "adaptive": None, "between_tools": None}  # None: the model's default
_REASONS = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens", FinishReason.TOOL_CALLS: "tool_use"}
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_REFUSES_SYSTEM = re.compile(r"chat template refuses.*\bsystem\b", re.IGNORECASE)
_UNKNOWN_MODEL = (
    " Set the client's model to that name (Claude Code: ANTHROPIC_MODEL and ANTHROPIC_DEFAULT_HAIKU_MODEL), "
    "or serve.any_model on the gateway."
)
# Anthropic's wording, which Claude Code recognises: it then sends the same text as a user message.
_NO_SYSTEM = " (role 'system' is not supported on this model but as the first message.)"
_encode = msgspec.json.Encoder().encode


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Thinking(msgspec.Struct):
    type: str
    display: str | None = None


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None


class _Body(SamplingFields, kw_only=True):
    """Request body, with the keys that are used; all others are accepted and ignored."""

    messages: list[msgspec.Raw]
    model: str | None = None
    max_tokens: int | None = None
    system: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None  # earlier name of output_config.format
    metadata: _Metadata | None = None


_decoder = msgspec.json.Decoder(_Body)


class _Tools(NamedTuple):
    shown: Sequence[Mapping[str, Any]]
    ignored: tuple[str, ...]


class MessagesDialect:
    """Dialect of the Messages API. A temperature below 0.01 is taken as 0 (greedy)."""

    name = "messages"
    id_prefix = "msg_"

    def __init__(self) -> None:
        self._messages: Recent[bytes, list[dict[str, Any]]] = Recent(CACHE_BYTES, lambda raw, messages: len(raw))
        self._tools: Recent[bytes, _Tools] = Recent(CACHE_BYTES // 4, lambda raw, tools: len(raw))

    def decode(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""
        b = decode_json(_decoder, body)
        if b.max_tokens is None:
            raise bad("max_tokens", "max_tokens: this field is required; expected the maximum number of reply tokens.")
        return self._ask(b, headers, len(body))

    def decode_count(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Decode the body of a token count request, in which `max_tokens` is optional."""
        return self._ask(decode_json(_decoder, body), headers, len(body))

    def _ask(self, b: _Body, headers: Mapping[str, str], size: int) -> Ask:
        raw, messages = self._conversation(b)
        hidden = b.tool_choice is not None and b.tool_choice.type == "none"
        raw_tools = b"" if hidden else bytes(b.tools)
        tools = self._tools.get(raw_tools) or self._read_tools(raw_tools)
        user, session = read_user((b.metadata and b.metadata.user_id) or "")
        return Ask(
            model=b.model or "",
            messages=messages,
            tools=tools.shown,
            sampling=_sampling(b),
            template=_template(b.thinking),
            stream=bool(b.stream),
            user=checked_id(user, "metadata.user_id"),
            session=checked_id(session, "metadata.user_id") or _session(headers),
            size=size,
            raw=raw,
            raw_tools=b"messages " + raw_tools if tools.shown else b"",
            dialect=self.name,
            id_prefix=self.id_prefix,
            forced=forced(read_choice(b.tool_choice, tools.shown), *_schema(b)),
            parallel_calls=not (b.tool_choice and b.tool_choice.disable_parallel_tool_use),
            ignored=tools.ignored,
        )

    def _conversation(self, b: _Body) -> tuple[list[bytes], list[Message]]:
        """Return the cache key of each message, and the messages."""
        if not b.messages:
            raise bad("messages", "messages: expected at least one message, got none.")
        system = bytes(b.system)
        given = [(b"messages system " + system, m) for m in read_system(system)]
        for index, part in enumerate(b.messages):
            raw = bytes(part)
            for number, message in enumerate(self._messages.get(raw) or self._read_message(raw, index)):
                # The prefix is needed because other dialects read the same bytes differently.
                given.append((b"messages %d " % number + raw, message))
        if given[-1][1]["role"] == "assistant":
            raise bad("messages", "messages: the last one has role assistant; prefilling a reply is not supported.")
        given = merged(given)
        return [key for key, _ in given], [message for _, message in given]

    def _read_message(self, raw: bytes, index: int) -> list[dict[str, Any]]:
        messages = read_message(raw, f"messages[{index}]")
        self._messages.put(raw, messages)
        return messages

    def _read_tools(self, raw: bytes) -> _Tools:
        tools = _Tools(*read_tools(raw))
        self._tools.put(raw, tools)
        return tools

    @staticmethod
    def error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
        """Return an error body. `code` goes where Anthropic's SDKs look for one."""
        message = message.encode("utf-8", "replace").decode()  # it may quote a path or header that is not UTF-8
        if code == "model_not_found":
            message += _UNKNOWN_MODEL
        if _REFUSES_SYSTEM.search(message):
            message += _NO_SYSTEM
        kind = _KINDS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
        error: dict[str, Any] = {"type": kind, "message": message}
        if code:
            error["details"] = {"error_code": code}
        return _encode({"type": "error", "error": error, "request_id": None})

    def stream(self, opening: Opening, ask: Ask) -> MessagesStream:
        return MessagesStream(opening)

    def final(self, opening: Opening, ask: Ask, choices: Sequence[Choice]) -> bytes:
        """Return the body of a response that is not streamed."""
        (choice,) = choices
        end = {**_ending(choice.end), "usage": _usage(choice.end.usage)}
        return _encode(_message(opening) | {"content": _blocks(choice)} | end)

    def counted(self, tokens: int) -> bytes:
        """Return the body of the response to a token count request."""
        return _encode({"input_tokens": tokens})


class MessagesStream:
    """Stream encoder: thinking and text are sent as they come, tool calls and the finish with the reply's end.

    Tool calls wait because agents start a tool when its block is complete; by then the exchange must be durable.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._started = False
        self._index = -1
        self._kind = ""  # type of the open block
        self._head = b""  # encoded start of its deltas
        self._calls: list[ToolCall] = []

    def part(self, part: Part, choice: int = 0) -> bytes:
        """Return the events of one part; with `part.end` also those that end the message."""
        out = b"" if self._started else self._start()
        delta = part.delta
        if delta.reasoning:
            out += self._words("thinking", "thinking", delta.reasoning)
        if delta.content:
            out += self._words("text", "text", delta.content)
        self._calls += delta.calls
        return out if part.end is None else out + self._end(part.end)

    def broken(self, status: int, message: str, code: str) -> bytes:
        """Return an error event. Neither message_delta nor message_stop follows."""
        return b"event: error\ndata: " + MessagesDialect.error(status, message, code=code) + b"\n\n"

    def _start(self) -> bytes:
        self._started = True
        usage = _usage(Usage(prompt=self._opening.prompt, completion=0, reasoning=0))
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", {"message": _message(self._opening) | empty})

    def _words(self, kind: str, key: str, words: str) -> bytes:
        out = b"" if self._kind == kind else self._open(kind, _BLOCKS[kind])
        return out + self._head + _encode(words) + b"}}\n\n"

    def _open(self, kind: str, block: Mapping[str, Any]) -> bytes:
        out = self._close()
        self._index, self._kind = self._index + 1, kind
        self._head = _DELTA % (self._index, *_DELTAS[kind])
        return out + _event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        out = b""
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": self._opening.id}
            out = _event("content_block_delta", {"index": self._index, "delta": delta})
        self._kind = ""
        return out + _event("content_block_stop", {"index": self._index})

    def _call(self, call: ToolCall) -> bytes:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        return self._open("tool_use", block) + self._head + _encode(call.arguments) + b"}}\n\n" + self._close()

    def _end(self, end: End) -> bytes:
        ending = {"delta": _ending(end), "usage": _usage(end.usage)}
        calls = b"".join(self._call(call) for call in self._calls)
        return calls + self._close() + _event("message_delta", ending) + _event("message_stop", {})


_BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
_DELTAS = {
    "thinking": (b"thinking_delta", b"thinking"),
    "text": (b"text_delta", b"text"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s","%s":'


def _event(name: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"


def _message(opening: Opening) -> dict[str, Any]:
    return {
        "id": opening.id,
        "type": "message",
        "role": "assistant",
        "model": opening.model,
        "system_fingerprint": f"v{opening.version}",
    }


def _blocks(choice: Choice) -> list[dict[str, Any]]:
    message, out = choice.message, list[dict[str, Any]]()
    if reasoning := message.get("reasoning_content"):
        out.append({"type": "thinking", "thinking": reasoning, "signature": choice.id})
    if content := message["content"]:
        out.append({"type": "text", "text": content})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = msgspec.Raw(function["arguments"].encode())  # the model's own JSON
        out.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return out


def _ending(end: End) -> dict[str, Any]:
    stop = end.stop if end.reason is FinishReason.STOP else None
    return {"stop_reason": _REASONS[end.reason] if stop is None else "stop_sequence", "stop_sequence": stop}


def _usage(usage: Usage) -> dict[str, Any]:
    """Encode the usage. Anthropic counts cached prompt tokens separately: the whole prompt is the sum."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "service_tier": "standard",
    }


def _sampling(b: _Body) -> Sampling:
    ranged(b, "temperature", 0, 1, 1.0)
    return read_sampling(b, limit=b.max_tokens, stop=b.stop_sequences, names=("max_tokens", "stop_sequences"))


def _template(thinking: _Thinking | None) -> dict[str, Any]:
    if thinking is None:
        return {}
    if thinking.type not in _THINKS:
        expected = "enabled, adaptive or disabled"
        raise bad("thinking.type", f"thinking.type: expected {expected}, got {thinking.type[:40]!r}.")
    thinks = _THINKS[thinking.type]
    return {} if thinks is None else {"enable_thinking": thinks}


def _schema(b: _Body) -> tuple[Mapping[str, Any] | None, str]:
    """Return the JSON schema of the reply, or None, and the name of its field."""
    place, wanted = "output_config.format", b.output_config.format if b.output_config else None
    if wanted is None:
        place, wanted = "output_format", b.output_format
    if wanted is None:
        return None, place
    if wanted.type != "json_schema" or wanted.schema is None:
        raise bad(place, f"{place}: expected {{type: json_schema, schema: ...}}.")
    return wanted.schema, place


def _session(headers: Mapping[str, str]) -> str | None:
    sent = headers.get(SESSION_HEADER, "")
    return checked_id(sent, SESSION_HEADER) or None if sent.isascii() else None
