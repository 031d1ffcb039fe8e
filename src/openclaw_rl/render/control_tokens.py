"""Mark the text of control tokens in messages, tools and variables, so that it is encoded as plain text.

A mark inside such a text hides it from the chat template and from the search for special tokens. The tokenizer removes
the marks after that search and before every other step, so the ids are those of the plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

LITERAL_MARK = f"~{secrets.randbelow(10**12):012}~"
"""Put after the first character of an occurrence. ASCII without letters, because templates may escape other characters
and change the case of letters. Random, so that no client's text has it; text that has it would only lose it."""
# First characters of a token that are compared.
_MAX_CHARS = 64
_TAG = re.compile(r"[<\[{(|｜].*[>\]})|｜]", re.DOTALL)
# Added tokens of Gemma's tokenizer that have no meaning for the template.
_HTML_TAG = re.compile(
    r"</?(?:h[1-6]|table|caption|thead|tbody|tfoot|tr|th|td|[bius]|a|p|br|em|strong|strike|sub|sup|code|pre|blockquote"
    r"|ul|ol|li|dl|dt|dd|div|span|img)>"
)
_T = TypeVar("_T")


def is_control_token(content: str, *, special: bool) -> bool:
    """Whether an added token is a special token or a tag. Others are white space, words or HTML: ordinary text."""
    if special:
        return bool(content.strip())
    return _TAG.fullmatch(content) is not None and _HTML_TAG.fullmatch(content) is None


def remove_marks(text: str) -> str:
    """Return the text that the client sent."""
    return text.replace(LITERAL_MARK, "")


def has_marks(value: Any) -> bool:
    """Whether `ControlTokenText.mark` has put a mark into a text of `value` (JSON)."""
    return any(LITERAL_MARK in text for text in _texts(value))


class ControlTokenText:
    """The text of some control tokens, wherever it occurs in messages, tools and template variables.

    `template_texts`: the literal texts of the chat template and the names that it reads. Two more things count as
    occurrences because of what the template may write around a text: the beginning of a control token at the end of a
    text, and a text that completes a control token after a literal text such as `<`, unless the template reads it as a
    name.
    """

    def __init__(self, tokens: Collection[str], template_texts: Collection[str]) -> None:
        self.tokens = frozenset(tokens)
        known = [t[:_MAX_CHARS] for t in tokens]
        self._pattern = re.compile("|".join(_head_patterns(known)) or "(?!)")
        self._remainders = tuple(_find_remainders(known, template_texts))
        unclosed = (text for remainder in self._remainders for text in _without_closing(remainder))
        self._unclosed_remainders = frozenset(unclosed) - frozenset(template_texts)
        self._is_empty = not known

    def occurs_in(self, value: Any) -> bool:
        """Whether a text in `value` (JSON) contains a control token, or could become one in the template."""
        return not self._is_empty and any(
            self._continues_tag(t) or self._pattern.search(t) for t in _texts(value)
        )

    def occurs_whole(self, value: Any) -> bool:
        """Whether a text in `value` (JSON) contains a whole control token. Marks do not count."""
        return any(token in remove_marks(text) for text in _texts(value) for token in self.tokens)

    def mark(self, value: _T) -> _T:
        """Return `value` (JSON) with a mark in every occurrence; without occurrences, `value` itself."""
        return self._mark_value(value) if self.occurs_in(value) else value

    def _mark_value(self, value: Any) -> Any:
        if isinstance(value, str):
            start = LITERAL_MARK if self._continues_tag(value) else ""
            return start + self._pattern.sub(rf"\g<0>{LITERAL_MARK}", value)
        if isinstance(value, Mapping):
            return {self._mark_value(key): self._mark_value(item) for key, item in value.items()}
        return (
            [self._mark_value(item) for item in value] if isinstance(value, list | tuple) else value
        )

    def _continues_tag(self, text: str) -> bool:
        """Whether the text completes a control token of which the template writes the beginning."""
        return bool(self._remainders) and (
            text.startswith(self._remainders) or text in self._unclosed_remainders
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        return
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = chain.from_iterable(value.items())
    elif isinstance(value, list | tuple):
        items = value
    for item in items:
        # Most are texts, for which a generator of their own would take most of the time.
        if isinstance(item, str):
            yield item
        else:
            yield from _texts(item)


def _head_patterns(tokens: Collection[str]) -> list[str]:
    """Return patterns for the first character of a token, followed by its other characters or the end of the text."""
    return [
        f"{re.escape(head)}(?={_rest_pattern(rests)})"
        for head, rests in _group_by_head(tokens).items()
    ]


def _rest_pattern(texts: Collection[str]) -> str:
    if "" in texts:
        return ""
    ways = [re.escape(head) + _rest_pattern(rests) for head, rests in _group_by_head(texts).items()]
    return "(?:" + "|".join([r"\Z", *ways]) + ")"


def _group_by_head(texts: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for word in texts:
        groups.setdefault(word[0], []).append(word[1:])
    return groups


def _without_closing(remainder: str) -> Iterator[str]:
    """Yield the remainder of a control token without one or more of the brackets at its end."""
    while len(remainder) > 1 and not remainder[-1].isalnum():
        remainder = remainder[:-1]
        yield remainder


def _find_remainders(tokens: Collection[str], template_texts: Iterable[str]) -> set[str]:
    """Return what completes a control token of which a text of the template ends with the beginning."""
    ends: set[str] = set()
    for text in template_texts:
        ends |= _ends_of(text)
    remainders: set[str] = set()
    for start in ends & _starts_of(tokens):
        completed = [token for token in tokens if token.startswith(start)]
        remainders.update(token.removeprefix(start) for token in completed)
    return remainders


def _ends_of(text: str) -> set[str]:
    return {text[-length:] for length in range(1, min(len(text), _MAX_CHARS) + 1)}


def _starts_of(tokens: Iterable[str]) -> set[str]:
    return {token[:length] for token in tokens for length in range(1, len(token))}
