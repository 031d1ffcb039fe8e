r"""Regular expressions that take linear time on every text, by RE2.

Python's `re` backtracks: a message of a few hundred characters can keep an ambiguous pattern busy for hours. The syntax
is Python's without what needs backtracking (look-around, back-references, possessive repetition); `\d`, `\s` and `\w`
mean the same Unicode characters as in Python. `(?~TEXT)` matches any text that does not contain TEXT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import re2

_MIN_MEMORY = 8 * 2**20
_MEMORY_PER_CHARACTER = 2048
"""Bytes for the automaton of one expression. Where they do not suffice, a search takes thirty times as long."""
MAX_REPETITION = 1000
"""Highest count of a repetition (`{1,1000}`) that RE2 accepts."""
_TOKEN = re.compile(
    r"(?P<plain>[^\\()\[\]]+)"
    r"|\(\?~(?P<absent>(?:\\.|[^\\()])*)\)|\\(?P<escape>.)|(?P<posix>\[:\^?\w+:\])|(?P<other>.)",
    re.DOTALL,
)
_CLASSES = {"d": r"\p{Nd}", "s": r"\s\v\x1c-\x1f\x{85}\p{Z}", "w": r"\p{L}\p{N}_"}
"""Members of Python's character classes that are more than ASCII, as RE2 writes them inside brackets."""
_WORD_EDGE = re.compile(r"\\[bB][^\x00-\x7f]|[^\x00-\x7f]\\[bB]")
_HINTS = (
    (r"\(\?=", "look-ahead is not supported"),
    (r"\(\?!", "look-ahead is not supported; (?~TEXT) stands for any text without TEXT"),
    (r"\(\?<", "look-behind is not supported"),
    (r"\(\?P|sequence: \\\d", "back-references are not supported"),
    (
        "repetition",
        f"possessive repetition is not supported, and a count is at most {MAX_REPETITION}",
    ),
)
"""(What RE2 objects to, as an expression; the explanation)."""


class PatternError(ValueError):
    """Raised if an expression is invalid, or needs backtracking."""


class LinearPattern:
    """A compiled expression. Raises `PatternError` if RE2 does not support it.

    Half of a surrogate pair in a text counts as `?`.
    """

    def __init__(self, expression: str, *, compiled: Any = None) -> None:
        """`compiled`: the expression as a `PatternSet` compiled it."""
        self.expression = expression
        if compiled is not None:
            self._compiled = compiled
            return
        try:
            self._compiled = _compile(expression)
        except (re2.error, UnicodeEncodeError) as error:
            raise PatternError(_describe(error)) from None

    def matches(self, text: str) -> bool:
        """Return whether the expression matches anywhere in the text."""
        return self.matches_encoded(_encode(text))

    def matches_encoded(self, text: bytes) -> bool:
        """Return whether the expression matches anywhere in the text, which is in UTF-8."""
        return self._compiled.search(text) is not None

    def fullmatch(self, text: str) -> bool:
        """Return whether the expression matches the whole text."""
        return self._compiled.fullmatch(_encode(text)) is not None

    def find(self, text: str) -> str | None:
        """Return the first part of the text that the expression matches, or None."""
        found = self._compiled.search(_encode(text))
        return None if found is None else found.group().decode()

    def partition(self, text: str) -> tuple[str, str, str] | None:
        """Return what stands before the first part that the expression matches, this part, and the rest; or None."""
        encoded = _encode(text)
        found = self._compiled.search(encoded)
        if found is None:
            return None
        start, end = found.span()
        return encoded[:start].decode(), encoded[start:end].decode(), encoded[end:].decode()


class PatternSet:
    """Expressions that are searched together, which takes hardly longer than a search for one of them.

    RE2 finds the words that the expressions need in one pass over the text, and searches only for the expressions whose
    words are there.
    """

    def __init__(self) -> None:
        self._patterns: list[LinearPattern] = []
        self._filter = re2.Filter()

    def add(self, expression: str) -> LinearPattern:
        """Compile an expression. Raises `PatternError` as `LinearPattern` does. Not to be called after `compile`."""
        try:
            place = self._filter.Add(_to_re2(expression), _options(expression))
        except (re2.error, UnicodeEncodeError):
            # A filter does not say what it objects to.
            return LinearPattern(expression)
        pattern = LinearPattern(expression, compiled=self._filter.re(place))
        self._patterns.append(pattern)
        return pattern

    def compile(self) -> None:
        """End the set. It can be searched from then on."""
        if self._patterns:
            self._filter.Compile()

    def matching(self, text: str) -> MatchingPatterns:
        """Return which of the patterns match anywhere in the text."""
        if not self._patterns:
            return MatchingPatterns(b"", ())
        encoded = _encode(text)
        # The filter can search for the expressions itself, but it takes up to ten times as long as their own search.
        # It returns None if there is no candidate.
        candidates = self._filter.Match(encoded, True) or ()
        return MatchingPatterns(encoded, map(self._patterns.__getitem__, candidates))


class MatchingPatterns:
    """The patterns of a set that match a text. Each is searched for when it is asked for, once."""

    def __init__(self, text: bytes, candidates: Iterable[LinearPattern]) -> None:
        """`candidates`: all others do not match the text, which is in UTF-8."""
        self._text = text
        # None: not searched for yet.
        self._results: dict[LinearPattern, bool | None] = dict.fromkeys(candidates)

    def __contains__(self, pattern: LinearPattern) -> bool:
        if pattern not in self._results:
            return False
        result = self._results[pattern]
        if result is None:
            result = pattern.matches_encoded(self._text)
            self._results[pattern] = result
        return result

    def __bool__(self) -> bool:
        return any(pattern in self for pattern in self._results)

    def has_any(self, patterns: Iterable[LinearPattern]) -> bool:
        """Return whether one of these patterns matches the text."""
        return any(pattern in self for pattern in patterns)


@lru_cache(maxsize=512)
def _compile(expression: str) -> Any:
    """Compile an expression. The patterns of known clients are compiled by several readers of one process."""
    return re2.compile(_to_re2(expression), _options(expression))


def _options(expression: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = max(_MIN_MEMORY, _MEMORY_PER_CHARACTER * len(expression))
    return options


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _describe(error: Exception) -> str:
    words = (
        error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
    )
    hint = next((hint for sign, hint in _HINTS if re.search(sign, words)), "")
    return f"{words} ({hint})" if hint else words


def _to_re2(expression: str) -> str:
    if _WORD_EDGE.search(expression):
        raise PatternError(
            r"\b knows ASCII letters only; beside another letter write (^|\W) or (\W|$)"
        )
    return "".join(_translate(expression))


def _translate(expression: str) -> Iterator[str]:
    """Yield the expression in RE2's syntax, piece by piece."""
    # Position after `[` or `[^` while inside brackets.
    class_start = None
    for token in _TOKEN.finditer(expression):
        inside = class_start is not None
        other = token["other"]
        if token["absent"] is not None and not inside:
            yield _without(re.sub(r"\\(.)", r"\1", token["absent"], flags=re.DOTALL))
            continue
        if token["escape"] is not None:
            yield _translate_escape(token["escape"], inside)
            continue
        if other == "[" and not inside:
            class_start = token.end() + expression.startswith("^", token.end())
        elif other == "]" and inside and token.start() != class_start:
            class_start = None
        yield token[0]


def _translate_escape(letter: str, inside: bool) -> str:
    if letter == "Z":
        return r"\z"
    members = _CLASSES.get(letter.lower())
    if members is None:
        return f"\\{letter}"
    if letter == "D":
        return r"\P{Nd}"
    if letter.isupper() and inside:
        raise PatternError(
            rf"\{letter} inside brackets is not supported; name the characters, such as \pL for letters"
        )
    if inside:
        return members
    return f"[^{members}]" if letter.isupper() else f"[{members}]"


def _without(text: str) -> str:
    """Return an expression for every text that does not contain `text`.

    The expression is the automaton that looks for `text`, without its last state. Its only way back goes to the first
    character, so this character may be repeated at the start of `text` and must not occur later.
    """
    first = text[:1]
    rest = text.lstrip(text[:1])
    run = len(text) - len(rest)
    if not first or first in rest or (run > 1 and not rest):
        raise PatternError(
            f"(?~{text}): expected a text whose first character does not occur again later"
        )
    c = re2.escape(first)
    if not rest:
        return f"[^{c}]*"
    begun = f"{c}{{{run},}}"
    partial = failed = ""
    for at in reversed(range(len(rest))):
        letter = re2.escape(rest[at])
        failed = f"(?:[^{c}{letter}]|{letter}{failed})" if failed else f"[^{c}{letter}]"
        if at < len(rest) - 1:
            partial = f"(?:{letter}{partial})?" if at else f"{letter}{partial}"
    abandoned = f"(?:{begun}{partial})*" if partial else ""
    shorter = f"{c}{{1,{run - 1}}}[^{c}]|" if run > 1 else ""
    return f"(?:[^{c}]|{abandoned}(?:{shorter}{begun}{failed}))*{abandoned}{c}*"
