"""Tool calls of Qwen3-Coder and Qwen3.5: arguments in tags, with types from the tool's schema."""

from __future__ import annotations

import re
from typing import Any

from openclaw_rl.render.call_body import ToolList, new_call_id, to_json, tool_names
from openclaw_rl.render.reply_parser import ToolCall, partial_match_length
from openclaw_rl.render.tool_calls import CALL, END_CALL, CallMatch, CallReader
from openclaw_rl.render.value_types import ToolSchemas, convert_value

_OPEN = "<function="
_OPEN_NAMED = "<function name="
_CLOSE = "</function>"
_CLOSE_VALUE = "</parameter>"
# `=NAME`, `="NAME"`, ` name="NAME"`.
_NAME = r"""(?:\s*=\s*|\s+name\s*=\s*)(?:"([^">\n]+)"|'([^'>\n]+)'|([^>\n"']+))\s*/?>"""
_FUNCTION = re.compile(rf"\s*<function{_NAME}")
_PARAMETER = re.compile(rf"\s*<parameter{_NAME}")
_NEXT_PARAMETER = re.compile(r"<parameter[\s=]")
_VALUE_END = re.compile(rf"{_CLOSE_VALUE}\s*(?=<parameter[\s=]|{_CLOSE}|\Z)")


class XmlCallReader(CallReader):
    """`<tool_call><function=f><parameter=x>...</parameter></function></tool_call>`.

    The opening tag of a call and the closing tag of a value are optional, because models forget them. A value is the
    text between its tags. It is converted if it is of a type that the tool's schema allows, otherwise it stays a
    string. Without a schema only objects and arrays are converted.
    """

    openers = (CALL, _OPEN, _OPEN_NAMED)
    closer = END_CALL

    def __init__(self, tools: ToolList) -> None:
        super().__init__(tool_names(tools))
        self._schemas = ToolSchemas(tools)
        # Places of the last tags of values before the last closing tag of a call.
        self._opened = -1
        self._closed = -1

    def begin(self) -> None:
        """See `CallReader.begin`."""
        super().begin()
        self._opened = -1
        self._closed = -1

    def read(self, text: str) -> CallMatch | None:
        """A closing tag inside a parameter does not end the call."""
        start = 0
        end = _CLOSE
        if text.startswith(CALL):
            start = len(CALL)
            end = END_CALL
        at = self._find_closer(text, end)
        while at >= 0 and self._is_inside_parameter(text, start, at, end):
            self._searched = at + 1
            at = self._find_closer(text, end)
        if at < 0:
            return None
        self.begin()
        body = text[start:at] if start else text[: at + len(end)]
        call = self._parse_call(body, is_closed=True)
        if call is not None:
            return CallMatch(at + len(end), (call,))
        return CallMatch(len(CALL) if start else len(_OPEN))

    def _is_inside_parameter(self, text: str, start: int, at: int, end: str) -> bool:
        """Whether the call ends inside a parameter; one that was only not closed before </function> does not count."""
        searched = max(self._opened, self._closed, start)
        self._opened = max(self._opened, text.rfind("<parameter", searched, at))
        self._closed = max(self._closed, text.rfind(_CLOSE_VALUE, searched, at))
        is_open = self._opened > self._closed
        return is_open and end == END_CALL and not text[start:at].rstrip().endswith(_CLOSE)

    def read_rest(self, text: str, *, is_cut: bool) -> CallMatch | None:
        """The closing tags behind the last value may be cut, or missing; a limit may have cut further values."""
        body = text.removeprefix(CALL)
        body = body[: len(body) - partial_match_length(body, (END_CALL,))].rstrip()
        closing = partial_match_length(body, (_CLOSE,))
        if is_cut and closing < len("</") and not body.endswith(_CLOSE):
            return None
        body = body[: len(body) - closing]
        call = self._parse_call(body, is_closed=False)
        return (
            None if call is None or call.name not in self._names else CallMatch(len(text), (call,))
        )

    def _parse_call(self, body: str, *, is_closed: bool) -> ToolCall | None:
        """Return the call in a body. `is_closed`: a last value without a closing tag ends with the body."""
        function = _FUNCTION.match(body)
        if function is None:
            return None
        inner = body[function.end() :]
        end = inner.rfind(_CLOSE)
        if end >= 0 and not inner[end + len(_CLOSE) :].strip():
            inner = inner[:end]
            is_closed = True
        elif is_closed and body.startswith(_OPEN):
            return None
        name = _name_of(function)
        arguments: dict[str, Any] = {}
        place = 0
        while parameter := _PARAMETER.match(inner, place):
            value_end, place = _find_value_end(inner, parameter.end())
            if value_end is None:
                if not is_closed:
                    return None
                value_end = len(inner)
                place = value_end
            key = _name_of(parameter)
            value = inner[parameter.end() : value_end].removeprefix("\n").removesuffix("\n")
            arguments[key] = convert_value(value, self._schemas.of(name, key))
        if inner[place:].strip():
            return None
        return ToolCall(new_call_id(), name, to_json(arguments)) if name else None


def _name_of(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def _find_value_end(inner: str, start: int) -> tuple[int | None, int]:
    """Return where a value ends, and where the next parameter may begin; None if nothing ends it."""
    closing = _VALUE_END.search(inner, start)
    following = _NEXT_PARAMETER.search(inner, start)
    if closing is not None and (following is None or closing.start() < following.start()):
        return closing.start(), closing.end()
    if following is not None and inner[following.start() - 1] == "\n":
        return following.start(), following.start()
    if closing is not None:
        return closing.start(), closing.end()
    return None, start
