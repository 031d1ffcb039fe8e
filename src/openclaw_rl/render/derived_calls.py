"""Reader of calls in a format that was derived from the chat template: see `derived_format`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from typing import Any

from openclaw_rl.render.call_body import (
    ToolList,
    named_call,
    new_call_id,
    read_arguments,
    to_json,
    tool_names,
)
from openclaw_rl.render.derived_format import CALL_IDS, KEYS, ArgumentForm, DerivedCallFormat
from openclaw_rl.render.lenient_json import read_values
from openclaw_rl.render.reply_parser import ToolCall, partial_match_length
from openclaw_rl.render.tool_calls import CallMatch, JsonCallReader
from openclaw_rl.render.value_types import ToolSchemas, convert_value

_NAME = r"""[^\s<>"'{}()\[\]=,]+"""
_KEY = r"""[^\s<>"'{}()\[\]=,:]+"""
_BETWEEN_CALLS = re.compile(r"[, \t\r\n]*")
_CDATA = ("<![CDATA[", "]]>")
# Characters; longer text behind a value is no half of an end.
_LONGEST_END = 256
_FIRST_TAG = re.compile(r"\S*?[>\]]")


class _Incomplete(Exception):
    """The text ends inside a call."""


class _Malformed(Exception):
    """The text is no call."""


class DerivedCallReader(JsonCallReader):
    """Reads calls as a `DerivedCallFormat` says."""

    def __init__(
        self, format_: DerivedCallFormat, tools: ToolList, special: Collection[str]
    ) -> None:
        """`special`: special tokens of the tokenizer."""
        super().__init__(tool_names(tools))
        self._format = format_
        self._schemas = ToolSchemas(tools)
        opener = (format_.opener or format_.before).split()[0]
        first = _FIRST_TAG.match(opener)
        self.openers = (opener if first is None else first[0],)
        self.hidden_tokens = tuple(
            token for token in special if any(token in one for one in format_.literals)
        )
        closer = _FIRST_TAG.match(format_.closer)
        self._closer = closer[0] if closer is not None else ""
        self._before = _pattern(format_.before)
        self._head = re.compile(rf"({_NAME})\s*{_pattern(format_.middle).pattern}")
        self._after = _pattern(format_.after)
        self._half_end = _prefix_pattern("".join(format_.after.split()))
        self._after_tag = (format_.after.split() or [""])[0]
        self._tried_ends = 0
        # Ends of calls in the text up to this place.
        self._ends = 0
        self._counted = 0
        # Of the text that begins with the opener: the calls that were read, and where the next one begins.
        self._read_calls: list[ToolCall] = []
        self._place = 0

    def read(self, text: str) -> CallMatch | None:
        """See `CallReader.read`."""
        if self._format.arguments and not self._has_new_end(text):
            return None
        try:
            match = self._read_all(text, is_last=False)
        except _Incomplete:
            return None
        except _Malformed:
            match = CallMatch(len(self.openers[0]))
        self.begin()
        return match

    def begin(self) -> None:
        """See `CallReader.begin`."""
        super().begin()
        self._tried_ends = 0
        self._ends = 0
        self._counted = 0
        self._read_calls = []
        self._place = 0

    def read_rest(self, text: str, *, is_cut: bool) -> CallMatch | None:
        """The literals behind the last call may be missing, if it calls a declared function."""
        try:
            match = self._read_all(text, is_last=True, may_complete=not is_cut)
        except (_Incomplete, _Malformed):
            return None
        else:
            is_declared = all(call.name in self._names for call in match.calls)
            return match if is_declared else None
        finally:
            self.begin()

    def _has_new_end(self, text: str) -> bool:
        """Whether the text has the end of a call more than when it was last read; so long texts are read few times."""
        at = text.find(self._after_tag, self._counted)
        while at >= 0 and self._after_tag:
            self._ends += 1
            self._counted = at + len(self._after_tag)
            at = text.find(self._after_tag, self._counted)
        self._counted = max(self._counted, len(text) - len(self._after_tag) + 1)
        ends = self._ends if self._after_tag else len(text) + 1
        if ends <= self._tried_ends and not (ends and self._closer and self._closer in text):
            return False
        self._tried_ends = ends
        return True

    def _read_all(self, text: str, *, is_last: bool, may_complete: bool = False) -> CallMatch:
        calls = self._read_calls
        if not self._place:
            opener = self._format.opener
            self._place = self._skip(text, 0, _pattern(opener), opener, is_last)
        while True:
            at = _skip_space(text, self._place)
            self._place = at
            end = self._end_of_calls(text, at, has_calls=bool(calls), is_last=is_last)
            if end is not None:
                return CallMatch(end, tuple(calls))
            read, self._place = self._read_one(text, at, is_last=is_last, may_complete=may_complete)
            calls += read
            if not self._format.opener:
                return CallMatch(self._place, tuple(calls))

    def _end_of_calls(self, text: str, at: int, *, has_calls: bool, is_last: bool) -> int | None:
        """Return where the list of calls ends, if it ends here."""
        rest = text[at:]
        is_closed = self._closer != "" and rest.startswith(self._closer)
        if not has_calls:
            self._check_has_call(is_closed)
            return None
        if is_closed:
            return at + len(self._closer)
        if not self._closer and not self._format.before:
            return at
        if is_last and self._closer.startswith(rest):
            return len(text)
        if is_last and not rest:
            return at
        if self._closer.startswith(rest) and not is_last:
            raise _Incomplete
        return None if self._may_begin_call(rest) else at

    def _check_has_call(self, is_closed: bool) -> None:
        """Raise `_Malformed` if the list of calls is closed and has none."""
        if is_closed:
            raise _Malformed

    def _may_begin_call(self, text: str) -> bool:
        return text[:1] in (self._format.before[:1] or "{[")

    def _read_one(
        self, text: str, at: int, *, is_last: bool, may_complete: bool
    ) -> tuple[list[ToolCall], int]:
        form = self._format
        if form.is_python:
            return self._read_python(text, at, is_last=is_last)
        if form.name_key is not None:
            body, at = self._read_json(text, at, may_complete=may_complete)
            return self._calls_of_json(body, may_complete=may_complete), at
        at = self._skip(text, at, self._before, form.before, is_last)
        head = self._head.match(text, _skip_space(text, at))
        if head is None:
            raise _Malformed if is_last or len(text) - at > 512 else _Incomplete
        name = head[1]
        at = _skip_space(text, head.end())
        if not form.arguments:
            body, at = self._read_json(text, at, may_complete=may_complete)
            arguments = read_arguments(body, may_complete=may_complete)
            call = None if arguments is None else named_call(name, arguments, self._names)
            if call is None:
                raise _Malformed
        else:
            values, at = self._read_arguments(text, at, name)
            call = ToolCall(new_call_id(), name, to_json(values))
        at = _skip_space(text, at)
        if is_last and self._is_half_end(text[at:]):
            # Without its end, a limit may have cut further arguments.
            if form.arguments and form.after and not may_complete:
                raise _Malformed
            return [call], len(text)
        return [call], self._skip(text, at, self._after, form.after, is_last)

    def _is_half_end(self, rest: str) -> bool:
        """Whether the rest of a text is the beginning of a call's end, or nothing."""
        end = "".join(self._format.after.split())
        half = "".join(rest.split())
        return not half or (len(half) < len(end) and end.startswith(half))

    def _skip(
        self, text: str, at: int, pattern: re.Pattern[str], literal: str, is_last: bool
    ) -> int:
        """Return the place behind a literal."""
        match = pattern.match(text, at)
        if match is not None:
            return match.end()
        rest = "".join(text[at:].split())
        if not is_last and len(rest) < len("".join(literal.split())):
            raise _Incomplete
        raise _Malformed

    # ------------------------------------------------------------------------------------ JSON

    def _read_json(self, text: str, at: int, *, may_complete: bool) -> tuple[str, int]:
        """Return the JSON at a place, and its end."""
        if at < len(text) and text[at] not in "{[":
            raise _Malformed
        end = self._find_json_end(text, at) if at < len(text) else None
        if end is not None:
            return text[at:end], end
        if may_complete:
            return text[at:], len(text)
        raise _Incomplete

    def _calls_of_json(self, body: str, *, may_complete: bool) -> list[ToolCall]:
        values = read_values(body, may_complete=may_complete) or []
        items = [one for value in values for one in (value if isinstance(value, list) else [value])]
        return _all_of([self._call_of_item(item) for item in items])

    def _call_of_item(self, item: Any) -> ToolCall | None:
        if not isinstance(item, dict):
            return None
        if self._format.name_key:
            name = item.get(self._format.name_key)
            arguments = item.get(self._format.arguments_key, {})
        elif len(item) == 1:
            ((name, arguments),) = item.items()
        else:
            return None
        text = arguments if isinstance(arguments, str) else to_json(arguments or {})
        return named_call(name, text, self._names) if isinstance(name, str) and name else None

    # ------------------------------------------------------------------------------------ Python

    def _read_python(self, text: str, at: int, *, is_last: bool) -> tuple[list[ToolCall], int]:
        """Return the calls of a list like `[f(a=1), g()]`, and its end."""
        self._searched = max(self._searched, at)
        end = self._find_closer(text, self._closer) if self._closer else -1
        if end < 0 and not is_last:
            raise _Incomplete
        if end < 0:
            end = len(text) - partial_match_length(text, (self._closer,))
        return _all_of([_call_of_node(node) for node in _parse_python_list(text[at:end])]), end

    # ------------------------------------------------------------------------------------ tags

    def _read_arguments(self, text: str, at: int, name: str) -> tuple[dict[str, Any], int]:
        """Return the arguments that begin at a place, and where they end."""
        values: dict[str, Any] = {}
        while self._after.match(text, _skip_space(text, at)) is None:
            at = _skip_space(text, at)
            if values and self._format.separator and text.startswith(self._format.separator, at):
                at = _skip_space(text, at + len(self._format.separator))
            if self._is_half_end(text[at:]):
                break
            key, value, at = self._read_argument(text, at, name)
            values[key] = value
        return values, at

    def _read_argument(self, text: str, at: int, name: str) -> tuple[str, Any, int]:
        found: list[tuple[str, Any, int]] = []
        for form in self._format.arguments:
            before = _pattern(form.before).pattern
            between = _pattern(form.between).pattern
            head = re.compile(rf"{before}\s*({_KEY})\s*{between}").match(text, at)
            if head is None:
                continue
            key = head[1]
            ends = self._find_value_end(text, head.end(), form, key)
            if ends is None:
                continue
            value = self._trim_value(text[head.end() : ends[0]], form)
            found.append((key, self._convert(value, form, name, key), ends[1]))
            if form.is_text:
                break
        if not found:
            raise _Incomplete
        return found[0]

    def _find_value_end(
        self, text: str, start: int, form: ArgumentForm, key: str
    ) -> tuple[int, int] | None:
        """Return where a value ends, and the place behind its closing literal."""
        if not form.after:
            return self._find_bare_end(text, start)
        after = _pattern(form.after.replace(KEYS[0], key)).pattern
        before = re.escape((form.before.split() or [""])[0])
        separator = rf"\s*(?:{re.escape(self._format.separator)}\s*)?"
        following = rf"{self._after.pattern}|{self._half_end}\Z" + (rf"|{before}" if before else "")
        if not before:
            following += rf"|{_KEY}{_pattern(form.between).pattern[:1]}|{_KEY}\s*:"
        match = re.compile(rf"{after}(?={separator}(?:{following}))").search(text, start)
        return None if match is None else (match.start(), match.end())

    def _find_bare_end(self, text: str, start: int) -> tuple[int, int] | None:
        """Return the end of a value without a closing literal: at a separator outside of its brackets."""
        depth = 0
        quote = self._quote
        at = start
        while at < len(text):
            if quote and text.startswith(quote, at):
                closing = text.find(quote, at + len(quote))
                if closing < 0:
                    return None
                at = closing + len(quote)
                continue
            if not depth and (
                text.startswith(self._format.separator, at)
                or self._after.match(text, at)
                or self._is_half_end(text[at : at + _LONGEST_END])
            ):
                return at, at
            depth += (text[at] in "{[") - (text[at] in "}]")
            at += 1
        return None

    @property
    def _quote(self) -> str:
        """The literal that stands for quotation marks around text."""
        text = self._format.arguments[0]
        return text.after if text.is_text and text.between.rstrip().endswith(text.after) else ""

    def _trim_value(self, value: str, form: ArgumentForm) -> str:
        if form.between.endswith("\n"):
            return value.removeprefix("\n").removesuffix("\n")
        return value

    def _convert(self, value: str, form: ArgumentForm, name: str, key: str) -> Any:
        if value.startswith(_CDATA[0]) and value.endswith(_CDATA[1]):
            return value[len(_CDATA[0]) : -len(_CDATA[1])]
        if form.is_text:
            return value
        types = self._schemas.of(name, key)
        if len(self._format.arguments) == 1:
            return convert_value(value, types)
        plain = value.replace(self._quote, '"') if self._quote else value
        every = frozenset({"object", "array", "number", "boolean", "null"})
        return convert_value(plain, every)


def _prefix_pattern(text: str) -> str:
    """Return a pattern for every beginning of a text, also the empty one, with white space anywhere."""
    pattern = ""
    for character in reversed(text):
        pattern = rf"(?:\s*{re.escape(character)}{pattern})?"
    return pattern


def _all_of(calls: Sequence[ToolCall | None]) -> list[ToolCall]:
    """Return the calls. Raises `_Malformed` unless there are some, and each could be read."""
    valid = [call for call in calls if call is not None]
    if not valid or len(valid) < len(calls):
        raise _Malformed
    return valid


def _parse_python_list(text: str) -> Sequence[ast.expr]:
    """Return the items of a list, or a single expression. Raises `_Malformed`."""
    source = text.strip()
    # A string may have line ends in it.
    tree = _parse_python(source) or _parse_python(source.replace("\n", "\\n"))
    if tree is None:
        raise _Malformed
    return tree.elts if isinstance(tree, ast.List) else [tree]


def _parse_python(source: str) -> ast.expr | None:
    try:
        return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call_of_node(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    try:
        name = ast.unparse(node.func)
        values = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords if one.arg}
        return ToolCall(new_call_id(), name, to_json(values))
    except (ValueError, TypeError, RecursionError):
        return None


def _pattern(literal: str) -> re.Pattern[str]:
    """Return a pattern of a literal: white space, numbers and call ids in it may be others."""
    parts = []
    for part in literal.split():
        pieces = re.split(r"(\d+)", part.replace(CALL_IDS[0], "\0"))
        escaped = [r"\d+" if piece.isdigit() else re.escape(piece) for piece in pieces]
        parts.append("".join(escaped).replace("\0", r"[\w.:-]*"))
    return re.compile(r"\s*".join(parts))


def _skip_space(text: str, at: int) -> int:
    match = _BETWEEN_CALLS.match(text, at)
    return at if match is None else match.end()
