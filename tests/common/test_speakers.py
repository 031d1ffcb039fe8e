"""Who speaks in a message."""

from __future__ import annotations

import pytest
from tests.growth import check_linear_growth

from openclaw_rl.common.rules.speakers import own_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('The sign says "that is wrong". Is it?', 'The sign says "". Is it?'),
        ("„Das ist falsch“ ist falsch", "„“ ist falsch"),
        ("« c'est faux », ah bon ?", "«», ah bon ?"),
        ("紙に「長すぎる」とあった", "紙に「」とあった"),
        ("> too long\nno, that is right", "[...]\nno, that is right"),
        # A word that is named is no quotation of somebody else.
        ('not "dear", please', 'not "dear", please'),
        ("不要用“！”", "不要用“！”"),
        # A quotation without an end is none.
        ('Not "that is', 'Not "that is'),
        ('5" and\n6" wide', '5" and\n6" wide'),
    ],
)
def test_quotations_of_several_words_are_left_out(text: str, expected: str) -> None:
    assert own_words(text) == expected


@pytest.mark.parametrize("unit", ['"', "“", "„", "«", "「", "> \n", '"a b'])
def test_many_quotation_marks_are_read_in_linear_time(unit: str) -> None:
    check_linear_growth(own_words, lambda size: unit * (size // len(unit)), 8_192)
