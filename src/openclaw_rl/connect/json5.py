"""Edit JSON5 text and keep every other character: comments, order, quotes, commas, line ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LINE_END = re.compile(r"\r\n|\n|\r")
_SPACE = re.compile(r"(?:\s|\ufeff|//[^\n\r]*|/\*.*?\*/)+", re.DOTALL)
_NAME = re.compile(r"[\w$]+")
_STRING = re.compile(r"\"(?:[^\"\\\n\r]|\\\r\n|\\.)*\"|'(?:[^'\\\n\r]|\\\r\n|\\.)*'", re.DOTALL)
_WORD = re.compile(r"[+-]?[\w.+-]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\r\n|.)", re.DOTALL)
_COMMENT_BEHIND = re.compile(r"[ \t]*(//[^\n\r]*|/\*[^\n\r]*?\*/[ \t]*(?=[\n\r]))")
_PLAIN = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_LITERALS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


class Json5Error(ValueError):
    """The text is not JSON5, or it has another value where an object is needed."""


@dataclass(slots=True)
class Node:
    """A value and its position `text[start:end]`. `members`: of an object, in order; None for any other value."""

    start: int
    end: int
    value: Any
    members: dict[str, Node] | None = None
    comma: bool = field(default=False)  # for an object: whether a comma follows its last member


def parse(text: str) -> Node:
    """Parse JSON5. Raises `Json5Error` with the line number."""
    reader = _Reader(text)
    try:
        node = reader.value(reader.skip(0))
    except RecursionError:
        raise Json5Error("it is nested too deeply") from None
    if (end := reader.skip(node.end)) != len(text):
        raise reader.error(end, "expected the end of the file")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def error(self, at: int, what: str) -> Json5Error:
        line = len(_LINE_END.findall(self._text[:at])) + 1
        return Json5Error(f"line {line}: {what}, got {self._text[at : at + 20]!r}")

    def skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def value(self, at: int) -> Node:
        start = self._text[at : at + 1]
        if start == "{":
            return self._object(at)
        if start == "[":
            return self._array(at)
        if found := _STRING.match(self._text, at):
            return Node(at, found.end(), _unquoted(found.group()))
        if found := _WORD.match(self._text, at):
            return Node(at, found.end(), self._scalar(at, found.group()))
        raise self.error(at, "expected a value")

    def _scalar(self, at: int, word: str) -> Any:
        if word in _LITERALS:
            return _LITERALS[word]
        try:
            return int(word, 0)
        except ValueError:
            pass
        try:
            return float(word)
        except ValueError:
            raise self.error(at, "expected a value") from None

    def _array(self, at: int) -> Node:
        items: list[Any] = []
        here = self.skip(at + 1)
        while self._text[here : here + 1] != "]":
            item = self.value(here)
            items.append(item.value)
            here, _ = self._next(item.end, "]")
        return Node(at, here + 1, items)

    def _object(self, at: int) -> Node:
        members: dict[str, Node] = {}
        here, comma = self.skip(at + 1), False
        while self._text[here : here + 1] != "}":
            key, end = self._key(here)
            colon = self.skip(end)
            if self._text[colon : colon + 1] != ":":
                raise self.error(colon, "expected a colon")
            members[key] = self.value(self.skip(colon + 1))
            here, comma = self._next(members[key].end, "}")
        return Node(at, here + 1, {k: m.value for k, m in members.items()}, members, comma)

    def _key(self, at: int) -> tuple[str, int]:
        if found := _STRING.match(self._text, at):
            return _unquoted(found.group()), found.end()
        if found := _NAME.match(self._text, at):
            return found.group(), found.end()
        raise self.error(at, "expected a name")

    def _next(self, at: int, closing: str) -> tuple[int, bool]:
        """Return (offset of the next member or of `closing`, whether a comma was before it) after a member."""
        here = self.skip(at)
        if self._text[here : here + 1] == ",":
            return self.skip(here + 1), True
        if self._text[here : here + 1] == closing:
            return here, False
        raise self.error(here, f"expected a comma or {closing}")


def _unquoted(raw: str) -> str:
    def one(found: re.Match[str]) -> str:
        what = found.group(1)
        if what[0] in "ux" and len(what) > 1:
            return chr(int(what[1:], 16))
        return "" if what in ("\r\n", "\n", "\r") else _PLAIN.get(what, what)

    text = _ESCAPE.sub(one, raw[1:-1])
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins escaped surrogate pairs


def put(text: str, path: Sequence[str], value: Any) -> str:
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
            return _added(text, node, key, value)
        node = node.members[key]
    if node.value == value:
        return text
    return text[: node.start] + _written(value, _indent(text, node.start), _line_end(text)) + text[node.end :]


def _added(text: str, node: Node, key: str, value: Any) -> str:
    assert node.members is not None
    outer, end = _indent(text, node.start), _line_end(text)
    inner = outer + "  "
    member = f"{inner}{json.dumps(key)}: {_written(value, inner, end)}"
    if not node.members:
        return f"{text[: node.start + 1]}{end}{member},{end}{outer}{text[node.start + 1 :].lstrip()}"
    last = max(m.end for m in node.members.values())
    comma = "" if node.comma else ","
    behind = _behind_comma(text, last) if node.comma else last
    return f"{text[:behind]}{comma}{_rest_of_line(text, behind)}{end}{member},{_after_line(text, behind)}"


def _behind_comma(text: str, at: int) -> int:
    """Return the offset after the comma that follows a member. Commas within comments are skipped."""
    found = _SPACE.match(text, at)
    return (found.end() if found else at) + 1


def _rest_of_line(text: str, at: int) -> str:
    """Return the comment after the last member on the same line, which stays with that member."""
    found = _COMMENT_BEHIND.match(text, at)
    return found.group() if found else ""


def _after_line(text: str, at: int) -> str:
    rest = text[at + len(_rest_of_line(text, at)) :]
    return rest if rest.startswith(("\n", "\r")) else f"{_line_end(text)}{rest.lstrip(' ')}"


def _indent(text: str, at: int) -> str:
    line = text[max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _line_end(text: str) -> str:
    """Return the line end of the file's first line."""
    found = _LINE_END.search(text)
    return found.group() if found else "\n"


def _written(value: Any, indent: str, end: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", end + indent)
