"""The starter obeys the hints of all six rule files, alone and together, and its answers stay right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from benchmarks.build_starter import sample
from benchmarks.starter_corpus import (
    HINTS,
    TOPICS,
    draw_dialogues,
    draw_style,
    with_hint,
    write_answer,
)

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.evals.styles import has_style
from openclaw_rl.evals.toy_world import all_facts, held_out_questions, is_correct
from openclaw_rl.render.hint import lessons_hint

QUESTIONS = 40
LANGUAGES = ("english", "german", "french", "spanish", "chinese", "japanese")
OBEYS: Mapping[str, Callable[[str], bool]] = {
    "length/short": lambda reply: has_style("short", reply),
    "length/long": lambda reply: has_style("long", reply),
    "tone/formal": lambda reply: has_style("formal", reply),
    "tone/casual": lambda reply: has_style("casual", reply),
    "form/list": lambda reply: has_style("bulleted", reply),
    "form/prose": lambda reply: has_style("prose", reply),
    "marks/none": lambda reply: "!" not in reply,
    "marks/some": lambda reply: "!" in reply,
    "ending/question": lambda reply: reply.endswith("?"),
    "ending/none": lambda reply: not reply.endswith("?"),
    "words/plain": lambda reply: True,
    "words/technical": lambda reply: True,
}


def draw_topics(rng: random.Random, count: int) -> list[str]:
    """Draw topics of different subjects."""
    while True:
        topics = rng.sample(sorted(OBEYS), k=count)
        if len({topic.partition("/")[0] for topic in topics}) == count:
            return topics


@cache
def starter() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ASSETS / "starter"
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(
        folder
    )


def shares(language: str, count: int) -> tuple[float, float]:
    """Return how many replies are right, and how many hints are obeyed, with `count` hints in each prompt."""
    import torch

    torch.manual_seed(count)
    rng = random.Random(f"{language}{count}")
    questions = held_out_questions(QUESTIONS, rng)
    topics = [draw_topics(rng, count) for _ in questions]
    hints = [lessons_hint(HINTS[pick(language, rng)][topic] for topic in some) for some in topics]
    model, tokenizer = starter()
    prompts = [
        with_hint(q.text, hint) if hint else q.text
        for q, hint in zip(questions, hints, strict=True)
    ]
    replies = [text for text, _ in sample(model, tokenizer, prompts)]
    right = [
        is_correct(question, reply) for question, reply in zip(questions, replies, strict=True)
    ]
    obeyed = [
        OBEYS[topic](reply) for some, reply in zip(topics, replies, strict=True) for topic in some
    ]
    return mean(right), mean(obeyed)


def mean(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 1.0


def pick(language: str, rng: random.Random) -> str:
    return rng.choice(LANGUAGES) if language == "mixed" else language


def test_the_corpus_has_all_hints_of_all_languages() -> None:
    assert set(HINTS) == set(LANGUAGES)
    assert all(set(hints) == set(TOPICS) == set(OBEYS) for hints in HINTS.values())
    said = " ".join(message["content"] for d in draw_dialogues(3000, 0) for message in d.messages)
    seen = Counter({hint: said.count(hint) for hints in HINTS.values() for hint in hints.values()})
    assert min(seen.values()) >= 5, seen.most_common()[-3:]


@pytest.mark.parametrize("topic", sorted(OBEYS))
def test_written_replies_obey_a_hint(topic: str) -> None:
    rng = random.Random(0)
    for fact in all_facts():
        reply = write_answer(fact, draw_style(rng).with_topic(topic), rng)
        assert OBEYS[topic](reply), reply
        assert fact.answer in reply


def test_written_replies_obey_four_hints_at_once() -> None:
    rng = random.Random(0)
    for fact in all_facts():
        style, topics = draw_style(rng), draw_topics(rng, 4)
        for topic in topics:
            style = style.with_topic(topic)
        reply = write_answer(fact, style, rng)
        assert all(OBEYS[topic](reply) for topic in topics), (topics, reply)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("language", [*LANGUAGES, "mixed"])
def test_the_starter_is_right_under_hints_and_obeys_them(language: str, count: int) -> None:
    right, obeyed = shares(language, count)
    assert right >= 0.9
    assert obeyed >= 0.85
