"""Leak check on hints: a hint is about behaviour and must not contain the answer itself.

A hint is added to the prompt of the teacher, which the policy then follows without it. A hint with the answer would
teach the policy to state what nobody could know at that time. What a hint may not repeat is what the reply and the
reaction have and the conversation before them has not: numbers, code, quotations, names, and long runs of words.
Lengths and counts of form ("at most 100 words") are behaviour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import canonical_calls, visible_text
from openclaw_rl.common.rules.foreign_words import capitalised_names
from openclaw_rl.types import JudgeInput, Message

MAX_SHARED_WORDS = 11
MAX_SHARED_CHARS = 29
"""Longest run of words, and of characters without spaces between words, that a hint may share with a reaction."""
_SEARCHED_CHARS = 65_536
_NUMBER = re.compile(r"\d(?:[\d.,:/]*\d)?")
_FORM_UNIT = re.compile(
    r"\s?-?(?:[^\W\d]+\s){0,2}(?:words?|sentences?|lines?|paragraphs?|bullets?|bullet points?|points?|items?|steps?"
    r"|characters?|letters?|examples?|sections?|columns?|rows?|spaces?|pages?|options?|wörtern?|sätzen?|zeilen|punkten?"
    r"|absätzen?|mots|phrases|lignes|points|palabras|frases|líneas|puntos)\b|\s?[字句行点點段条條文個箇つ]",
    re.IGNORECASE,
)
_QUOTATION = re.compile(r"`([^`]{2,})`|[\"“„«「『]([^\"“”„«»「」『』]{3,})[\"”“»」』]")
_CODE_WORD = re.compile(
    r"[a-z][A-Z]|\w_\w|://|\w@\w|\(\)$|^[~.]?/[\w./-]+$|^[\w-]{2,}\.[a-z]{1,5}$"
)
_PUNCTUATION = "\"'`“”„«»「」『』,;:!?[]{}<>"
_SPACELESS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_LETTER = r"[^\W_\u3040-\u30ff\u3400-\u9fff]"
"""A letter or digit of a script that puts spaces between words."""


class LeakCheck:
    """Checks the hints on one turn."""

    def __init__(self, item: JudgeInput, is_ephemeral: Callable[[Message], bool]) -> None:
        known = []
        for message in item.messages:
            if not is_ephemeral(message):
                known.append(visible_text(message))
                known += map(" ".join, canonical_calls(message).values())
        # The names of the tools that it calls give nothing away.
        known += [name for name, _ in canonical_calls(item.reply).values()]
        later = list(map(visible_text, (item.reply, *item.reaction.messages)))
        later += [feedback.comment or "" for feedback in item.reaction.feedback]
        self._known = _squeeze("\n".join(known))
        self._later = _squeeze(head_and_tail("\n".join(filter(None, later)), _SEARCHED_CHARS))

    def find_leak(self, hint: str) -> str | None:
        """Return what of the reply or the reaction the hint gives away, as words that quote nothing; None: nothing."""
        kinds = (
            ("a number", _numbers(hint)),
            ("code", (word for word in _words(hint) if _CODE_WORD.search(word))),
            ("a quotation", (match[1] or match[2] for match in _QUOTATION.finditer(hint))),
            ("a name", capitalised_names(hint)),
            ("a run of words", _runs(hint)),
        )
        for kind, texts in kinds:
            if any(map(self._is_later, set(texts))):
                return kind
        return None

    def _is_later(self, text: str) -> bool:
        """Whether the text stands, as whole words, in what came after the conversation and not in it."""
        text = _squeeze(text)
        return _contains(self._later, text) and not _contains(self._known, text)


def _contains(text: str, part: str) -> bool:
    if part not in text:
        return False
    pattern = re.escape(part)
    if not _SPACELESS.search(part):
        pattern = f"(?<!{_LETTER}){pattern}(?!{_LETTER})"
    return re.search(pattern, text) is not None


def _squeeze(text: str) -> str:
    """Return the text in lower case, with one space between words and plain apostrophes."""
    return " ".join(text.replace("’", "'").lower().split())


def _words(text: str) -> Iterator[str]:
    for word in text.split():
        yield word.lstrip(_PUNCTUATION).rstrip(_PUNCTUATION + ".")


def _numbers(hint: str) -> Iterator[str]:
    """Yield the numbers that are not followed by a unit of form."""
    for match in _NUMBER.finditer(hint):
        if not _FORM_UNIT.match(hint, match.end()):
            yield match[0]


def _runs(hint: str) -> Iterator[str]:
    """Yield each run of one word, or one character, more than a hint may share."""
    parts = hint.split()
    for start in range(len(parts) - MAX_SHARED_WORDS):
        yield " ".join(parts[start : start + MAX_SHARED_WORDS + 1]).strip(".,;:!?")
    if _SPACELESS.search(hint):
        for start in range(len(hint) - MAX_SHARED_CHARS):
            yield hint[start : start + MAX_SHARED_CHARS + 1]
