"""OpenAI Chat Completions wire format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.render.caches import TwoGenerationLRU
from openclaw_rl.render.reply_parser import ToolCall
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    FinishedChoice,
    ReplyEnd,
    ReplyHeader,
    StreamPart,
    TokenInfo,
    TokenUsage,
    check_id_length,
    choice_id,
)
from openclaw_rl.serve.dialects.base import token_entry
from openclaw_rl.serve.dialects.openai_chat_tools import read_constraint, read_tool_choice
from openclaw_rl.serve.dialects.validation import (
    SamplingFields,
    check_message,
    check_tool_name,
    decode_json,
    field_error,
    read_kind,
    read_sampling,
    read_top_logprobs,
    replace_images,
)
from openclaw_rl.types import Sampling

CACHE_BYTES = 16 * 2**20  # raw bytes of the messages in the cache
MAX_CHOICES = 16
_encode = msgspec.json.Encoder().encode


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ChatBody(SamplingFields, kw_only=True):
    """Request body, with the keys that are used; all others are accepted and ignored."""

    messages: list[msgspec.Raw]
    model: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    tool_choice: Any = None
    functions: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    user: str | None = None
    session_id: str | None = None
    turn_type: str | None = None
    session_done: bool | None = None


_decoder = msgspec.json.Decoder(_ChatBody)
_message_decoder = msgspec.json.Decoder(dict[str, Any])
_tools_decoder = msgspec.json.Decoder(list[dict[str, Any]] | None)


class ChatDialect:
    """Dialect of the Chat Completions API.

    A temperature below 0.01 is taken and stored as 0 (greedy): such a reply is never trained on. In addition to
    OpenAI's keys a choice has `id`, the id of its exchange (streamed: in the finish chunk), and `stop_reason`, the stop
    string that ended it, if any.
    """

    name = "chat"
    id_prefix = "chatcmpl-"
    done_event = b"data: [DONE]\n\n"

    def __init__(self) -> None:
        self._message_cache: TwoGenerationLRU[bytes, dict[str, Any]] = TwoGenerationLRU(
            CACHE_BYTES, lambda raw, message: len(raw)
        )
        self._tools_cache: TwoGenerationLRU[bytes, Sequence[Mapping[str, Any]]] = TwoGenerationLRU(
            CACHE_BYTES // 4, lambda raw, tools: len(raw)
        )

    def decode(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""
        b = decode_json(_decoder, body)
        raw = [bytes(m) for m in b.messages]
        if not raw:
            raise field_error("messages", "messages: expected at least one message, got none.")
        messages = [self._message_cache.get(m) or self._read_message(m, n) for n, m in enumerate(raw)]
        if b.functions:
            raise field_error("functions", "functions: this deprecated field is not supported; send tools instead.")
        n = 1 if b.n is None else b.n
        if not 1 <= n <= MAX_CHOICES:
            raise field_error("n", f"n: expected 1 to {MAX_CHOICES} choices, got {n}.")
        # With tool_choice none, the prompt has no tools.
        raw_tools = b"" if b.tool_choice == "none" else bytes(b.tools)
        given = self._tools_cache.get(raw_tools) or self._read_tools(raw_tools)
        tools, calls = read_tool_choice(b.tool_choice, given)
        if tools is not given:
            raw_tools = _encode(tools)  # the client's bytes are the cache key of the complete list
        top = read_top_logprobs(b.top_logprobs)
        if top and not b.logprobs:
            raise field_error("top_logprobs", "top_logprobs: requires logprobs: true.")
        return ChatRequest(
            model=b.model or "",
            messages=messages,
            tools=tools,
            sampling=_read_sampling_fields(b),
            n=n,
            constraint=read_constraint(b.response_format, calls, tools),
            parallel_calls=b.parallel_tool_calls is not False,
            template_variables=b.chat_template_kwargs or {},
            stream=bool(b.stream),
            include_usage=bool(b.stream_options and b.stream_options.include_usage),
            logprobs=bool(b.logprobs),
            top_logprobs=top,
            user=check_id_length(b.user or "", "user"),
            session=check_id_length(b.session_id or "", "session_id") or None,
            kind=read_kind(b.turn_type, "turn_type"),
            session_done=bool(b.session_done),
            size=len(body),
            raw=raw,
            raw_tools=raw_tools,
        )

    def _read_message(self, raw: bytes, index: int) -> dict[str, Any]:
        message = replace_images(decode_json(_message_decoder, raw, f"messages[{index}]"))
        check_message(message, f"messages[{index}]")
        self._message_cache.put(raw, message)
        return message

    def _read_tools(self, raw: bytes) -> Sequence[Mapping[str, Any]]:
        tools = (decode_json(_tools_decoder, raw, "tools") if raw else None) or ()
        names: set[str] = set()
        for index, tool in enumerate(tools):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
                raise field_error(
                    f"tools[{index}].function", f"tools[{index}].function: expected an object with a name."
                )
            check_tool_name(function["name"], names, f"tools[{index}].function")
            names.add(function["name"])
        self._tools_cache.put(raw, tools)
        return tools

    @staticmethod
    def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
        """Return an error body."""
        kind = "authentication_error" if status == 401 else "invalid_request_error" if status < 500 else "server_error"
        message = message.encode("utf-8", "replace").decode()  # it may quote a path or header that is not UTF-8
        return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})

    def stream_encoder(self, opening: ReplyHeader, ask: ChatRequest) -> ChatStreamEncoder:
        return ChatStreamEncoder(opening, ask)

    def encode_response(self, opening: ReplyHeader, ask: ChatRequest, choices: Sequence[FinishedChoice]) -> bytes:
        """Return the body of a response that is not streamed."""
        entries = [
            {
                "index": index,
                "id": choice.id,
                "message": {"refusal": None, **choice.message},
                "logprobs": {"content": [token_entry(t) for t in choice.tokens], "refusal": None}
                if ask.logprobs
                else None,
                "finish_reason": choice.end.finish_reason.value,
                **({"stop_reason": choice.end.stop_string} if choice.end.stop_string else {}),
            }
            for index, choice in enumerate(choices)
        ]
        usage = _usage_fields([c.end.usage for c in choices])
        return _encode(_constant_fields(opening, "chat.completion") | {"choices": entries, "usage": usage})


class ChatStreamEncoder:
    """Stream encoder. The constant bytes of each reply's chunks are encoded once."""

    def __init__(self, opening: ReplyHeader, ask: ChatRequest) -> None:
        constant = _encode(_constant_fields(opening, "chat.completion.chunk"))[:-1]
        head = b"data: " + constant
        self._choice_states = [
            _ChoiceState(choice_id(opening.id, i), head + b',"choices":[{"index":%d,"delta":{' % i)
            for i in range(ask.n)
        ]
        self._usage_head = head + b',"choices":[],"usage":'
        self._tail = b'},"logprobs":null,"finish_reason":null}]}\n\n'
        self._logprobs, self._include_usage = ask.logprobs, ask.include_usage
        self._usages: dict[int, TokenUsage] = {}  # by choice, of the replies that have ended

    def encode_part(self, part: StreamPart, choice: int = 0) -> bytes:
        """Return one chunk; with `part.end` also the finish; after the last reply the requested usage and [DONE]."""
        out, reply = b"", self._choice_states[choice]
        if part.delta or part.tokens or reply.is_first:
            out = (
                reply.head
                + reply.encode_delta(part)
                + (self._with_logprobs(part.tokens) if self._logprobs else self._tail)
            )
        if part.end is not None:
            out += reply.head + _finish_chunk(reply.id, part.end)
            self._usages[choice] = part.end.usage
            if len(self._usages) == len(self._choice_states):
                out += self._stream_end()
        return out

    def encode_error(self, status: int, message: str, code: str) -> bytes:
        """Return an error. Neither a finish nor [DONE] follows."""
        return b"data: " + ChatDialect.error_body(status, message, code=code) + b"\n\n"

    def _with_logprobs(self, tokens: Sequence[TokenInfo]) -> bytes:
        content = _encode([token_entry(t) for t in tokens])
        return b'},"logprobs":{"content":' + content + b',"refusal":null},"finish_reason":null}]}\n\n'

    def _stream_end(self) -> bytes:
        if not self._include_usage:
            return ChatDialect.done_event
        usages = [self._usages[i] for i in range(len(self._usages))]
        return self._usage_head + _encode(_usage_fields(usages)) + b"}\n\n" + ChatDialect.done_event


class _ChoiceState:
    """Stream state of one choice."""

    def __init__(self, id: str, head: bytes) -> None:
        self.id, self.head, self.is_first, self._call_count = id, head, True, 0

    def encode_delta(self, part: StreamPart) -> bytes:
        delta, fields = part.delta, []
        if self.is_first:
            self.is_first = False
            fields.append(b'"role":"assistant"')
            if not delta.content:
                fields.append(b'"content":""')
        if delta.reasoning:
            fields.append(b'"reasoning_content":' + _encode(delta.reasoning))
        if delta.content:
            fields.append(b'"content":' + _encode(delta.content))
        if delta.calls:
            fields.append(b'"tool_calls":' + _encode([self._tool_call_delta(c) for c in delta.calls]))
        return b",".join(fields)

    def _tool_call_delta(self, call: ToolCall) -> dict[str, Any]:
        index, self._call_count = self._call_count, self._call_count + 1
        return {"index": index, **call.to_openai()}


def _finish_chunk(id: str, end: ReplyEnd) -> bytes:
    stop = b',"stop_reason":' + _encode(end.stop_string) if end.stop_string else b""
    head = b'},"id":' + _encode(id) + b',"logprobs":null,"finish_reason":"'
    return head + end.finish_reason.value.encode() + b'"' + stop + b"}]}\n\n"


def _constant_fields(opening: ReplyHeader, kind: str) -> dict[str, Any]:
    return {
        "id": opening.id,
        "object": kind,
        "created": opening.created,
        "model": opening.model,
        "system_fingerprint": f"v{opening.version}",
    }


def _usage_fields(usages: Sequence[TokenUsage]) -> dict[str, Any]:
    """Encode the usage of all replies. Cached prompt tokens are those that the first reply found, i.e. the minimum."""
    prompt, completion = usages[0].prompt_tokens, sum(u.completion_tokens for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(u.cached_tokens for u in usages)},
        "completion_tokens_details": {"reasoning_tokens": sum(u.reasoning_tokens for u in usages)},
    }


def _read_sampling_fields(b: _ChatBody) -> Sampling:
    name = "max_tokens" if b.max_completion_tokens is None else "max_completion_tokens"
    return read_sampling(b, limit=getattr(b, name), stop=b.stop, names=(name, "stop"))
