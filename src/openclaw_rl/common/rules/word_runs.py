"""Runs of words that two texts have in common: what one repeats of the other, and not by chance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

RUN_WORDS = 4
"""Words in a row, and characters of a script without spaces, that two texts do not share by chance."""
RUN_CHARS = 8
MIN_WORDS = 2
"""Words of a text that may stand in another one as a whole."""
_TOKENS = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")
_SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_SENTENCE = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=\S))+[.!?。！？]*")


def words_of(text: str) -> list[str]:
    """Return the words of a text without regard to case; of scripts without spaces, the characters."""
    return _TOKENS.findall(text.casefold())


def runs_of(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the runs of words of each sentence that are long enough not to be equal by chance."""
    for sentence in _SENTENCE.findall(text):
        words = words_of(sentence)
        length = RUN_CHARS if _SPACELESS.search(sentence) else RUN_WORDS
        for start in range(len(words) - length + 1):
            yield tuple(words[start : start + length])


def in_a_row(words: Sequence[str]) -> str:
    """Return words as a text, in which the words of another text are found if they stand there in a row."""
    return f" {' '.join(words)} "


def repeats_whole(text: str, other: str) -> bool:
    """Return whether all words of a text stand in another one, in a row. A single word is no repetition."""
    words = words_of(text)
    return len(words) >= MIN_WORDS and in_a_row(words) in in_a_row(words_of(other))
