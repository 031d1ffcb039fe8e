"""OpenAI Chat Completions wire format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw_rl.render.caches import Recent
from openclaw_rl.render.reply_parser import ToolCall
from openclaw_rl.serve.chat_request import Ask, Choice, End, Opening, Part, TokenInfo, Usage, checked_id, choice_id
from openclaw_rl.serve.dialects.base import token_entry
from openclaw_rl.serve.dialects.openai_chat_tools import read_forced, read_tool_choice
from openclaw_rl.serve.dialects.validation import (
    SamplingFields,
    bad,
    check_message,
    check_name,
    decode_json,
    read_kind,
    read_sampling,
    read_top_logprobs,
    told,
)
from openclaw_rl.types import Sampling

CACHE_BYTES = 16 * 2**20  # raw bytes of the messages in the cache
MAX_CHOICES = 16
_encode = msgspec.json.Encoder().encode


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(SamplingFields, kw_only=True):
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


_decoder = msgspec.json.Decoder(_Body)
_message = msgspec.json.Decoder(dict[str, Any])
_tool_list = msgspec.json.Decoder(list[dict[str, Any]] | None)


class ChatDialect:
    """Dialect of the Chat Completions API.

    A temperature below 0.01 is taken and stored as 0 (greedy): such a reply is never trained on. In addition to
    OpenAI's keys a choice has `id`, the id of its exchange (streamed: in the finish chunk), and `stop_reason`, the stop
    string that ended it, if any.
    """

    name = "chat"
    id_prefix = "chatcmpl-"
    done = b"data: [DONE]\n\n"

    def __init__(self) -> None:
        self._messages: Recent[bytes, dict[str, Any]] = Recent(CACHE_BYTES, lambda raw, message: len(raw))
        self._tools: Recent[bytes, Sequence[Mapping[str, Any]]] = Recent(CACHE_BYTES // 4, lambda raw, tools: len(raw))

    def decode(self, body: bytes, headers: Mapping[str, str]) -> Ask:
        """Decode a body. Raises `RequestError` that names the field and what was expected."""
        b = decode_json(_decoder, body)
        raw = [bytes(m) for m in b.messages]
        if not raw:
            raise bad("messages", "messages: expected at least one message, got none.")
        messages = [self._messages.get(m) or self._read_message(m, n) for n, m in enumerate(raw)]
        if b.functions:
            raise bad("functions", "functions: this deprecated field is not supported; send tools instead.")
        n = 1 if b.n is None else b.n
        if not 1 <= n <= MAX_CHOICES:
            raise bad("n", f"n: expected 1 to {MAX_CHOICES} choices, got {n}.")
        # With tool_choice none, the prompt has no tools.
        raw_tools = b"" if b.tool_choice == "none" else bytes(b.tools)
        given = self._tools.get(raw_tools) or self._read_tools(raw_tools)
        tools, calls = read_tool_choice(b.tool_choice, given)
        if tools is not given:
            raw_tools = _encode(tools)  # the client's bytes are the cache key of the complete list
        top = read_top_logprobs(b.top_logprobs)
        if top and not b.logprobs:
            raise bad("top_logprobs", "top_logprobs: requires logprobs: true.")
        return Ask(
            model=b.model or "",
            messages=messages,
            tools=tools,
            sampling=_sampling(b),
            n=n,
            forced=read_forced(b.response_format, calls, tools),
            parallel_calls=b.parallel_tool_calls is not False,
            template=b.chat_template_kwargs or {},
            stream=bool(b.stream),
            include_usage=bool(b.stream_options and b.stream_options.include_usage),
            logprobs=bool(b.logprobs),
            top_logprobs=top,
            user=checked_id(b.user or "", "user"),
            session=checked_id(b.session_id or "", "session_id") or None,
            kind=read_kind(b.turn_type, "turn_type"),
            session_done=bool(b.session_done),
            size=len(body),
            raw=raw,
            raw_tools=raw_tools,
        )

    def _read_message(self, raw: bytes, index: int) -> dict[str, Any]:
        message = told(decode_json(_message, raw, f"messages[{index}]"))
        check_message(message, f"messages[{index}]")
        self._messages.put(raw, message)
        return message

    def _read_tools(self, raw: bytes) -> Sequence[Mapping[str, Any]]:
        tools = (decode_json(_tool_list, raw, "tools") if raw else None) or ()
        names: set[str] = set()
        for index, tool in enumerate(tools):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
                raise bad(f"tools[{index}].function", f"tools[{index}].function: expected an object with a name.")
            check_name(function["name"], names, f"tools[{index}].function")
            names.add(function["name"])
        self._tools.put(raw, tools)
        return tools

    @staticmethod
    def error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
        """Return an error body."""
        kind = "authentication_error" if status == 401 else "invalid_request_error" if status < 500 else "server_error"
        message = message.encode("utf-8", "replace").decode()  # it may quote a path or header that is not UTF-8
        return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})

    def stream(self, opening: Opening, ask: Ask) -> ChatStream:
        return ChatStream(opening, ask)

    def final(self, opening: Opening, ask: Ask, choices: Sequence[Choice]) -> bytes:
        """Return the body of a response that is not streamed."""
        entries = [
            {
                "index": index,
                "id": choice.id,
                "message": {"refusal": None, **choice.message},
                "logprobs": {"content": [token_entry(t) for t in choice.tokens], "refusal": None}
                if ask.logprobs
                else None,
                "finish_reason": choice.end.reason.value,
                **({"stop_reason": choice.end.stop} if choice.end.stop else {}),
            }
            for index, choice in enumerate(choices)
        ]
        usage = _usage([c.end.usage for c in choices])
        return _encode(_constant(opening, "chat.completion") | {"choices": entries, "usage": usage})


class ChatStream:
    """Stream encoder. The constant bytes of each reply's chunks are encoded once."""

    def __init__(self, opening: Opening, ask: Ask) -> None:
        constant = _encode(_constant(opening, "chat.completion.chunk"))[:-1]
        head = b"data: " + constant
        self._replies = [
            _Reply(choice_id(opening.id, i), head + b',"choices":[{"index":%d,"delta":{' % i) for i in range(ask.n)
        ]
        self._usage_head = head + b',"choices":[],"usage":'
        self._tail = b'},"logprobs":null,"finish_reason":null}]}\n\n'
        self._logprobs, self._include_usage = ask.logprobs, ask.include_usage
        self._usages: dict[int, Usage] = {}  # by choice, of the replies that have ended

    def part(self, part: Part, choice: int = 0) -> bytes:
        """Return one chunk; with `part.end` also the finish; after the last reply the requested usage and [DONE]."""
        out, reply = b"", self._replies[choice]
        if part.delta or part.tokens or reply.first:
            out = reply.head + reply.delta(part) + (self._with_logprobs(part.tokens) if self._logprobs else self._tail)
        if part.end is not None:
            out += reply.head + _finish(reply.id, part.end)
            self._usages[choice] = part.end.usage
            if len(self._usages) == len(self._replies):
                out += self._last()
        return out

    def broken(self, status: int, message: str, code: str) -> bytes:
        """Return an error. Neither a finish nor [DONE] follows."""
        return b"data: " + ChatDialect.error(status, message, code=code) + b"\n\n"

    def _with_logprobs(self, tokens: Sequence[TokenInfo]) -> bytes:
        content = _encode([token_entry(t) for t in tokens])
        return b'},"logprobs":{"content":' + content + b',"refusal":null},"finish_reason":null}]}\n\n'

    def _last(self) -> bytes:
        if not self._include_usage:
            return ChatDialect.done
        usages = [self._usages[i] for i in range(len(self._usages))]
        return self._usage_head + _encode(_usage(usages)) + b"}\n\n" + ChatDialect.done


class _Reply:
    """Stream state of one choice."""

    def __init__(self, id: str, head: bytes) -> None:
        self.id, self.head, self.first, self._calls = id, head, True, 0

    def delta(self, part: Part) -> bytes:
        delta, fields = part.delta, []
        if self.first:
            self.first = False
            fields.append(b'"role":"assistant"')
            if not delta.content:
                fields.append(b'"content":""')
        if delta.reasoning:
            fields.append(b'"reasoning_content":' + _encode(delta.reasoning))
        if delta.content:
            fields.append(b'"content":' + _encode(delta.content))
        if delta.calls:
            fields.append(b'"tool_calls":' + _encode([self._call(c) for c in delta.calls]))
        return b",".join(fields)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        index, self._calls = self._calls, self._calls + 1
        return {"index": index, **call.wire()}


def _finish(id: str, end: End) -> bytes:
    stop = b',"stop_reason":' + _encode(end.stop) if end.stop else b""
    head = b'},"id":' + _encode(id) + b',"logprobs":null,"finish_reason":"'
    return head + end.reason.value.encode() + b'"' + stop + b"}]}\n\n"


def _constant(opening: Opening, kind: str) -> dict[str, Any]:
    return {
        "id": opening.id,
        "object": kind,
        "created": opening.created,
        "model": opening.model,
        "system_fingerprint": f"v{opening.version}",
    }


def _usage(usages: Sequence[Usage]) -> dict[str, Any]:
    """Encode the usage of all replies. Cached prompt tokens are those that the first reply found, i.e. the minimum."""
    prompt, completion = usages[0].prompt, sum(u.completion for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(u.cached for u in usages)},
        "completion_tokens_details": {"reasoning_tokens": sum(u.reasoning for u in usages)},
    }


def _sampling(b: _Body) -> Sampling:
    name = "max_tokens" if b.max_completion_tokens is None else "max_completion_tokens"
    return read_sampling(b, limit=getattr(b, name), stop=b.stop, names=(name, "stop"))
