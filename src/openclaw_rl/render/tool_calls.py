"""Tool call formats of the model families, with a reader for each.

A reader takes text that starts with one of its openers and returns the calls and where they end. Text that is not a
valid call becomes content again. The arguments of returned calls are always valid JSON objects.
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from openclaw_rl.render.reply_parser import ToolCall

# Ids only have to be unique.
_id_generator = random.Random(random.SystemRandom().getrandbits(256))
CALL = "<tool_call>"
END_CALL = "</tool_call>"
TOOL_CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
PYTHON_TAG = "<|python_tag|>"
DS_CALLS = "<｜tool▁calls▁begin｜>"
DS_END_CALLS = "<｜tool▁calls▁end｜>"
DS_CALL = "<｜tool▁call▁begin｜>"
DS_END_CALL = "<｜tool▁call▁end｜>"
DS_SEP = "<｜tool▁sep｜>"
ToolList = Sequence[Mapping[str, Any]]
"""Tool definitions in the format of chat completions."""
# Longer text is not a name.
MAX_NAME_CHARS = 256


def new_call_id() -> str:
    return f"call_{_id_generator.getrandbits(96):024x}"


class _CallBody(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_body_decoder = msgspec.json.Decoder(_CallBody)
_bodies_decoder = msgspec.json.Decoder(list[_CallBody])
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _arguments_text(raw: bytes) -> str | None:
    """Return the JSON text of an arguments object as the model wrote it; None if it is not an object."""
    try:
        value = msgspec.json.decode(raw)
        # Some models encode the arguments as a JSON string.
        if isinstance(value, str):
            raw = _to_bytes(value)
            value = msgspec.json.decode(raw)
        return raw.decode("utf-8") if isinstance(value, dict) else None
    except _DECODE_ERRORS:
        return None


def make_call(name: str, arguments: str | bytes) -> ToolCall | None:
    """Return a call; None unless it has a name and its arguments are a JSON object."""
    text = _arguments_text(arguments if isinstance(arguments, bytes) else _to_bytes(arguments))
    return None if text is None or not name else ToolCall(new_call_id(), name, text)


def _call_from_body(body: _CallBody) -> ToolCall | None:
    return make_call(body.name, bytes(body.arguments) or bytes(body.parameters))


def _calls_of_array(body: str) -> list[ToolCall | None]:
    """Return the calls of a JSON array; empty if it cannot be read."""
    try:
        return [_call_from_body(call) for call in _bodies_decoder.decode(_to_bytes(body))]
    except _DECODE_ERRORS:
        return []


def parse_call(body: str) -> ToolCall | None:
    """Parse a call from `{"name": ..., "arguments": {...}}` (or `parameters`); None if it is anything else."""
    try:
        return _call_from_body(_body_decoder.decode(_to_bytes(body)))
    except _DECODE_ERRORS:
        return None


class CallMatch(NamedTuple):
    """The first `end` characters of the text are these calls; if `calls` is empty, they are content."""

    end: int
    calls: tuple[ToolCall, ...] = ()


class CallReader(ABC):
    """Reader for the calls of one reply. `hidden_tokens`: never shown to clients, not even in a malformed call."""

    openers: ClassVar[tuple[str, ...]]
    at_start: ClassVar[tuple[str, ...]] = ()  # openers that count only at the start or after a call
    separators: ClassVar[str] = ""  # characters allowed between two calls, besides white space
    closer: ClassVar[str] = ""  # tag that is dropped directly after a call
    hidden_tokens: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, text: str) -> CallMatch | None:
        """Return the tool calls at the start of `text`, which begins with an opener; None if more text is needed."""


class HermesCallReader(CallReader):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

    openers = (CALL,)

    def read(self, text: str) -> CallMatch | None:
        """A closing tag inside a JSON string does not end the call."""
        at = text.find(END_CALL)
        while at >= 0 and _ends_in_string(text[len(CALL) : at]):
            at = text.find(END_CALL, at + 1)
        if at < 0:
            return None
        call = parse_call(text[len(CALL) : at])
        return CallMatch(len(CALL)) if call is None else CallMatch(at + len(END_CALL), (call,))


def _ends_in_string(body: str) -> bool:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


class _JsonCallReader(CallReader):
    """Base of readers whose calls end where their JSON ends."""

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        # Depth 0: no JSON has begun.
        self._offset = self._depth = 0
        self._in_string = False

    def _next_mark(self, text: str) -> re.Match[str] | None:
        pattern = self._INSIDE if self._in_string else self._OUTSIDE
        return pattern.search(text, self._offset)

    def _find_json_end(self, text: str, start: int) -> int | None:
        """Return the end of the JSON object or array at `start` of a growing text, which is read only once."""
        if not self._depth:
            self._offset = start
        while match := self._next_mark(text):
            mark = match[0]
            if mark == "\\":
                if match.end() == len(text):
                    self._offset = match.start()
                    return None
                # Skip the escaped character.
                self._offset = match.end() + 1
                continue
            self._offset = match.end()
            if mark == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return self._offset
        self._offset = max(self._offset, len(text))
        return None


class LlamaCallReader(_JsonCallReader):
    """`{"name": ..., "parameters": {...}}` after <|python_tag|> or as the whole reply; `;` separates calls."""

    openers = (PYTHON_TAG,)
    at_start = ("{",)
    separators = ";,"
    hidden_tokens = (PYTHON_TAG,)

    def read(self, text: str) -> CallMatch | None:
        start = len(PYTHON_TAG) if text.startswith(PYTHON_TAG) else 0
        body = text[start:].lstrip()
        if not body:
            return None
        if not body.startswith("{"):
            return CallMatch(start)
        end = self._find_json_end(text, len(text) - len(body))
        if end is None:
            return None
        call = parse_call(text[start:end])
        return CallMatch(end, () if call is None else (call,))


class MistralCallReader(_JsonCallReader):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call.

    Mistral templates accept only ids of nine letters and digits.
    """

    openers = (TOOL_CALLS,)
    hidden_tokens = (TOOL_CALLS, ARGS, CALL_ID)
    _HEAD_PATTERN = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?")

    def read(self, text: str) -> CallMatch | None:
        body = text[len(TOOL_CALLS) :].lstrip()
        if not body:
            return None
        start = len(text) - len(body)
        if not body.startswith("["):
            start = text.find("{", start)
            if start < 0:
                return None if len(body) <= MAX_NAME_CHARS else CallMatch(len(TOOL_CALLS))
        end = self._find_json_end(text, start)
        if end is None:
            return None
        calls = self._parse_calls(text[len(TOOL_CALLS) : start], text[start:end])
        return CallMatch(end, calls) if calls else CallMatch(len(TOOL_CALLS))

    def _parse_calls(self, head: str, body: str) -> tuple[ToolCall, ...]:
        calls = self._named_call(head, body) if body.startswith("{") else _calls_of_array(body)
        valid = [call._replace(id=call.id[-9:]) for call in calls if call]
        return tuple(valid) if len(valid) == len(calls) else ()

    def _named_call(self, head: str, body: str) -> list[ToolCall | None]:
        """Return the call whose name is in the head and whose arguments are the body."""
        if len(head) > MAX_NAME_CHARS:
            return []
        named = self._HEAD_PATTERN.fullmatch(head)
        return [make_call(named[1], body)] if named else []


class DeepSeekCallReader(CallReader):
    """`<｜tool▁calls▁begin｜>` with `<｜tool▁call▁begin｜>...<｜tool▁call▁end｜>` for each call."""

    openers = (DS_CALLS,)
    hidden_tokens = (DS_CALLS, DS_END_CALLS, DS_CALL, DS_END_CALL, DS_SEP)
    _FENCED_PATTERN = re.compile(
        r"([^\n]+)\n```json\n(.*)\n```", re.DOTALL
    )  # DeepSeek V3: type, then name and a fence

    def read(self, text: str) -> CallMatch | None:
        at = text.find(DS_END_CALLS)
        if at < 0:
            return None
        calls = list[ToolCall | None]()
        rest = text[len(DS_CALLS) : at].strip()
        while rest.startswith(DS_CALL):
            kind, _, after = rest.removeprefix(DS_CALL).partition(DS_SEP)
            body, closed, after = after.partition(DS_END_CALL)
            if not closed:
                break
            fenced = self._FENCED_PATTERN.fullmatch(body)
            calls.append(make_call(fenced[1], fenced[2]) if fenced else make_call(kind, body))
            rest = after.lstrip()
        valid = tuple(call for call in calls if call)
        if rest or not valid or len(valid) < len(calls):
            return CallMatch(len(DS_CALLS))
        return CallMatch(at + len(DS_END_CALLS), valid)
