"""Types and patterns of the words of others in a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate
from typing import Any

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.common.linear_regex import LinearPattern


class Speaker(StrEnum):
    """The author of a span of a message."""

    PERSON = "person"
    TOOL = "tool"
    QUOTATION = "quotation"
    PASTED = "pasted"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class SpokenSpan:
    """A part of a message's text, and who speaks in it. `start`: its place in the text."""

    speaker: Speaker
    text: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class ForeignPart:
    """A part of a text in which others speak."""

    start: int
    end: int
    speaker: Speaker


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of a text, without its end. `end`: with it."""

    text: str
    start: int
    end: int


SPEAKER_ASSET: Mapping[str, Any] = read_yaml_asset("speakers.yaml")


@cache
def speaker_pattern(name: str) -> LinearPattern:
    """Return the pattern of this name in `assets/speakers.yaml`."""
    value = SPEAKER_ASSET[name]
    alternatives = value if isinstance(value, list) else [value]
    return LinearPattern(f"(?im){'|'.join(f'(?:{one})' for one in alternatives)}")


def lines_of(text: str) -> list[TextLine]:
    """Return the lines of a text."""
    parts = text.splitlines(keepends=True)
    starts = accumulate(map(len, parts), initial=0)
    return [
        TextLine(part.rstrip("\r\n"), start, start + len(part))
        for part, start in zip(parts, starts, strict=False)
    ]


def matching_lines(lines: Sequence[TextLine], name: str) -> list[TextLine]:
    """Return the lines in which the pattern of this name is found."""
    return [line for line in lines if speaker_pattern(name).matches(line.text)]
