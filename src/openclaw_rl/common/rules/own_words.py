"""A person's own words: a message without what it quotes."""

from __future__ import annotations

import re
from functools import lru_cache

# A quotation of one word names it ("more 'dear Sir' please"); one of several words is somebody else's.
_QUOTATION = re.compile(
    r'"[^"\n]{0,2000}"|“[^“”„\n]{0,2000}”|„[^“”„\n]{0,2000}[“”]|«[^«»\n]{0,2000}»|»[^«»\n]{0,2000}«'
    r"|「[^「」\n]{0,2000}」|『[^『』\n]{0,2000}』"
)
_QUOTED_LINES = re.compile(r"(?m)^[ \t]{0,8}>.*$")
_WORD_GAP = re.compile(r"[\w.!?][ \u00a0,.!?…]+\w")
_NO_SPACES = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
MIN_QUOTED_CHARS = 3
"""Characters of a quotation in a script without spaces that is left out."""


@lru_cache(maxsize=64)
def without_quotations(text: str) -> str:
    """Return a text without the words that it quotes: quoted lines, and quotations of several words."""
    if "\n>" in text or text.startswith(">"):
        text = _QUOTED_LINES.sub("", text)
    return _QUOTATION.sub(_leave_out, text)


def _leave_out(quotation: re.Match[str]) -> str:
    text = quotation.group()
    words = text[1:-1].strip()
    is_long = _WORD_GAP.search(words) or (
        len(words) >= MIN_QUOTED_CHARS and _NO_SPACES.search(words)
    )
    return f"{text[0]}{text[-1]}" if is_long else text
