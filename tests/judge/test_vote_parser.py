"""From words to a vote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.growth import check_linear_growth

from openclaw_rl.errors import JudgeError
from openclaw_rl.judge.vote_parser import HINT_CHARS, check_answer, parse_lesson, parse_vote


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


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"reason": "thanks", "score": +1, "hint": null}', 1),
        ('{"reason": "the user\nsaid thanks", "score": "+1", "hint": null}', 1),
        ('{"reason": "thanks", "score": "+1", "hint": null,}', 1),
        ('{"reason": "thanks", "score": "1.0", "hint": null}', 1),
        ('{"reason": "thanks", "score": 1.0}', 1),
        ('{"reason": "bad", "score": "\N{MINUS SIGN}1", "hint": null}', -1),
        ('{"reason": "bad", "score": "\N{EN DASH}1", "hint": null}', -1),
        ('{"reason": "bad", "score": "\N{FULLWIDTH HYPHEN-MINUS}1"}', -1),
        ('{"Reason": "thanks", "Score": "+1", "Hint": null}', 1),
        ('{"REASON": "thanks", "SCORE": -1}', -1),
        ("{'reason': 'it\\'s good', 'score': 1, 'hint': None}", 1),
        ('{reason: "thanks", score: 1}', 1),
        ('```json\n{"reason": "thanks", "score": +1,}\n```', 1),
        ('I think {so}.\n{"reason": "a\tb", "score": " +1 "}', 1),
        ('{"reason": "nothing", "score": "+0"}', 0),
    ],
)
def test_a_vote_that_is_not_quite_json_counts(answer: str, score: int) -> None:
    vote = parse_vote(answer)
    assert (vote.score, vote.error) == (score, None)


@pytest.mark.parametrize("score", ['"2"', "1.5", '"1 or -1"', '"nan"', "true", "[1]", '""'])
def test_another_score_is_unusable(score: str) -> None:
    assert parse_vote(f'{{"reason": "r", "score": {score}}}').error is not None


def test_an_answer_in_parts_is_its_text_parts() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [
        thinking,
        {"type": "text", "text": '{"score":'},
        {"type": "output_text", "text": " 1}"},
    ]
    assert check_answer(parts, "stop", "judge") == '{"score": 1}'
    with pytest.raises(JudgeError):
        check_answer([thinking], "stop", "judge")


def test_many_braces_are_read_in_linear_time() -> None:
    assert parse_vote("{a: " * 16_000).error is not None
    check_linear_growth(parse_vote, lambda size: "{a: " * size, 16_000)
