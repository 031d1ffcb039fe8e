"""Reads the values that people send as a score: +1, 0, -1 or no opinion, by the table `assets/feedback/values.yaml`."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from openclaw_rl.common.assets import read_yaml_asset

ACCEPTED = (
    'expected 1, 0 or -1; a number together with scale, e.g. "0..1"; true or false; stars as "4/5" or '
    '{"stars": 4, "of": 5}; or an emoji or its name, e.g. ":+1:"'
)
MAX_STARS = 100
# A value from this share of its scale upwards is praise; one up to the rest is a complaint.
_PRAISE_SHARE = Fraction(2, 3)
_STARS = re.compile(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*(?:/|of|out of)\s*(\d{1,3})(?: stars)?\s*")
_DRAWN_STARS = re.compile(r"[★☆]{5}|[★☆]{10}")
_SCALE = re.compile(r"\s*(-?\d{1,6}(?:\.\d{1,6})?)\s*\.\.\s*(-?\d{1,6}(?:\.\d{1,6})?)\s*")
_SKIN_TONE = re.compile(r"(?:::skin-tone-\d|_tone\d)$")
_SEPARATORS = re.compile(r"[\s_-]+")
_SIGNS = frozenset({"+1", "-1"})
# Joiner of emoji (what follows is who makes the gesture), and the mark of a coloured form.
_JOINER = "\u200d"
_INVISIBLE = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")


class UnknownValue(ValueError):
    """A value that is no score. The message says what was expected."""


@dataclass(frozen=True, slots=True)
class FeedbackValue:
    """Meaning of a value for a reply. `score`: +1, 0 or -1; None: nothing of its quality."""

    score: int | None


def _load_table() -> Mapping[str, int | None]:
    kinds = {"praise": 1, "complaint": -1, "none": None}
    table: dict[str, int | None] = {}
    loaded = read_yaml_asset("feedback/values.yaml")
    for kind, score in kinds.items():
        for name in (*loaded[kind]["words"], *loaded[kind]["names"], *loaded[kind]["emoji"]):
            table[canonical_name(name)] = score
    return table


def canonical_name(name: str) -> str:
    """Return the form of a word, an emoji or its name in which names are compared."""
    name = unicodedata.normalize("NFC", name).strip().casefold()
    name = _SKIN_TONE.sub("", name.strip(":"))
    name = _INVISIBLE.sub("", name.partition(_JOINER)[0])
    return name if name in _SIGNS else _SEPARATORS.sub("", name)


_TABLE = _load_table()


def read_value(value: Any, scale: str | None = None) -> FeedbackValue:
    """Return the opinion in a value. Raises `UnknownValue`.

    `scale`: "LOW..HIGH" of a number. The upper third of a scale is +1, the lower third -1, the middle 0. Without it,
    1, 0 and -1 are themselves; other numbers count only where the scales 0..1 and -1..1 agree on them.
    """
    if isinstance(value, bool):
        return FeedbackValue(1 if value else -1)
    if isinstance(value, int | float):
        return FeedbackValue(_read_number(value, scale))
    if isinstance(value, str):
        return _read_text(value)
    if isinstance(value, Mapping):
        return FeedbackValue(_read_stars(value.get("stars"), value.get("of")))
    raise UnknownValue(f"{ACCEPTED}; got {str(value)[:60]!r}")


def _read_text(value: str) -> FeedbackValue:
    stars = _STARS.fullmatch(value)
    if stars:
        return FeedbackValue(_read_stars(float(stars[1]), int(stars[2])))
    drawn = value.strip()
    if _DRAWN_STARS.fullmatch(drawn):
        return FeedbackValue(_read_stars(drawn.count("★"), len(drawn)))
    name = canonical_name(value)
    if name in _TABLE:
        return FeedbackValue(_TABLE[name])
    raise UnknownValue(f"{ACCEPTED}; got {value[:60]!r}")


def _read_number(value: float, scale: str | None) -> int:
    if not math.isfinite(value):
        raise UnknownValue(f"{ACCEPTED}; got {value}")
    if scale is not None:
        low, high = _read_scale(scale)
        return _score_on(Fraction(value), low, high)
    if value in (-1, 0, 1):
        return int(value)
    if not -1 <= value <= 1:
        raise UnknownValue(f"{ACCEPTED}; {value:g} without a scale says nothing")
    number = Fraction(value)
    if number < 0:
        return _score_on(number, Fraction(-1), Fraction(1))
    if number >= _PRAISE_SHARE:
        return 1
    raise UnknownValue(
        f'{value:g} says one thing on the scale 0..1 and another on -1..1; send scale: "0..1" or "-1..1"'
    )


def _read_scale(scale: str) -> tuple[Fraction, Fraction]:
    parts = _SCALE.fullmatch(scale)
    if parts is None:
        raise UnknownValue(f'expected a scale as "LOW..HIGH", e.g. "0..1", got {scale[:40]!r}')
    low = Fraction(parts[1])
    high = Fraction(parts[2])
    if low >= high:
        raise UnknownValue(f"expected a scale whose end is above its start, got {scale[:40]!r}")
    return low, high


def _read_stars(stars: Any, of: Any) -> int:
    is_number = isinstance(stars, int | float) and not isinstance(stars, bool)
    if not is_number or not isinstance(of, int) or isinstance(of, bool):
        raise UnknownValue(f'{ACCEPTED}; stars need both numbers: {{"stars": 4, "of": 5}}')
    if not (2 <= of <= MAX_STARS and 0 <= stars <= of):
        raise UnknownValue(f"expected 0 to {of} of 2 to {MAX_STARS} stars, got {stars:g} of {of}")
    # One star is the worst that most programs let a person give.
    return _score_on(max(Fraction(stars), Fraction(1)), Fraction(1), Fraction(of))


def _score_on(value: Fraction, low: Fraction, high: Fraction) -> int:
    if not low <= value <= high:
        raise UnknownValue(
            f"expected a number from {float(low):g} to {float(high):g}, got {float(value):g}"
        )
    share = (value - low) / (high - low)
    if share >= _PRAISE_SHARE:
        return 1
    return -1 if share <= 1 - _PRAISE_SHARE else 0
