"""A message without what it quotes."""

from __future__ import annotations

import pytest
from tests.cpu_time import bounded_cpu_time

from openclaw_rl.common.rules.own_words import without_quotations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('He said "that is wrong". Is it?', 'He said "". Is it?'),
        ("„Das ist falsch“, sagt er", "„“, sagt er"),
        ("« c'est faux » dit-il", "«» dit-il"),
        ("上司に「長すぎる」と言われた", "上司に「」と言われた"),
        ("> too long\nno, that is right", "\nno, that is right"),
        # A word that is named is no quotation of somebody else.
        ('not "dear", please', 'not "dear", please'),
        ("不要用“！”", "不要用“！”"),
        # A quotation without an end is none.
        ('He said "that is', 'He said "that is'),
        ('5" and\n6" wide', '5" and\n6" wide'),
    ],
)
def test_quotations_of_several_words_are_left_out(text: str, expected: str) -> None:
    assert without_quotations(text) == expected


@pytest.mark.parametrize("unit", ['"', "“", "„", "«", "「", "> \n", '"a b'])
def test_many_quotation_marks_are_read_at_once(unit: str) -> None:
    with bounded_cpu_time(0.2):
        without_quotations(unit * (8_192 // len(unit)))
