"""OpenAI Chat Completions: the single place where this wire format lives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from openclaw_rl.errors import RequestError
from openclaw_rl.render.parse import ToolCall
from openclaw_rl.render.recent import Recent
from openclaw_rl.serve.ask import COLDEST, Ask, End, Opening, Part, TokenInfo, Usage, checked_id
from openclaw_rl.types import Kind, Sampling

MAX_STOPS = 16
CACHE_BYTES = 16 * 2**20  # of messages whose decoded form is remembered
MAX_TOP_LOGPROBS = 20
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_INT32 = 2**31 - 1
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")
_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    """Keys that mean something here; all others are accepted and ignored."""

    messages: list[msgspec.Raw]
    model: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    tool_choice: Any = None
    functions: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    user: str | None = None
    session_id: str | None = None
    turn_type: str | None = None
    session_done: bool | None = None


_decoder = msgspec.json.Decoder(_Body)
_message = msgspec.json.Decoder(dict[str, Any])
_tool_list = msgspec.json.Decoder(list[dict[str, Any]] | None)


def _bad(param: str, message: str) -> RequestError:
    return RequestError(message, param=param)


def decode_json(decoder: msgspec.json.Decoder[_T], body: bytes, place: str = "") -> _T:
    """Raises `RequestError` that names the field. `place`: of `body` within the whole."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        path = _PATH.search(str(error))
        param = _param(place, path.group(1) if path else "", _MISSING.search(str(error)))
        words = str(error)[: path.start()] if path else str(error)
        raise RequestError(f"{param or 'body'}: {words[:1].lower()}{words[1:]}.", param=param or None) from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not valid UTF-8: {error.reason} at byte {error.start}.") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply.") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestError(f"the body is not valid JSON: {error}.") from None


def _param(place: str, path: str, missing: re.Match[str] | None) -> str:
    """`place` and the path within it, as far as it has names (`[...]` is a key that msgspec does not tell)."""
    names = (place, path.split("[...]", 1)[0].rstrip("."), missing.group(1) if missing else "")
    return ".".join(filter(None, names)).replace(".[", "[")


class ChatDialect:
    """Bytes to `Ask`, and a reply's parts to bytes.

    A temperature below 0.01 is taken as 0 (greedy) and stored so: such a reply never trains.
    """

    name = "chat"
    event_stream = "text/event-stream; charset=utf-8"
    done = b"data: [DONE]\n\n"

    def __init__(self) -> None:
        self._messages: Recent[bytes, dict[str, Any]] = Recent(CACHE_BYTES, lambda raw, message: len(raw))
        self._tools: Recent[bytes, Sequence[Mapping[str, Any]]] = Recent(CACHE_BYTES // 4, lambda raw, tools: len(raw))

    def decode(self, body: bytes) -> Ask:
        """Raises `RequestError` that names the field and says what was expected."""
        b = decode_json(_decoder, body)
        raw = [bytes(m) for m in b.messages]
        if not raw:
            raise _bad("messages", "messages: expected at least one message, got none.")
        messages = [self._messages.get(m) or self._read_message(m, n) for n, m in enumerate(raw)]
        _check_unsupported(b)
        # With tool_choice none, the model does not see them at all.
        raw_tools = b"" if b.tool_choice == "none" else bytes(b.tools)
        top = b.top_logprobs or 0
        if not 0 <= top <= MAX_TOP_LOGPROBS:
            raise _bad("top_logprobs", f"top_logprobs: expected 0 to {MAX_TOP_LOGPROBS}, got {top}.")
        if top and not b.logprobs:
            raise _bad("top_logprobs", "top_logprobs needs logprobs: true.")
        return Ask(
            model=b.model or "",
            messages=messages,
            tools=self._tools.get(raw_tools) or self._read_tools(raw_tools),
            sampling=_sampling(b),
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
        message = decode_json(_message, raw, f"messages[{index}]")
        _check_message(message, f"messages[{index}]")
        self._messages.put(raw, message)
        return message

    def _read_tools(self, raw: bytes) -> Sequence[Mapping[str, Any]]:
        tools = (decode_json(_tool_list, raw, "tools") if raw else None) or ()
        for index, tool in enumerate(tools):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
                raise _bad(f"tools[{index}].function", f"tools[{index}].function: expected an object with a name.")
        self._tools.put(raw, tools)
        return tools

    @staticmethod
    def error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
        """An error body."""
        kind = "authentication_error" if status == 401 else "invalid_request_error" if status < 500 else "server_error"
        message = message.encode("utf-8", "replace").decode()  # of a path or header that is not UTF-8
        return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})

    def error_event(self, status: int, message: str, code: str) -> bytes:
        """What breaks a stream off. Neither a finish nor [DONE] follows."""
        return b"data: " + self.error(status, message, code=code) + b"\n\n"

    def stream(self, opening: Opening, ask: Ask) -> ChatStream:
        return ChatStream(opening, ask)

    def final(
        self, opening: Opening, message: Mapping[str, Any], tokens: Sequence[TokenInfo] | None, end: End
    ) -> bytes:
        """The body of an answer that is not streamed."""
        choice = {
            "index": 0,
            "message": {"refusal": None, **message},
            "logprobs": None if tokens is None else {"content": [_token(t) for t in tokens], "refusal": None},
            "finish_reason": end.reason.value,
        }
        return _encode(_constant(opening, "chat.completion") | {"choices": [choice], "usage": _usage(end.usage)})


class ChatStream:
    """One reply's chunks. What is constant over the reply is encoded once."""

    def __init__(self, opening: Opening, ask: Ask) -> None:
        constant = _encode(_constant(opening, "chat.completion.chunk"))[:-1]
        self._head = b"data: " + constant + b',"choices":[{"index":0,"delta":{'
        self._usage_head = b"data: " + constant + b',"choices":[],"usage":'
        self._tail = b'},"logprobs":null,"finish_reason":null}]}\n\n'
        self._logprobs, self._include_usage = ask.logprobs, ask.include_usage
        self._first = True
        self._calls = 0

    def part(self, part: Part) -> bytes:
        """One chunk; with `part.end` also the finish, the usage where it was asked for, and [DONE]."""
        out = b""
        if part.delta or part.tokens or self._first:
            out = self._head + self._delta(part) + (self._with_logprobs(part.tokens) if self._logprobs else self._tail)
        if part.end is not None:
            out += self._end(part.end)
        return out

    def _delta(self, part: Part) -> bytes:
        delta, fields = part.delta, []
        if self._first:
            self._first = False
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

    def _with_logprobs(self, tokens: Sequence[TokenInfo]) -> bytes:
        content = _encode([_token(t) for t in tokens])
        return b'},"logprobs":{"content":' + content + b',"refusal":null},"finish_reason":null}]}\n\n'

    def _end(self, end: End) -> bytes:
        out = self._head + b'},"logprobs":null,"finish_reason":"' + end.reason.value.encode() + b'"}]}\n\n'
        if self._include_usage:
            out += self._usage_head + _encode(_usage(end.usage)) + b"}\n\n"
        return out + ChatDialect.done


def _constant(opening: Opening, kind: str) -> dict[str, Any]:
    return {
        "id": opening.id,
        "object": kind,
        "created": opening.created,
        "model": opening.model,
        "system_fingerprint": f"v{opening.version}",
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _token(info: TokenInfo) -> dict[str, Any]:
    return {
        "token": info.text,
        "logprob": _finite(info.logprob),
        "bytes": list(info.raw),
        "top_logprobs": [{"token": t, "bytes": list(raw), "logprob": _finite(lp)} for t, raw, lp in info.top],
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is OpenAI's word for it."""
    return logprob if math.isfinite(logprob) else -9999.0


def read_kind(value: str | None, param: str) -> Kind | None:
    if not value:
        return None
    try:
        return Kind(value.strip().lower())
    except ValueError:
        raise _bad(param, f"{param}: expected main or side, got {value[:40]!r}.") from None


def _check_message(message: Mapping[str, Any], place: str) -> None:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _bad(f"{place}.role", f"{place}.role: expected one of {sorted(_ROLES)}, got {role!r}.")
    _check_content(message.get("content"), f"{place}.content")
    if message.get("tool_calls") is not None:
        _check_calls(message["tool_calls"], f"{place}.tool_calls")
    for key in ("reasoning_content", "reasoning", "thinking", "name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            raise _bad(f"{place}.{key}", f"{place}.{key}: expected a string, got {_kind(message[key])}.")


def _check_content(content: Any, place: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise _bad(place, f"{place}: expected a string or a list of parts, got {_kind(content)}.")
    for index, part in enumerate(content):
        if isinstance(part, str):
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _TEXT_PARTS:
            what = f"a part of type {kind!r}" if isinstance(part, dict) else _kind(part)
            raise _bad(f"{place}[{index}]", f"{place}[{index}]: got {what}; this model reads text parts only.")
        if not isinstance(part.get("text", part.get("refusal")), str):
            raise _bad(f"{place}[{index}].text", f"{place}[{index}].text: expected a string.")


def _check_calls(calls: Any, place: str) -> None:
    if not isinstance(calls, list):
        raise _bad(place, f"{place}: expected a list, got {_kind(calls)}.")
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _bad(f"{place}[{index}].function", f"{place}[{index}].function: expected an object with a name.")
        if not isinstance(function.get("arguments", ""), str | dict):
            raise _bad(
                f"{place}[{index}].function.arguments", f"{place}[{index}].function.arguments: expected JSON text."
            )


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "null")


def _check_unsupported(b: _Body) -> None:
    if b.n not in (None, 1):
        raise _bad("n", f"n: one choice per request is supported, got {b.n}. Send the request again for another one.")
    if b.response_format is not None and b.response_format.get("type", "text") != "text":
        raise _bad("response_format", "response_format: only {type: text} is supported; ask for JSON in the prompt.")
    if b.functions:
        raise _bad("functions", "functions is the old form; send tools instead.")
    if b.tool_choice not in (None, "auto", "none"):
        raise _bad("tool_choice", "tool_choice: auto and none are supported; a call cannot be forced.")


def _ranged(b: _Body, name: str, low: float, high: float, default: float, *, above: bool = False) -> float:
    value = getattr(b, name)
    if value is None:
        return default
    if not (low < value if above else low <= value) or value > high:
        raise _bad(
            name,
            f"{name}: expected {'more than' if above else 'at least'} {low:g} and at most {high:g}, got {value:g}.",
        )
    return float(value)


def _sampling(b: _Body) -> Sampling:
    limit = b.max_completion_tokens if b.max_completion_tokens is not None else b.max_tokens
    if limit is not None and limit < 1:
        name = "max_completion_tokens" if b.max_completion_tokens is not None else "max_tokens"
        raise _bad(name, f"{name}: expected at least 1, got {limit}.")
    top_k = b.top_k or 0
    if not -1 <= top_k <= _INT32:
        raise _bad("top_k", "top_k: expected -1 or 0 (all), or a positive number.")
    if b.seed is not None and not -(2**63) <= b.seed < 2**63:
        raise _bad("seed", "seed: expected a 64-bit integer.")
    temperature = _ranged(b, "temperature", 0, 2, 1.0)
    return Sampling(
        temperature=temperature if temperature >= COLDEST else 0.0,
        top_p=_ranged(b, "top_p", 0, 1, 1.0, above=True),
        top_k=max(top_k, 0),
        min_p=_ranged(b, "min_p", 0, 1, 0.0),
        presence_penalty=_ranged(b, "presence_penalty", -2, 2, 0.0),
        frequency_penalty=_ranged(b, "frequency_penalty", -2, 2, 0.0),
        logit_bias=_bias(b.logit_bias),
        seed=b.seed,
        max_tokens=min(limit or 0, _INT32),
        stop=_stops(b.stop),
    )


def _bias(given: Mapping[str, float] | None) -> dict[int, float]:
    out: dict[int, float] = {}
    for key, value in (given or {}).items():
        if not (key.isascii() and key.isdigit()) or int(key[:10]) > _INT32 or len(key) > 10:
            raise _bad("logit_bias", f"logit_bias: keys are token ids, got {key[:40]!r}.")
        if not -100 <= value <= 100:
            raise _bad("logit_bias", f"logit_bias: values are -100 to 100, got {value:g} for token {key}.")
        out[int(key)] = value
    return out


def _stops(given: str | Sequence[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > MAX_STOPS:
        raise _bad("stop", f"stop: at most {MAX_STOPS} strings, got {len(stops)}.")
    if not all(stops):
        raise _bad("stop", "stop: an empty string would stop everything.")
    return stops
