"""The little world: split, answers, writers and checks."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import get_args

import pytest
from benchmarks.starter_corpus import ReplyStyle, draw_style, write_answer
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.evals.styles import (
    OPPOSITE,
    TASTES,
    Format,
    Length,
    Tone,
    has_style,
)
from openclaw_rl.evals.toy_world import (
    FAMILIES,
    Fact,
    all_facts,
    draw_question,
    facts_of,
    held_out_questions,
    is_correct,
    questions_about,
    split_of,
)

STYLES = [
    ReplyStyle(length=length, tone=tone, format=form)
    for length in get_args(Length)
    for tone in get_args(Tone)
    for form in get_args(Format)
]
PERU = next(fact for fact in all_facts() if fact.key == "capital/Peru")
a_fact = st.sampled_from(all_facts())
a_style = st.sampled_from(STYLES)


def test_there_are_hundreds_of_distinct_facts() -> None:
    keys = [fact.key for fact in all_facts()]
    assert len(keys) == len(set(keys)) >= 200


def test_split_is_disjoint_whole_and_in_every_family() -> None:
    asked, held_out = set(facts_of("asked")), set(facts_of("held_out"))
    assert not asked & held_out
    assert asked | held_out == set(all_facts())
    assert min(len(asked), len(held_out)) > 80
    for family in FAMILIES:
        assert {split_of(fact) for fact in all_facts() if fact.family == family.name} == {
            "asked",
            "held_out",
        }


def test_split_does_not_move() -> None:
    """Figures that were measured on one release must mean the same on the next."""
    by_key = {fact.key: split_of(fact) for fact in all_facts()}
    assert [
        by_key[key] for key in ("capital/Peru", "sum/2 plus 2", "capital/Spain", "sum/3 plus 4")
    ] == [
        "asked",
        "asked",
        "held_out",
        "held_out",
    ]


def test_no_two_questions_are_the_same() -> None:
    texts = [question.text for fact in all_facts() for question in questions_about(fact)]
    assert len(texts) == len(set(texts))
    assert all(len(questions_about(fact)) >= 3 for fact in all_facts())


def test_questions_come_from_the_requested_split() -> None:
    rng = random.Random(0)
    assert {split_of(draw_question("asked", rng).fact) for _ in range(300)} == {"asked"}
    assert {split_of(q.fact) for q in held_out_questions(300, rng)} == {"held_out"}


def test_held_out_questions_are_spread_evenly_and_repeatable() -> None:
    count = 2 * len(facts_of("held_out"))
    questions = held_out_questions(count, random.Random(3))
    assert set(Counter(q.fact for q in questions).values()) == {2}
    assert questions == held_out_questions(count, random.Random(3))


@given(a_fact, a_style, st.integers())
def test_a_written_reply_has_its_style_its_answer_and_none_of_the_opposites(
    fact: Fact, style: ReplyStyle, seed: int
) -> None:
    reply = write_answer(fact, style, random.Random(seed))
    for value in (style.length, style.tone, style.format):
        assert has_style(value, reply)
        assert not has_style(OPPOSITE[value], reply)
    assert all(is_correct(question, reply) for question in questions_about(fact))


@given(a_fact, a_fact, a_style)
def test_another_facts_reply_is_wrong(mine: Fact, theirs: Fact, style: ReplyStyle) -> None:
    if (
        mine.family == theirs.family
        and mine.answer != theirs.answer
        and mine.answer not in theirs.statement
    ):
        assert not is_correct(
            questions_about(mine)[0], write_answer(theirs, style, random.Random(0))
        )


def test_hedging_is_wrong() -> None:
    (question,) = (q for q in questions_about(PERU) if q.text == "What is the capital of Peru?")
    assert is_correct(question, "I think it is Lima.")
    assert not is_correct(question, "It is Lima or Paris.")
    assert not is_correct(question, "Limal.")
    assert not is_correct(question, "")


def test_styles_are_drawn_independently() -> None:
    rng = random.Random(1)
    counts = Counter(draw_style(rng) for _ in range(4000))
    assert len(counts) == 8
    assert all(400 < n < 600 for n in counts.values())


@pytest.mark.parametrize(
    ("reply", "has"),
    [
        ("Lima.", {"short"}),
        ("* Lima\n* Peru", {"short", "bulleted"}),
        ("Certainly! Hey, it's Lima.", {"short"}),
        ("", set()),
        ("  \n", set()),
        (
            "Yep, Lima it is, and I could go on about it for quite some time, my friend.",
            {"long", "casual"},
        ),
    ],
)
def test_checks_hold_for_replies_that_the_writers_never_give(reply: str, has: set[str]) -> None:
    assert {taste for taste in TASTES if has_style(taste, reply)} == has


def test_values_of_a_style_can_be_set_one_by_one() -> None:
    style = ReplyStyle(length="long", tone="formal", format="prose")
    for value in OPPOSITE:
        changed = style.with_value(value)
        assert value in (changed.length, changed.tone, changed.format)
        assert changed.with_value(OPPOSITE[value]) == style or value in (
            style.length,
            style.tone,
            style.format,
        )


def test_answers_follow_the_opening() -> None:
    """The first mark ends what settles the style, before anything that depends on the fact."""
    for style in STYLES:
        openings = {
            re.split(r"(?<=[:.!])", write_answer(fact, style, random.Random(0)))[0]
            for fact in all_facts()
        }
        assert len(openings) == 1
