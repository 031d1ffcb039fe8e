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
        parts = self.session.partition(text) if self.session is not None else None
        if parts is not None and parts[1]:
            return _join_around(parts[0], parts[2]), StatedScope()
        parts = self.before.partition(text) if self.before is not None else None
        if parts is None or not parts[1]:
            return text, None
        before, _, rest = parts
        ends = (
            pattern.partition(rest)
            for pattern in (_SUBJECT_ENDS, self.after)
            if pattern is not None
        )
        at = min((len(end[0]) for end in ends if end is not None and end[1]), default=len(rest))
        subject = " ".join(rest[:at].split())
        if not 0 < len(subject) <= MAX_SUBJECT_CHARS or len(subject.split()) > MAX_SUBJECT_WORDS:
            return text, None
        return _join_around(before, rest[at:]), StatedScope(subject=subject)

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
