"""OpenAI Chat Completions wire format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from openclaw_rl.common.client_ids import may_have_id
from openclaw_rl.errors import RequestError
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.render.reply_parser import Delta, ToolCall
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    FinishedChoice,
    ReplyEnd,
    ReplyHeader,
    ResponseConstraint,
    StreamPart,
    TokenUsage,
    check_id_length,
    choice_id,
    field_error,
)
from openclaw_rl.serve.dialects.base import (
    MESSAGE_CACHE_BYTES,
    SSE_COMMENT,
    TOOLS_CACHE_BYTES,
    Dialect,
    RawCache,
    header_fields,
    openai_usage,
    token_entry,
)
from openclaw_rl.serve.dialects.forced_format import FORMAT_KEYS, read_constraint
from openclaw_rl.serve.dialects.openai_chat_options import read_ignored, read_keys
from openclaw_rl.serve.dialects.prompt_tools import (
    PromptTools,
    ToolChoice,
    read_schema,
)
from openclaw_rl.serve.dialects.replayed_chat import read_replayed_message
from openclaw_rl.serve.dialects.validation import (
    OpenAIBody,
    check_message,
    decode_json,
    read_kind,
    read_parts,
    read_sampling,
    read_top_logprobs,
    take_prefix,
)
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Message, Sampling

MAX_CHOICES = 16


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ChatBody(OpenAIBody, kw_only=True):
    """Request body, with the keys that are used; `openai_chat_options` handles all others."""

    messages: list[msgspec.Raw]
    functions: Any = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    logprobs: bool | None = None
    response_format: Any = None
    store: bool | None = None
    metadata: Any = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    return_token_ids: bool | None = None


class _CommonChatBody(_ChatBody, kw_only=True, forbid_unknown_fields=True):
    """Request body without any other key, as most are. The JSON of its keys is not needed."""


_decoder = msgspec.json.Decoder(_ChatBody)
_common_decoder = msgspec.json.Decoder(_CommonChatBody)
_KNOWN_KEYS = frozenset(_ChatBody.__struct_fields__) | FORMAT_KEYS
_message_decoder = msgspec.json.Decoder(dict[str, Any])
_tools_decoder = msgspec.json.Decoder(list[dict[str, Any]] | None)


class ChatDialect(Dialect):
    """Dialect of the Chat Completions API.

    A temperature below 0.01 is taken and stored as 0 (greedy): such a reply is never trained on. In addition to
    OpenAI's keys a choice has `id`, the id of its exchange (streamed: in the finish chunk), and `stop_reason`, the stop
    string that ended it, if any.
    """

    name = "chat"
    path = "/v1/chat/completions"
    done_event = b"data: [DONE]\n\n"

    def __init__(self) -> None:
        self._messages = RawCache(MESSAGE_CACHE_BYTES, _read_message)
        self._replayed = RawCache(MESSAGE_CACHE_BYTES, read_replayed_message)
        self._tools = RawCache(TOOLS_CACHE_BYTES, _read_tools)

    def decode(self, body: bytes, headers: Mapping[str, str]) -> ChatRequest:
        b, fields = _decode_body(body)
        raw, messages, degraded = self._read_messages(b)
        known = self._tools.read(bytes(b.tools), "tools")
        choice = known.read_choice(b.tool_choice, _function_name, nested="allowed_tools")
        tools, raw_tools = known.select(choice)
        ignored = read_ignored(fields, _KNOWN_KEYS)
        if b.metadata and not may_have_id(b.metadata):
            ignored = sorted([*ignored, "metadata"])
        prefix = _take_prefix(b, raw, messages, ignored)
        constraint = _read_constraint(b, fields, choice, tools, ignored)
        return ChatRequest(
            model=b.model or "",
            messages=messages,
            prefix=prefix,
            newest_count=1 if prefix is None else 0,
            degraded=degraded,
            tools=tools,
            sampling=_read_sampling_fields(b),
            n=_read_n(b),
            constraint=constraint,
            reasoning_effort=b.reasoning_effort or "",
            return_token_ids=bool(b.return_token_ids),
            may_store=b.store is not False,
            ignored_fields=tuple(ignored),
            parallel_calls=b.parallel_tool_calls is not False,
            template_variables=b.chat_template_kwargs or {},
            stream=bool(b.stream),
            include_usage=bool(b.stream_options and b.stream_options.include_usage),
            logprobs=bool(b.logprobs),
            top_logprobs=_read_top_logprobs(b),
            user=b.read_user(),
            session=check_id_length(b.session_id or "", "session_id") or None,
            metadata=b.metadata if isinstance(b.metadata, dict) else {},
            kind=read_kind(b.turn_type, "turn_type"),
            session_done=bool(b.session_done),
            size=len(body),
            raw=raw,
            raw_tools=raw_tools,
        )

    def _read_messages(
        self, b: _ChatBody
    ) -> tuple[list[bytes], list[dict[str, Any]], tuple[Degradation, ...]]:
        """Return the JSON of each message, the messages, and how earlier ones were changed so that they can be read."""
        if b.functions:
            raise field_error(
                "functions", "this deprecated field is not supported; send tools instead."
            )
        if not b.messages:
            raise field_error("messages", "expected at least one message, got none.")
        newest = len(b.messages) - 1
        raw: list[bytes] = []
        messages: list[dict[str, Any]] = []
        degraded: dict[Degradation, None] = {}
        for index, sent in enumerate(map(bytes, b.messages)):
            place = f"messages[{index}]"
            try:
                read = [self._messages.read(sent, place)]
            except RequestError:
                if index == newest:
                    raise
                read, changes = self._replayed.read(sent, place)
                degraded.update(dict.fromkeys(changes))
            raw += [sent] * len(read)
            messages += read
        return raw, messages, tuple(degraded)

    def stream_encoder(self, header: ReplyHeader, request: ChatRequest) -> ChatStreamEncoder:
        return ChatStreamEncoder(header, request)

    def encode_response(
        self, header: ReplyHeader, request: ChatRequest, choices: Sequence[FinishedChoice]
    ) -> bytes:
        response = _constant_fields(header, "chat.completion")
        response["choices"] = [
            _choice_fields(index, choice, request) for index, choice in enumerate(choices)
        ]
        response["usage"] = _total_usage([choice.end.usage for choice in choices])
        if header.prompt_ids is not None:
            response["prompt_token_ids"] = header.prompt_ids
        return to_json(response)


def _choice_fields(index: int, choice: FinishedChoice, request: ChatRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": index,
        "id": choice.id,
        "message": {"refusal": None, **choice.message},
        "logprobs": None,
        "finish_reason": choice.end.finish_reason.value,
    }
    if request.logprobs:
        tokens = [token_entry(token) for token in choice.tokens]
        fields["logprobs"] = {"content": tokens, "refusal": None}
    if choice.end.stop_string:
        fields["stop_reason"] = choice.end.stop_string
    if request.return_token_ids:
        fields["token_ids"] = choice.token_ids
    return fields


def _decode_body(body: bytes) -> tuple[_ChatBody, Mapping[str, msgspec.Raw]]:
    """Return the body, and the JSON of its keys where one of them needs a look. Raises `RequestError`."""
    try:
        return _common_decoder.decode(body), {}
    except (msgspec.DecodeError, ValueError, RecursionError):
        # Another key, or an error, of which the other decoder has the description.
        return decode_json(_decoder, body), read_keys(body)


def _read_n(b: _ChatBody) -> int:
    n = 1 if b.n is None else b.n
    if not 1 <= n <= MAX_CHOICES:
        raise field_error("n", f"expected 1 to {MAX_CHOICES} choices, got {n}.")
    return n


def _read_top_logprobs(b: _ChatBody) -> int:
    top = read_top_logprobs(b.top_logprobs)
    if top and not b.logprobs:
        raise field_error("top_logprobs", "requires logprobs: true.")
    return top


def _take_prefix(
    b: _ChatBody, raw: list[bytes], messages: list[dict[str, Any]], ignored: list[str]
) -> Message | None:
    """Remove and return the last message if the reply continues it. Adds to `ignored`."""
    if b.continue_final_message:
        if b.add_generation_prompt:
            raise field_error(
                "continue_final_message", "conflicts with add_generation_prompt: true. Send one."
            )
        return take_prefix(raw, messages, "continue_final_message")
    if b.add_generation_prompt is False:
        ignored.append(
            "add_generation_prompt: false (continue_final_message: true continues a message)"
        )
    return None


def _read_constraint(
    b: _ChatBody,
    fields: Mapping[str, msgspec.Raw],
    choice: ToolChoice,
    tools: Sequence[Mapping[str, Any]],
    ignored: list[str],
) -> ResponseConstraint | None:
    """Return the constraint on the reply, or None. Adds to `ignored`."""
    schema = read_schema(b.response_format, "response_format", nested="json_schema")
    if choice.forced and schema is not None:
        ignored.append("response_format (tool_choice requires a call)")
    return read_constraint(fields, choice, schema, "response_format", tools)


def _read_message(raw: bytes, place: str) -> dict[str, Any]:
    message = read_parts(decode_json(_message_decoder, raw, place))
    check_message(message, place)
    return message


def _read_tools(raw: bytes, place: str) -> PromptTools:
    tools = PromptTools()
    for index, tool in enumerate(decode_json(_tools_decoder, raw or b"null", place) or ()):
        where = f"{place}[{index}].function"
        if not _name_of(tool):
            raise field_error(where, "expected an object with a name.")
        tools.add(tool, where)
    return tools


def _name_of(tool: Mapping[str, Any]) -> str | None:
    """Return the name of the function of a tool or of a choice; None if it has no name."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _function_name(choice: Mapping[str, Any], place: str) -> str:
    name = _name_of(choice)
    if name is None or choice.get("type") != "function":
        raise field_error(place, "expected {type: function, function: {name: ...}}.")
    return name


class ChatStreamEncoder:
    """Stream encoder. The constant bytes of each reply's chunks are encoded once."""

    def __init__(self, header: ReplyHeader, request: ChatRequest) -> None:
        constant = to_json(_constant_fields(header, "chat.completion.chunk"))[:-1]
        head = b"data: " + constant
        self._choice_states = [
            _ChoiceState(choice_id(header.id, i), head + b',"choices":[{"index":%d,"delta":{' % i)
            for i in range(request.n)
        ]
        self._usage_head = head + b',"choices":[],"usage":'
        # Sent in the first chunk.
        self._prompt_ids = None if header.prompt_ids is None else to_json(header.prompt_ids)
        self._logprobs = request.logprobs
        self._include_usage = request.include_usage
        # By choice, of the replies that have ended.
        self._usages: dict[int, TokenUsage] = {}

    def encode_part(self, part: StreamPart, choice: int = 0) -> bytes:
        """Return one chunk; with `part.end` also the finish; after the last reply the requested usage and [DONE]."""
        reply = self._choice_states[choice]
        has_content = bool(part.delta or part.tokens or part.token_ids)
        chunks = b""
        if has_content or reply.is_first:
            chunks = b"".join(
                reply.head + reply.encode_delta(one) + self._chunk_tail(one)
                for one in _content_before_calls(part)
            )
        if part.end is not None:
            chunks += reply.head + _finish_chunk(reply.id, part.end)
            self._usages[choice] = part.end.usage
            if len(self._usages) == len(self._choice_states):
                chunks += self._stream_end()
        return chunks

    def encode_ping(self) -> bytes:
        """See `StreamEncoder`."""
        return SSE_COMMENT

    def encode_error(self, status: int, message: str, code: str) -> bytes:
        """Return an error. Neither a finish nor [DONE] follows."""
        return b"data: " + ChatDialect.error_body(status, message, code=code) + b"\n\n"

    def _chunk_tail(self, part: StreamPart) -> bytes:
        ids = b""
        if part.token_ids:
            ids = b',"token_ids":' + to_json(part.token_ids)
        logprobs = b"null"
        if self._logprobs:
            tokens = [token_entry(token) for token in part.tokens]
            logprobs = b'{"content":' + to_json(tokens) + b',"refusal":null}'
        prompt = b""
        if self._prompt_ids is not None:
            prompt = b',"prompt_token_ids":' + self._prompt_ids
            self._prompt_ids = None
        return (
            b"}" + ids + b',"logprobs":' + logprobs + b',"finish_reason":null}]' + prompt + b"}\n\n"
        )

    def _stream_end(self) -> bytes:
        if not self._include_usage:
            return ChatDialect.done_event
        usages = [self._usages[i] for i in range(len(self._usages))]
        return self._usage_head + to_json(_total_usage(usages)) + b"}\n\n" + ChatDialect.done_event


class _ChoiceState:
    """Stream state of one choice."""

    def __init__(self, id: str, head: bytes) -> None:
        self.id = id
        self.head = head
        self.is_first = True
        self._call_count = 0

    def encode_delta(self, part: StreamPart) -> bytes:
        delta = part.delta
        fields = []
        if self.is_first:
            self.is_first = False
            fields.append(b'"role":"assistant"')
            if not delta.content:
                fields.append(b'"content":null' if delta.calls else b'"content":""')
        if delta.reasoning:
            fields.append(b'"reasoning_content":' + to_json(delta.reasoning))
        if delta.content:
            fields.append(b'"content":' + to_json(delta.content))
        if delta.calls:
            calls = [self._tool_call_delta(call) for call in delta.calls]
            fields.append(b'"tool_calls":' + to_json(calls))
        return b",".join(fields)

    def _tool_call_delta(self, call: ToolCall) -> dict[str, Any]:
        index = self._call_count
        self._call_count = self._call_count + 1
        return {"index": index, **call.to_openai()}


def _content_before_calls(part: StreamPart) -> list[StreamPart]:
    """Return the parts of a chunk each: some clients drop the calls of a chunk that has content, too."""
    delta = part.delta
    if not (delta.content and delta.calls):
        return [part]
    content = replace(part, delta=delta._replace(calls=()))
    return [content, StreamPart(delta=Delta(calls=delta.calls))]


def _finish_chunk(id: str, end: ReplyEnd) -> bytes:
    stop = b',"stop_reason":' + to_json(end.stop_string) if end.stop_string else b""
    head = b'},"id":' + to_json(id) + b',"logprobs":null,"finish_reason":"'
    return head + end.finish_reason.value.encode() + b'"' + stop + b"}]}\n\n"


def _constant_fields(header: ReplyHeader, kind: str) -> dict[str, Any]:
    return {"object": kind, "created": header.created, **header_fields(header)}


def _total_usage(usages: Sequence[TokenUsage]) -> dict[str, Any]:
    """Encode the usage of all replies. Cached prompt tokens are those that the first reply found, i.e. the minimum."""
    total = TokenUsage(
        prompt_tokens=usages[0].prompt_tokens,
        completion_tokens=sum(u.completion_tokens for u in usages),
        reasoning_tokens=sum(u.reasoning_tokens for u in usages),
        cached_tokens=min(u.cached_tokens for u in usages),
    )
    return openai_usage(total, "prompt_tokens", "completion_tokens")


def _read_sampling_fields(b: _ChatBody) -> Sampling:
    name = "max_tokens" if b.max_completion_tokens is None else "max_completion_tokens"
    return read_sampling(b, limit=getattr(b, name), stop=b.stop, names=(name, "stop"))
