"""Tool call formats of the model families, with a reader for each.

A reader takes text that starts with one of its openers and returns the calls and where they end. Text that is not a
valid call becomes content again. The arguments of returned calls are always valid JSON objects.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar, NamedTuple

from openclaw_rl.render.call_body import calls_of_array, named_call, read_arguments, read_calls
from openclaw_rl.render.lenient_json import read_value
from openclaw_rl.render.reply_parser import ToolCall, partial_match_length

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
_FENCE = "```"
# Longer text is not a name.
MAX_NAME_CHARS = 256


class CallMatch(NamedTuple):
    """The first `end` characters of the text are these calls; if `calls` is empty, they are content."""

    end: int
    calls: tuple[ToolCall, ...] = ()


class CallReader(ABC):
    """Reader for the calls of one reply. `hidden_tokens`: never shown to clients, not even in a malformed call.

    A call that is not written as the model was taught is read if its meaning is clear and it calls a declared function.
    """

    openers: tuple[str, ...]
    at_start: ClassVar[tuple[str, ...]] = ()  # openers that count only at the start or after a call
    separators: ClassVar[str] = ""  # characters allowed between two calls, besides white space
    closer: ClassVar[str] = ""  # tag that is dropped directly after a call
    hidden_tokens: tuple[str, ...] = ()

    def __init__(self, names: Collection[str] = ()) -> None:
        """`names`: of the declared functions."""
        self._names = names
        # Place before which the text of this call has no closing tag.
        self._searched = 0

    def begin(self) -> None:
        """Forget the text of the last call: the next text that is read is not a longer one."""
        self._searched = 0

    def _find_closer(self, text: str, closer: str) -> int:
        """Return the place of the next closing tag in a growing text, which is searched only once; -1 without one."""
        at = text.find(closer, self._searched)
        if at < 0:
            self._searched = max(self._searched, len(text) - len(closer) + 1)
        else:
            self._searched = at
        return at

    @abstractmethod
    def read(self, text: str) -> CallMatch | None:
        """Return the tool calls at the start of `text`, which begins with an opener; None if more text is needed."""

    def read_rest(self, text: str, *, is_cut: bool) -> CallMatch | None:
        """Return the calls at the start of a reply's last text, of which only the end is missing; None without calls.

        `is_cut`: the reply reached a limit, so that the model may have meant to write more.
        """
        return None


class HermesCallReader(CallReader):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

    openers = (CALL,)

    def __init__(self, names: Collection[str] = ()) -> None:
        super().__init__(names)
        # Place of the next opener at which the call before it was found incomplete.
        self._tried_opener = -1
        # Place before which there is no next opener.
        self._opener_searched = len(CALL)
        # Place up to which a string was read that had a closing tag in it; 0: in no string.
        self._string_read = 0

    def begin(self) -> None:
        """See `CallReader.begin`."""
        super().begin()
        self._tried_opener = -1
        self._opener_searched = len(CALL)
        self._string_read = 0

    def read(self, text: str) -> CallMatch | None:
        """A closing tag inside a JSON string does not end the call."""
        at = self._find_closer(text, END_CALL)
        while at >= 0 and self._ends_in_string(text, at):
            self._searched = at + 1
            at = self._find_closer(text, END_CALL)
        before_next = self._read_before_next_opener(text, at)
        if before_next is not None:
            self.begin()
            return before_next
        if at < 0:
            return None
        self.begin()
        calls = read_calls(text[len(CALL) : at], self._names, may_complete=True)
        return CallMatch(at + len(END_CALL), calls) if calls else CallMatch(len(CALL))

    def _read_before_next_opener(self, text: str, end: int) -> CallMatch | None:
        """Return the call before the next opener, if only its closing tag is missing."""
        opener = text.find(CALL, self._opener_searched)
        if opener < 0:
            self._opener_searched = max(len(CALL), len(text) - len(CALL) + 1)
            return None
        self._opener_searched = opener
        if 0 <= end < opener or opener == self._tried_opener:
            return None
        calls = read_calls(text[len(CALL) : opener], self._names)
        self._tried_opener = -1 if calls else opener
        return CallMatch(opener, calls) if calls else None

    def _ends_in_string(self, text: str, end: int) -> bool:
        """Whether the JSON before `end` ends inside a string. A string is read only once."""
        if self._string_read:
            closing, self._string_read = _find_quote(text, self._string_read, end)
            if closing < 0:
                return True
        place = _open_string(text[len(CALL) : end])
        self._string_read = 0
        if place >= 0:
            _, self._string_read = _find_quote(text, len(CALL) + place + 1, end)
        return place >= 0

    def read_rest(self, text: str, *, is_cut: bool) -> CallMatch | None:
        """The closing tag may be cut, or missing."""
        body = text[len(CALL) :]
        body = body[: len(body) - partial_match_length(body, (END_CALL,))]
        calls = read_calls(body, self._names, may_complete=not is_cut)
        if calls:
            return CallMatch(len(text), calls)
        # Text follows a call that was not closed.
        value = read_value(body)
        if value is None:
            return None
        calls = read_calls(body[: value.end], self._names)
        return CallMatch(len(CALL) + value.end, calls) if calls else None


def _find_quote(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the place of the quotation mark that ends a string, or -1; and the place to search on from."""
    while match := _QUOTE_OR_ESCAPE.search(text, start, end):
        if match[0] == '"':
            return match.start(), match.end()
        if match.end() == end:
            return -1, match.start()
        # Skip the escaped character.
        start = match.end() + 1
    return -1, max(start, end)


_QUOTE_OR_ESCAPE = re.compile(r'["\\]')
# Accepts line ends in strings.
_decoder = json.JSONDecoder(strict=False)


def _open_string(body: str) -> int:
    """Return the place of the string inside which a JSON text ends; -1 if it ends in none."""
    try:
        _decoder.decode(body)
    except json.JSONDecodeError as error:
        return error.pos if error.msg.startswith("Unterminated string") else -1
    except RecursionError:
        return -1
    return -1


class JsonCallReader(CallReader):
    """Base of readers whose calls end where their JSON ends."""

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self, names: Collection[str] = ()) -> None:
        super().__init__(names)
        # Depth 0: no JSON has begun.
        self._offset = self._depth = 0
        self._in_string = False

    def begin(self) -> None:
        """See `CallReader.begin`."""
        super().begin()
        self._offset = 0
        self._depth = 0
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


class LlamaCallReader(JsonCallReader):
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
        return CallMatch(end, read_calls(text[start:end], self._names))

    def read_rest(self, text: str, *, is_cut: bool) -> CallMatch | None:
        """The last brackets may be missing."""
        body = text.removeprefix(PYTHON_TAG).lstrip()
        if is_cut or not body.startswith("{"):
            return None
        calls = read_calls(body, self._names, may_complete=True)
        return CallMatch(len(text), calls) if calls else None


class MistralCallReader(JsonCallReader):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call.

    Mistral templates accept only ids of nine letters and digits.
    """

    openers = (TOOL_CALLS,)
    hidden_tokens = (TOOL_CALLS, ARGS, CALL_ID)
    _HEAD = r"\s*+([^\s\[\]{}]++)\s*+(?:\[CALL_ID\]\s*+[\w-]*+\s*+)?"
    _HEAD_PATTERN = re.compile(_HEAD + r"(?:\[ARGS\]\s*)?(?:```[ \t]*\w*\s*)?")
    _QUOTED_PATTERN = re.compile(_HEAD + r'\[ARGS\]\s*(?=")')

    def __init__(self, names: Collection[str] = ()) -> None:
        super().__init__(names)
        # Place where the JSON of the call ends, and up to which only white space follows; 0: not known.
        self._json_end = 0
        self._space_end = 0

    def begin(self) -> None:
        """See `CallReader.begin`."""
        super().begin()
        self._json_end = 0
        self._space_end = 0

    def read(self, text: str) -> CallMatch | None:
        """See `CallReader.read`."""
        match = self._read_call(text)
        if match is not None:
            self.begin()
        return match

    def _read_call(self, text: str) -> CallMatch | None:
        body = text[len(TOOL_CALLS) :].lstrip()
        if not body:
            return None
        start = len(text) - len(body)
        quoted = self._QUOTED_PATTERN.match(text, len(TOOL_CALLS))
        if quoted is not None:
            return self._read_quoted(quoted[1], text, quoted.end())
        if not body.startswith("["):
            start = text.find("{", start)
            if start < 0:
                return None if len(body) <= MAX_NAME_CHARS else CallMatch(len(TOOL_CALLS))
        json_end = self._json_end or self._find_json_end(text, start)
        if json_end is None:
            return None
        self._json_end = json_end
        head = text[len(TOOL_CALLS) : start]
        end = self._skip_fence(text, json_end) if _FENCE in head else json_end
        if end is None:
            return None
        calls = self._parse_calls(head, text[start:json_end])
        return CallMatch(end, calls) if calls else CallMatch(len(TOOL_CALLS))

    def _skip_fence(self, text: str, json_end: int) -> int | None:
        """Return the place behind the fence that may follow the JSON; None if more text is needed."""
        rest = text[self._space_end or json_end :].lstrip()
        self._space_end = len(text) - len(rest)
        if rest.startswith(_FENCE):
            return self._space_end + len(_FENCE)
        return None if _FENCE.startswith(rest) else json_end

    def _read_quoted(self, name: str, text: str, start: int) -> CallMatch | None:
        """Return the call whose arguments are a JSON string at `start`."""
        closing, self._offset = _find_quote(text, self._offset or start + 1, len(text))
        if closing < 0:
            return None
        try:
            arguments, end = _decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            return CallMatch(len(TOOL_CALLS))
        call = named_call(name, arguments, self._names)
        if call is None:
            return CallMatch(len(TOOL_CALLS))
        return CallMatch(end, (call._replace(id=call.id[-9:]),))

    def _parse_calls(self, head: str, body: str) -> tuple[ToolCall, ...]:
        calls = self._named_call(head, body) if body.startswith("{") else self._calls_of_array(body)
        return tuple(call._replace(id=call.id[-9:]) for call in calls)

    def _calls_of_array(self, body: str) -> tuple[ToolCall, ...]:
        strict = calls_of_array(body)
        return strict or read_calls(body, self._names)

    def _named_call(self, head: str, body: str) -> tuple[ToolCall, ...]:
        """Return the call whose name is in the head and whose arguments are the body."""
        named = None if len(head) > MAX_NAME_CHARS else self._HEAD_PATTERN.fullmatch(head)
        if named is None:
            return ()
        call = named_call(named[1], body, self._names)
        return () if call is None else (call,)

    def read_rest(self, text: str, *, is_cut: bool) -> CallMatch | None:
        """The last brackets may be missing."""
        body = text[len(TOOL_CALLS) :].lstrip()
        if not body.startswith("["):
            body = body[body.find("{") :] if "{" in body else ""
        if is_cut or not body:
            return None
        head = text[len(TOOL_CALLS) : len(text) - len(body)]
        if body.startswith("{"):
            arguments = read_arguments(body, may_complete=True)
            calls = () if arguments is None else self._named_call(head, arguments)
        else:
            calls = read_calls(body, self._names, may_complete=True)
        calls = tuple(call._replace(id=call.id[-9:]) for call in calls)
        return CallMatch(len(text), calls) if calls else None


class DeepSeekCallReader(CallReader):
    """`<｜tool▁calls▁begin｜>` with `<｜tool▁call▁begin｜>...<｜tool▁call▁end｜>` for each call."""

    openers = (DS_CALLS,)
    hidden_tokens = (DS_CALLS, DS_END_CALLS, DS_CALL, DS_END_CALL, DS_SEP)
    # DeepSeek V3: type, then name and a fence.
    _FENCED_PATTERN = re.compile(r"([^\n]+)\n```(?:json)?\n(.*?)(?:\n```)?\s*", re.DOTALL)

    def read(self, text: str) -> CallMatch | None:
        at = self._find_closer(text, DS_END_CALLS)
        if at < 0:
            return None
        self.begin()
        calls = self._read_list(text[len(DS_CALLS) : at].strip(), is_closed=True)
        return CallMatch(at + len(DS_END_CALLS), calls) if calls else CallMatch(len(DS_CALLS))

    def read_rest(self, text: str, *, is_cut: bool) -> CallMatch | None:
        """The end of the list, or of the last call, may be missing."""
        body = text[len(DS_CALLS) :].strip()
        body = body[: len(body) - partial_match_length(body, (DS_END_CALLS, DS_END_CALL))]
        calls = self._read_list(body.rstrip(), is_closed=is_cut)
        return CallMatch(len(text), calls) if calls else None

    def _read_list(self, rest: str, *, is_closed: bool) -> tuple[ToolCall, ...]:
        """Return the calls of a list; empty unless each can be read. `is_closed`: the last one has its end."""
        calls: list[ToolCall] = []
        while rest.startswith(DS_CALL):
            kind, _, after = rest.removeprefix(DS_CALL).partition(DS_SEP)
            body, closed, after = after.partition(DS_END_CALL)
            if not closed and is_closed:
                break
            fenced = self._FENCED_PATTERN.fullmatch(body)
            name, arguments = (fenced[1], fenced[2]) if fenced else (kind, body)
            call = named_call(name.strip(), arguments, self._names, may_complete=True)
            if call is None:
                return ()
            calls.append(call)
            rest = after.lstrip()
        return () if rest else tuple(calls)
