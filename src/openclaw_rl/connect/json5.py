"""Edit JSON5 text and keep every other character: comments, order, quotes, commas, line ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LINE_END = re.compile(r"\r\n|\n|\r")
_SPACE_OR_COMMENT = re.compile(r"(?:\s|\ufeff|//[^\n\r]*|/\*.*?\*/)+", re.DOTALL)
_UNQUOTED_KEY = re.compile(r"[\w$]+")
_QUOTED_STRING = re.compile(r"\"(?:[^\"\\\n\r]|\\\r\n|\\.)*\"|'(?:[^'\\\n\r]|\\\r\n|\\.)*'", re.DOTALL)
_SCALAR = re.compile(r"[+-]?[\w.+-]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\r\n|.)", re.DOTALL)
_TRAILING_COMMENT = re.compile(r"[ \t]*(//[^\n\r]*|/\*[^\n\r]*?\*/[ \t]*(?=[\n\r]))")
_SIMPLE_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_LITERALS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


class Json5Error(ValueError):
    """The text is not JSON5, or it has another value where an object is needed."""


@dataclass(slots=True)
class Json5Node:
    """A value and its position `text[start:end]`. `members`: of an object, in order; None for any other value."""

    start: int
    end: int
    value: Any
    members: dict[str, Json5Node] | None = None
    trailing_comma: bool = field(default=False)  # for an object: whether a comma follows its last member


def parse(text: str) -> Json5Node:
    """Parse JSON5. Raises `Json5Error` with the line number."""
    reader = _Json5Reader(text)
    try:
        node = reader.read_value(reader.skip_space(0))
    except RecursionError:
        raise Json5Error("it is nested too deeply") from None
    if (end := reader.skip_space(node.end)) != len(text):
        raise reader.error_at(end, "expected the end of the file")
    return node


class _Json5Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def error_at(self, at: int, what: str) -> Json5Error:
        line = len(_LINE_END.findall(self._text[:at])) + 1
        return Json5Error(f"line {line}: {what}, got {self._text[at : at + 20]!r}")

    def skip_space(self, at: int) -> int:
        found = _SPACE_OR_COMMENT.match(self._text, at)
        return found.end() if found else at

    def read_value(self, at: int) -> Json5Node:
        start = self._text[at : at + 1]
        if start == "{":
            return self._read_object(at)
        if start == "[":
            return self._read_array(at)
        if found := _QUOTED_STRING.match(self._text, at):
            return Json5Node(at, found.end(), _unquote_string(found.group()))
        if found := _SCALAR.match(self._text, at):
            return Json5Node(at, found.end(), self._read_scalar(at, found.group()))
        raise self.error_at(at, "expected a value")

    def _read_scalar(self, at: int, word: str) -> Any:
        if word in _LITERALS:
            return _LITERALS[word]
        try:
            return int(word, 0)
        except ValueError:
            pass
        try:
            return float(word)
        except ValueError:
            raise self.error_at(at, "expected a value") from None

    def _read_array(self, at: int) -> Json5Node:
        items: list[Any] = []
        here = self.skip_space(at + 1)
        while self._text[here : here + 1] != "]":
            item = self.read_value(here)
            items.append(item.value)
            here, _ = self._skip_separator(item.end, "]")
        return Json5Node(at, here + 1, items)

    def _read_object(self, at: int) -> Json5Node:
        members: dict[str, Json5Node] = {}
        here, comma = self.skip_space(at + 1), False
        while self._text[here : here + 1] != "}":
            key, end = self._read_key(here)
            colon = self.skip_space(end)
            if self._text[colon : colon + 1] != ":":
                raise self.error_at(colon, "expected a colon")
            members[key] = self.read_value(self.skip_space(colon + 1))
            here, comma = self._skip_separator(members[key].end, "}")
        return Json5Node(at, here + 1, {k: m.value for k, m in members.items()}, members, comma)

    def _read_key(self, at: int) -> tuple[str, int]:
        if found := _QUOTED_STRING.match(self._text, at):
            return _unquote_string(found.group()), found.end()
        if found := _UNQUOTED_KEY.match(self._text, at):
            return found.group(), found.end()
        raise self.error_at(at, "expected a name")

    def _skip_separator(self, at: int, closing: str) -> tuple[int, bool]:
        """Return (offset of the next member or of `closing`, whether a comma was before it) after a member."""
        here = self.skip_space(at)
        if self._text[here : here + 1] == ",":
            return self.skip_space(here + 1), True
        if self._text[here : here + 1] == closing:
            return here, False
        raise self.error_at(here, f"expected a comma or {closing}")


def _unquote_string(raw: str) -> str:
    def replace_escape(found: re.Match[str]) -> str:
        what = found.group(1)
        if what[0] in "ux" and len(what) > 1:
            return chr(int(what[1:], 16))
        return "" if what in ("\r\n", "\n", "\r") else _SIMPLE_ESCAPES.get(what, what)

    text = _ESCAPE.sub(replace_escape, raw[1:-1])
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins escaped surrogate pairs


def set_value(text: str, path: Sequence[str], value: Any) -> str:
    """Return `text` with `value` at `path`. Missing objects on the path are created; an equal value is kept as it is.

    Raises `Json5Error` if another value than an object is on the path.
    """
    node = parse(text)
    for depth, key in enumerate(path):
        if node.members is None:
            raise Json5Error(f"{'.'.join(path[:depth]) or 'the file'}: expected an object, got {node.value!r}")
        if key not in node.members:
            for outer in reversed(path[depth + 1 :]):
                value = {outer: value}
            return _insert_member(text, node, key, value)
        node = node.members[key]
    if node.value == value:
        return text
    return text[: node.start] + _format_value(value, _line_indent(text, node.start), _line_end(text)) + text[node.end :]


def _insert_member(text: str, node: Json5Node, key: str, value: Any) -> str:
    assert node.members is not None
    outer, end = _line_indent(text, node.start), _line_end(text)
    inner = outer + "  "
    member = f"{inner}{json.dumps(key)}: {_format_value(value, inner, end)}"
    if not node.members:
        return f"{text[: node.start + 1]}{end}{member},{end}{outer}{text[node.start + 1 :].lstrip()}"
    last = max(m.end for m in node.members.values())
    comma = "" if node.trailing_comma else ","
    behind = _after_comma(text, last) if node.trailing_comma else last
    return f"{text[:behind]}{comma}{_comment_after(text, behind)}{end}{member},{_text_after_line(text, behind)}"


def _after_comma(text: str, at: int) -> int:
    """Return the offset after the comma that follows a member. Commas within comments are skipped."""
    found = _SPACE_OR_COMMENT.match(text, at)
    return (found.end() if found else at) + 1


def _comment_after(text: str, at: int) -> str:
    """Return the comment after the last member on the same line, which stays with that member."""
    found = _TRAILING_COMMENT.match(text, at)
    return found.group() if found else ""


def _text_after_line(text: str, at: int) -> str:
    rest = text[at + len(_comment_after(text, at)) :]
    return rest if rest.startswith(("\n", "\r")) else f"{_line_end(text)}{rest.lstrip(' ')}"


def _line_indent(text: str, at: int) -> str:
    line = text[max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _line_end(text: str) -> str:
    """Return the line end of the file's first line."""
    found = _LINE_END.search(text)
    return found.group() if found else "\n"


def _format_value(value: Any, indent: str, end: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", end + indent)
