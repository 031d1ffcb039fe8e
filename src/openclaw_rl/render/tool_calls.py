"""Tool call formats of the model families, with a reader for each.

A reader takes text that starts with one of its openers and returns the calls and where they end. Text that is not a
valid call becomes content again. The arguments of returned calls are always valid JSON objects.
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import msgspec

from openclaw_rl.render.reply_parser import ToolCall

_ids = random.Random(random.SystemRandom().getrandbits(256))  # ids only have to be unique
CALL, END_CALL = "<tool_call>", "</tool_call>"
TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
PYTHON_TAG = "<|python_tag|>"
DS_CALLS, DS_END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DS_CALL, DS_END_CALL, DS_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
NAME_CHARS = 256  # longer text is not a name


def new_id() -> str:
    return f"call_{_ids.getrandbits(96):024x}"


class _CallBody(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_call_body = msgspec.json.Decoder(_CallBody)
_call_bodies = msgspec.json.Decoder(list[_CallBody])
_BROKEN = (msgspec.DecodeError, UnicodeError, RecursionError)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _arguments(raw: bytes) -> str | None:
    """Return the JSON text of an arguments object as the model wrote it; None if it is not an object."""
    try:
        value = msgspec.json.decode(raw)
        if isinstance(value, str):  # some models encode the arguments as a JSON string
            raw = _raw(value)
            value = msgspec.json.decode(raw)
        return raw.decode("utf-8") if isinstance(value, dict) else None
    except _BROKEN:
        return None


def make_call(name: str, arguments: str | bytes) -> ToolCall | None:
    """Return a call; None unless it has a name and its arguments are a JSON object."""
    text = _arguments(arguments if isinstance(arguments, bytes) else _raw(arguments))
    return None if text is None or not name else ToolCall(new_id(), name, text)


def _of_body(found: _CallBody) -> ToolCall | None:
    return make_call(found.name, bytes(found.arguments) or bytes(found.parameters))


def read_call(body: str) -> ToolCall | None:
    """Parse a call from `{"name": ..., "arguments": {...}}` (or `parameters`); None if it is anything else."""
    try:
        return _of_body(_call_body.decode(_raw(body)))
    except _BROKEN:
        return None


class Found(NamedTuple):
    """The first `end` characters of the text are these calls; if `calls` is empty, they are content."""

    end: int
    calls: tuple[ToolCall, ...] = ()


class CallReader(ABC):
    """Reader for the calls of one reply. `hidden_tokens`: never shown to clients, not even in a malformed call."""

    openers: ClassVar[tuple[str, ...]]
    at_start: ClassVar[tuple[str, ...]] = ()  # openers that count only at the start or after a call
    between: ClassVar[str] = ""  # characters allowed between two calls, besides white space
    closer: ClassVar[str] = ""  # tag that is dropped directly after a call
    hidden: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, text: str) -> Found | None:
        """Read the calls at the start of `text` (an opener); None: call again with the text extended."""


class HermesCalls(CallReader):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

    openers = (CALL,)

    def read(self, text: str) -> Found | None:
        """A closing tag inside a JSON string does not end the call."""
        at = text.find(END_CALL)
        while at >= 0 and _ends_in_string(text[len(CALL) : at]):
            at = text.find(END_CALL, at + 1)
        if at < 0:
            return None
        call = read_call(text[len(CALL) : at])
        return Found(len(CALL)) if call is None else Found(at + len(END_CALL), (call,))


def _ends_in_string(body: str) -> bool:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


class JsonEnd:
    """Find the end of the first JSON object or array at or after `start` in a growing text, reading it once."""

    _OUTSIDE, _INSIDE = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')

    def __init__(self, start: int) -> None:
        self._at = start
        self._depth = 0
        self._string = False

    def find(self, text: str) -> int | None:
        while found := (self._INSIDE if self._string else self._OUTSIDE).search(text, self._at):
            mark = found[0]
            if mark == "\\":
                if found.end() == len(text):
                    self._at = found.start()
                    return None
                self._at = found.end() + 1  # skip the escaped character
                continue
            self._at = found.end()
            if mark == '"':
                self._string = not self._string
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return self._at
        self._at = max(self._at, len(text))
        return None


class _JsonReader(CallReader):
    """Base of readers whose calls end where their JSON ends."""

    def __init__(self) -> None:
        self._json: JsonEnd | None = None

    def _end(self, text: str, start: int) -> int | None:
        if self._json is None:
            self._json = JsonEnd(start)
        end = self._json.find(text)
        if end is not None:
            self._json = None
        return end


class LlamaCalls(_JsonReader):
    """`{"name": ..., "parameters": {...}}` after <|python_tag|> or as the whole reply; `;` separates calls."""

    openers = (PYTHON_TAG,)
    at_start = ("{",)
    between = ";,"
    hidden = (PYTHON_TAG,)

    def read(self, text: str) -> Found | None:
        start = len(PYTHON_TAG) if text.startswith(PYTHON_TAG) else 0
        body = text[start:].lstrip()
        if body and not body.startswith("{"):
            return Found(start)
        end = self._end(text, len(text) - len(body)) if body else None
        if end is None:
            return None
        call = read_call(text[start:end])
        return Found(end, () if call is None else (call,))


class MistralCalls(_JsonReader):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call.

    Mistral templates accept only ids of nine letters and digits.
    """

    openers = (TOOL_CALLS,)
    hidden = (TOOL_CALLS, ARGS, CALL_ID)
    _HEAD = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?")

    def read(self, text: str) -> Found | None:
        body = text[len(TOOL_CALLS) :].lstrip()
        if not body:
            return None
        start = len(text) - len(body)
        if not body.startswith("["):
            start = text.find("{", start)
            if start < 0:
                return None if len(body) <= NAME_CHARS else Found(len(TOOL_CALLS))
        end = self._end(text, start)
        if end is None:
            return None
        calls = self._calls(text[len(TOOL_CALLS) : start], text[start:end])
        return Found(end, calls) if calls else Found(len(TOOL_CALLS))

    def _calls(self, head: str, body: str) -> tuple[ToolCall, ...]:
        if body.startswith("{"):
            named = self._HEAD.fullmatch(head)
            found = [make_call(named[1], body) if named and len(head) <= NAME_CHARS else None]
        else:
            try:
                found = [_of_body(b) for b in _call_bodies.decode(_raw(body))]
            except _BROKEN:
                return ()
        return tuple(c._replace(id=c.id[-9:]) for c in found if c) if all(found) else ()


class DeepSeekCalls(CallReader):
    """`<｜tool▁calls▁begin｜>` with `<｜tool▁call▁begin｜>...<｜tool▁call▁end｜>` for each call."""

    openers = (DS_CALLS,)
    hidden = (DS_CALLS, DS_END_CALLS, DS_CALL, DS_END_CALL, DS_SEP)
    _ONE = re.compile(f"\\s*{DS_CALL}(.*?){DS_SEP}(.*?){DS_END_CALL}\\s*", re.DOTALL)
    _FENCED = re.compile(r"([^\n]+)\n```json\n(.*)\n```", re.DOTALL)  # DeepSeek V3: type, then name and a fence

    def read(self, text: str) -> Found | None:
        at = text.find(DS_END_CALLS)
        if at < 0:
            return None
        calls, place = list[ToolCall | None](), len(DS_CALLS)
        while found := self._ONE.match(text, place, at):
            fenced = self._FENCED.fullmatch(found[2])
            calls.append(make_call(fenced[1], fenced[2]) if fenced else make_call(found[1], found[2]))
            place = found.end()
        if place < at or not calls or not all(calls):
            return Found(len(DS_CALLS))
        return Found(at + len(DS_END_CALLS), tuple(c for c in calls if c))
