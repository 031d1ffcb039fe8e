"""Words that limit a wish to this conversation ("for now"), or to a subject ("when I ask about money")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from openclaw_rl.common.linear_regex import LinearPattern

MAX_SUBJECT_CHARS = 40
MAX_SUBJECT_WORDS = 5
"""A longer text after "when I ask about" names no subject."""
MAX_STATED_SCOPES = 8
"""Scopes that are read from one text."""
_WORDS = re.compile(r"\w+")
# Scripts whose words no space separates.
_NO_SPACES = re.compile("[\u2e80-\U0003ffff]")
_SUBJECT_ENDS = LinearPattern(r"[.,:!?](\s|$)|[;。，、；：！？\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedScope:
    """The limit that a person states for a wish. `subject`: "" for this conversation."""

    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePatterns:
    """Patterns of a language. `session`: words for this conversation; `before`, `after`: those around a subject."""

    session: LinearPattern | None = None
    before: LinearPattern | None = None
    after: LinearPattern | None = None

    def take_scope(self, text: str) -> tuple[str, StatedScope | None]:
        """Return the text without the first words that state a scope, and the scope; None if nothing states one."""
        session = _partition(self.session, text)
        if session is not None:
            return _join_around(*session), StatedScope()
        subject_start = _partition(self.before, text)
        if subject_start is None:
            return text, None
        before, rest = subject_start
        end = min(_start_of(_SUBJECT_ENDS, rest), _start_of(self.after, rest))
        words = rest[:end].split()
        subject = " ".join(words)
        is_subject = 0 < len(subject) <= MAX_SUBJECT_CHARS and len(words) <= MAX_SUBJECT_WORDS
        if not is_subject:
            return text, None
        return _join_around(before, rest[end:]), StatedScope(subject=subject)

    @property
    def first_patterns(self) -> tuple[LinearPattern, ...]:
        """The patterns one of which matches every text that states a scope."""
        return tuple(pattern for pattern in (self.session, self.before) if pattern is not None)

    def is_found_in(self, text: str) -> bool:
        """Return whether the text may state a scope."""
        return any(pattern.matches(text) for pattern in self.first_patterns)

    def scopes_in(self, text: str) -> Iterator[tuple[str, StatedScope]]:
        """Yield each scope of the text, with what the text says without it and those before."""
        for _ in range(MAX_STATED_SCOPES):
            text, scope = self.take_scope(text)
            if scope is None:
                return
            yield text, scope

    def without_scopes(self, text: str) -> str:
        """Return the text without all words that state a scope, so that rules find the wish."""
        for rest, _ in self.scopes_in(text):
            text = rest
        return text


def _partition(pattern: LinearPattern | None, text: str) -> tuple[str, str] | None:
    """Return what stands before and after the first words that a pattern matches; None without such words."""
    parts = None if pattern is None else pattern.partition(text)
    if parts is None or not parts[1]:
        return None
    return parts[0], parts[2]


def _start_of(pattern: LinearPattern | None, text: str) -> int:
    """Return where the first words begin that a pattern matches; the end of the text without such words."""
    parts = _partition(pattern, text)
    return len(text) if parts is None else len(parts[0])


def _join_around(before: str, after: str) -> str:
    return f"{before.rstrip()} {after.lstrip()}".strip()


def normalise_subject(subject: str) -> str:
    """Return the alternatives of a subject ("Python, code") in one order and without regard to case."""
    alternatives = {" ".join(one.split()).casefold() for one in re.split("[,，、;]", subject)}
    return ", ".join(sorted(one for one in alternatives if _WORDS.search(one)))


def names_subject(asked: str, subject: str) -> bool:
    """Return whether a text has all words of one alternative of a subject. A final "s" makes no difference."""
    text, words = _read_prompt(asked)
    alternatives = subject.split(", ") if subject else ()
    return any(
        one in text if _NO_SPACES.search(one) else _words_of(one) <= words for one in alternatives
    )


@lru_cache(maxsize=16)
def _read_prompt(asked: str) -> tuple[str, set[str]]:
    """Return a text without regard to case, and its words: kept, as each lesson about a subject asks for them."""
    text = asked.casefold()
    return text, _words_of(text)


def _words_of(text: str) -> set[str]:
    return {
        word[:-1] if len(word) > 3 and word.endswith("s") else word for word in _WORDS.findall(text)
    }
