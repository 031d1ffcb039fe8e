"""Normal form C: that of `unicodedata` for every text, and in linear time."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.growth import check_linear_growth

from openclaw_rl.common import message_hash
from openclaw_rl.common.message_hash import compose_text

MARKS = [chr(code) for code in range(0x20000) if unicodedata.combining(chr(code))]
DECOMPOSED = "\u0344\u0f73\u0f75\u0f81"  # marks that consist of other marks
ALPHABET = st.sampled_from(
    [*MARKS, *DECOMPOSED * 20, *"aeo\u0627\u05d0\u3042\u1100\u1161\u00c5\u1ea5"]
)


@given(st.text(ALPHABET, min_size=0, max_size=200))
@settings(max_examples=200, deadline=None)
def test_the_form_is_that_of_unicodedata(text: str) -> None:
    assert compose_text(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    "unit",
    ["e\u0301\u0327", "\u1100\u1161\u11a8", "\u304b\u3099", "\uac00\u11a8", "\u4f60e\u0301x"],
)
@pytest.mark.parametrize("shift", range(6))
def test_a_long_text_is_composed_in_pieces_like_a_short_one(unit: str, shift: int) -> None:
    text = "x" * shift + unit * 50_000
    assert compose_text(text) == unicodedata.normalize("NFC", text)


def test_the_first_character_of_a_piece_never_composes_with_the_character_before_it() -> None:
    starts = [chr(code) for code in range(0x30000) if message_hash._PIECE_START.match(chr(code))]
    for before in ("a", "\u1100", "\uac00", "\u304b", "e\u0301"):
        form = unicodedata.normalize("NFC", before)
        assert all(
            unicodedata.normalize("NFC", before + c) == form + unicodedata.normalize("NFC", c)
            for c in starts
        )


def test_every_character_that_is_sorted_is_in_the_range_that_is_searched() -> None:
    above = (
        unicodedata.normalize("NFD", chr(code))[0]
        for code in (*range(0x300), *range(0x20000, 0x110000))
    )
    assert not any(map(unicodedata.combining, above))


@pytest.mark.parametrize(
    "marks", ["\u0301\u0327", "\u0345\u0301\u05b0", "\u0f73", "\u0344", "\u0301\u0327\u00e9"]
)
def test_many_combining_marks_take_linear_time(marks: str) -> None:
    """Two orders: mixed, and each kind in a block before a kind of a lower class."""

    def mixed(size: int) -> str:
        return "a" + marks * (size // len(marks))

    def in_blocks(size: int) -> str:
        return "a" + "".join(mark * (size // len(marks)) for mark in marks)

    for prepare in (mixed, in_blocks):
        check_linear_growth(compose_text, prepare, 200_000)
        assert unicodedata.is_normalized("NFC", compose_text(prepare(200_000)))
