"""Read JSON as models write it: line ends in strings, Python literals, stray commas, the last brackets missing.

Only faults whose meaning is clear are mended. A string that is not closed, a word without quotes as a value and
anything between two values are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_TOKEN = re.compile(
    r"""(?P<double>"(?:[^"\\]|\\.)*")
      | (?P<single>'(?:[^'\\]|\\.)*')
      | (?P<mark>[{}\[\],:])
      | (?P<space>\s+)
      | (?P<word>[^\s{}\[\],:"'`]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORDS = _PYTHON_WORDS | {word: word for word in _PYTHON_WORDS.values()}
_NUMBER = re.compile(r"\+?(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_KEY = re.compile(r"[A-Za-z_]\w*")
_FENCE = re.compile(r"\s*```[ \t]*\w*[ \t]*\n?")
_QUOTE_OR_ESCAPE = re.compile(r'\\.|"', re.DOTALL)
_CLOSERS = {"}": "{", "]": "["}
_STRAY = " \t\r\n}])>`,;"
"""Characters that may stand behind a value without a meaning."""


class LenientValue(NamedTuple):
    """A value, and where it ends in the text."""

    value: Any
    end: int


def read_value(text: str, start: int = 0, *, may_complete: bool = False) -> LenientValue | None:
    """Return the object or array at `start`, behind white space and a code fence; None without one.

    `may_complete`: closing brackets that are missing at the end of the text are added.
    """
    fence = _FENCE.match(text, start)
    if fence is not None:
        start = fence.end()
    mended = _mend(text, start, may_complete)
    if mended is None:
        return None
    source, end = mended
    try:
        value = json.loads(source)
        # Half of a surrogate pair is no text.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return LenientValue(value, end)


def read_values(text: str, *, may_complete: bool = False) -> list[Any] | None:
    """Return the objects and arrays that are the whole text, one after the other; None if it is anything else."""
    values: list[Any] = []
    at = 0
    while True:
        rest = text[at:].lstrip(_STRAY) if values else text[at:]
        if values and not rest:
            return values
        read = read_value(text, len(text) - len(rest), may_complete=may_complete)
        if read is None:
            return None
        values.append(read.value)
        at = read.end


def _mend(text: str, start: int, may_complete: bool) -> tuple[str, int] | None:
    """Return the JSON source of the value at `start`, and its end in the text."""
    out: list[str] = []
    opened: list[str] = []
    end = start
    for kind, token, end in _tokens(text, start):
        if kind == "space":
            continue
        if kind == "mark" and token in _CLOSERS:
            if not opened or opened.pop() != _CLOSERS[token]:
                return None
            _drop_comma(out)
            out.append(token)
            if not opened:
                return "".join(out), end
            continue
        if kind == "mark" and token in "{[":
            opened.append(token)
        elif not opened:
            return None
        source = _source_of(kind, token, text, end)
        if source is None:
            return None
        out.append(source)
    is_whole = end == len(text) or not text[end:].strip("` \t\r\n")
    if not opened or not may_complete or not is_whole:
        return None
    _drop_comma(out)
    if out[-1] == ":":
        return None
    closers = {opener: closer for closer, opener in _CLOSERS.items()}
    out += [closers[one] for one in reversed(opened)]
    return "".join(out), len(text)


def _tokens(text: str, start: int) -> Iterator[tuple[str, str, int]]:
    at = start
    while match := _TOKEN.match(text, at):
        at = match.end()
        assert match.lastgroup is not None
        yield match.lastgroup, match[0], at


def _source_of(kind: str, token: str, text: str, end: int) -> str | None:
    """Return the JSON of a token; None if it has no clear meaning."""
    if kind == "double":
        return _string_source(token[1:-1])
    if kind == "single":
        inner = token[1:-1].replace("\\'", "'")
        return _string_source(_QUOTE_OR_ESCAPE.sub(_escape_quote, inner))
    if kind == "mark":
        return token
    if token in _WORDS:
        return _WORDS[token]
    number = _NUMBER.fullmatch(token)
    if number is not None:
        return number[1]
    is_key = _KEY.fullmatch(token) is not None and text[end : end + 64].lstrip()[:1] == ":"
    return json.dumps(token) if is_key else None


def _escape_quote(match: re.Match[str]) -> str:
    return '\\"' if match[0] == '"' else match[0]


def _string_source(inner: str) -> str | None:
    """Return a string with its line ends and other control characters escaped."""
    try:
        return json.dumps(json.loads(f'"{inner}"', strict=False), ensure_ascii=False)
    except ValueError:
        return None


def _drop_comma(out: list[str]) -> None:
    if out and out[-1] == ",":
        out.pop()
