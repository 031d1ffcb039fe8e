"""The five tastes of a simulated person in the replies of any model, each decided by a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

TasteName = Literal["short", "bullets", "calm", "question", "plain"]

MAX_WORDS = 18
MAX_GRADE = 5.5
"""School grade in which a text is understood, by the Flesch-Kincaid formula."""
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_LIST_ITEM = re.compile(r"^\s*(?:[-*•–]|\d+[.)])\s+\S", re.MULTILINE)
_MARK = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf!！]")
_SENTENCE_END = re.compile(r"[.!?]+(?:\s|$)")
_VOWELS = re.compile(r"[aeiouy]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EverydayTaste:
    """`definition`: in words, for reports; `is_met`: whether a reply is to the person's taste."""

    name: TasteName
    definition: str
    is_met: Callable[[str], bool]


def count_words(text: str) -> int:
    return len(_WORD.findall(text))


def reading_grade(text: str) -> float:
    """Return the school grade of a text: 0.39 words per sentence + 11.8 syllables per word - 15.59 (Kincaid, 1975).

    Syllables are counted as groups of vowels. A text without words has an infinite grade.
    """
    lowered = [word.lower() for word in _WORD.findall(text) if word[0].isalpha()]
    if not lowered:
        return float("inf")
    sentences = max(1, len(_SENTENCE_END.findall(text)))
    syllables = sum(_count_syllables(word) for word in lowered)
    return 0.39 * len(lowered) / sentences + 11.8 * syllables / len(lowered) - 15.59


def _count_syllables(word: str) -> int:
    count = len(_VOWELS.findall(word))
    is_silent = word.endswith("e") and not word.endswith(("le", "ee")) and count > 1
    return max(1, count - is_silent)


def _is_short(text: str) -> bool:
    return 0 < count_words(text) <= MAX_WORDS


def _is_list(text: str) -> bool:
    return len(_LIST_ITEM.findall(text)) >= 2


def _is_calm(text: str) -> bool:
    return count_words(text) > 0 and _MARK.search(text) is None


def _ends_with_question(text: str) -> bool:
    return text.rstrip().rstrip("\"'*”’").endswith("?")


def _is_plain(text: str) -> bool:
    return reading_grade(text) <= MAX_GRADE


def _by_name(*tastes: EverydayTaste) -> Mapping[str, EverydayTaste]:
    return {taste.name: taste for taste in tastes}


EVERYDAY_TASTES = _by_name(
    EverydayTaste(name="short", definition=f"at most {MAX_WORDS} words", is_met=_is_short),
    EverydayTaste(name="bullets", definition="at least two lines of a list", is_met=_is_list),
    EverydayTaste(name="calm", definition="no exclamation mark and no emoji", is_met=_is_calm),
    EverydayTaste(
        name="question", definition="ends with a question mark", is_met=_ends_with_question
    ),
    EverydayTaste(
        name="plain",
        definition=f"reading grade of at most {MAX_GRADE} (Flesch-Kincaid)",
        is_met=_is_plain,
    ),
)
