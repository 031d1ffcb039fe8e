"""Values of scores, read by the table."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from openclaw_rl.common.assets import read_asset
from openclaw_rl.serve.feedback.values import UnknownValue, canonical_name, read_value


@pytest.mark.parametrize(
    ("value", "scale", "score"),
    [
        (1, None, 1),
        (0, None, 0),
        (-1.0, None, -1),
        (0.9, None, 1),
        (-0.2, None, 0),
        (-0.5, None, -1),
        (0, "0..1", -1),
        (0.33, "0..1", -1),
        (0.5, "0..1", 0),
        (0.7, "0..1", 1),
        (0.3, "-1..1", 0),
        (-0.34, "-1 .. 1", -1),
        (7, "1..10", 1),
        (3, "1..5", 0),
        (True, None, 1),
        (False, None, -1),
        ("4/5", None, 1),
        ("3 / 5", None, 0),
        ("2 of 5", None, -1),
        ("9 out of 10", None, 1),
        ("0/5", None, -1),
        ("★★★★☆", None, 1),
        ({"stars": 4, "of": 5}, None, 1),
        ({"stars": 1, "of": 3}, None, -1),
        (":+1:", None, 1),
        ("+1", None, 1),
        ("+1::skin-tone-4", None, 1),
        (":thumbsup_tone2:", None, 1),
        ("-1", None, -1),
        ("thumbs_down", None, -1),
        ("Thumbs-Down", None, -1),
        ("👍", None, 1),
        ("👍🏽", None, 1),
        ("❤️", None, 1),
        ("🤦‍♂️", None, -1),
        (":white_check_mark:", None, 1),
        ("up", None, 1),
        (":eyes:", None, None),
        ("😂", None, None),
    ],
)
def test_values_and_their_scores(value: Any, scale: str | None, score: int | None) -> None:
    assert read_value(value, scale).score == score


@pytest.mark.parametrize(
    ("value", "scale"),
    [
        (2, None),
        (0.4, None),
        (float("nan"), None),
        (float("inf"), "0..1"),
        (1.5, "0..1"),
        (0.5, "1..0"),
        (0.5, "good..bad"),
        ("so so", None),
        (":company-logo:", None),
        ("", None),
        ("6/5", None),
        ("1/1", None),
        ({"stars": 4}, None),
        ({"stars": True, "of": 5}, None),
        ([1], None),
    ],
)
def test_other_values_are_refused_with_what_is_accepted(value: Any, scale: str | None) -> None:
    with pytest.raises(UnknownValue, match=r"expected|send scale|without a scale"):
        read_value(value, scale)


def test_no_name_has_two_scores() -> None:
    loaded = yaml.safe_load(read_asset("feedback/values.yaml"))
    kinds = [
        {canonical_name(name) for key in ("words", "names", "emoji") for name in loaded[kind][key]}
        for kind in ("praise", "complaint", "none")
    ]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
