"""Differences of two texts, word by word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

MAX_WORDS = 2000
"""Words of a text that are compared; the time grows with their square."""
# A word, a run of white space, or one other character; scripts without spaces are compared character by character.
_PARTS = re.compile(r"\s+|[\u3040-\u9fff]|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class TextRun:
    """A part of a text. `is_changed`: the other text has something else there."""

    text: str
    is_changed: bool


def compare_words(before: str, after: str) -> tuple[list[TextRun], list[TextRun]]:
    """Return the parts of both texts, in their order."""
    old = _PARTS.findall(before)
    new = _PARTS.findall(after)
    if max(len(old), len(new)) > MAX_WORDS:
        is_changed = before != after
        return [TextRun(before, is_changed)], [TextRun(after, is_changed)]
    left: list[TextRun] = []
    right: list[TextRun] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        is_changed = kind != "equal"
        if b > a:
            left.append(TextRun("".join(old[a:b]), is_changed))
        if d > c:
            right.append(TextRun("".join(new[c:d]), is_changed))
    return left, right
