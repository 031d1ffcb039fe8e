"""From words to a vote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.judge.vote_parser import HINT_CHARS, parse_lesson, parse_vote


@pytest.mark.parametrize(
    ("text", "score", "hint"),
    [
        ('{"score": 1, "hint": null, "reason": "thanks"}', 1, None),
        ('```json\n{"score": -1, "hint": "Be  brief.", "reason": ""}\n```', -1, "Be brief."),
        (
            'Well, {the user} says thanks.\n{"score": 1, "hint": "", "reason": "x"} That is all.',
            1,
            None,
        ),
        ('{"note": {"score": 1}} and {"score": "+1", "hint": "null"}', 1, None),
        ('<think>{"score": 1}</think>{"score": -1.0}', -1, None),
        ('quoted: {"score": 1, "hint": "leak"} mine: {"score": 0, "hint": null}', 0, None),
        ('{"score": "-1", "hint": "\\"Be brief.\\""}', -1, "Be brief."),
        (json.dumps({"score": -1, "hint": "x" * (HINT_CHARS + 1)}), -1, None),
        ('{"score": 0, "hint": null, "reason": ["?"]}', 0, None),
        ('{"score": -1, "hint": "Be brief.<|im_end|>"}', -1, None),
        ('{"score": -1, "hint": "Do not say <think>."}', -1, "Do not say <think>."),
    ],
)
def test_a_usable_vote(text: str, score: int, hint: str | None) -> None:
    vote = parse_vote(text)
    assert (vote.score, vote.hint, vote.error) == (score, hint, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The reply was good.",
        "\\boxed{1}",
        "[1]",
        '{"hint": "x"}',
        '{"score": null}',
        '{"score": true}',
        '{"score": 2}',
        '{"score": 0.5}',
        '{"score": "good"}',
        '{"score": [1]}',
        '{"score": NaN}',
        '{"score": 1, "hint": ["x"]}',
        '{"score": 1, "hint": ',
        '<think>perhaps {"score": 1}',
        'so.</think>\n<think>perhaps {"score": 1}',
        '{"score": 1e400}',
        "{" * 5000,
    ],
)
def test_other_answers_are_unusable_votes_with_an_error(text: str) -> None:
    vote = parse_vote(text)
    assert vote.score is None
    assert vote.error
    assert "expected" in vote.error
    assert len(vote.error) < 400


_ANY = st.characters(exclude_categories=())  # halves of surrogate pairs, too
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(_ANY, max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.just("score"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=80)
@given(st.text(max_size=40), JSON, st.text(max_size=40))
def test_any_text_is_parsed_without_an_invented_score(before: str, value: Any, after: str) -> None:
    vote = parse_vote(before + json.dumps(value) + after)
    assert vote.score in (1, 0, -1, None)
    assert (vote.score is None) == (vote.error is not None)
    for words in (vote.hint or "", vote.reason, vote.error or ""):
        words.encode()  # raises for half a surrogate pair


@pytest.mark.parametrize(
    ("subject", "read"),
    [("money\ud83d", "money?"), ("a\n b", "a b"), ('"money"', "money"), ("null", ""), (3, "")],
)
def test_the_subject_of_a_lesson_can_be_stored(subject: object, read: str) -> None:
    answer = json.dumps({"lesson": "Be brief.", "scope": "subject", "subject": subject})
    assert parse_lesson(answer)["subject"] == read
