"""The everyday person: reproducible, words only, and understood by the shipped rules often enough to learn from."""

from __future__ import annotations

import pytest
from benchmarks.demo.everyday_person import (
    EverydayPerson,
    asked_prompts,
    closed_questions,
    complaints,
    held_out_prompts,
    praises,
)
from benchmarks.demo.everyday_tastes import EVERYDAY_TASTES, TasteName, count_words, reading_grade

from openclaw_rl.common.rules.rule_files import Rule
from openclaw_rl.judge.rules import RulesJudge

RULE_FILES = RulesJudge.load().files
TOPICS: dict[TasteName, str] = {
    "short": "length/short",
    "bullets": "form/list",
    "calm": "marks/none",
    "question": "ending/question",
    "plain": "words/plain",
}
EXAMPLES: dict[TasteName, tuple[str, str]] = {
    "short": ("Boil it for seven minutes.", "word " * 19),
    "bullets": ("Try this:\n- Sleep more\n- Eat less", "One thing - and another.\n- Only one item"),
    "calm": ("Boil it for seven minutes.", "Boil it! 🥚"),
    "question": ('Boil it. Do you like it soft?"', "Do you like it soft? Then boil it."),
    "plain": (
        "Put the egg in hot water. Wait a bit. Take it out.",
        "Immersion facilitates coagulation of proteins.",
    ),
}


def matching_rules(text: str) -> list[Rule]:
    return [rule for file in RULE_FILES for rule in file.matching_rules([("user", text)], "")]


@pytest.mark.parametrize("taste", EVERYDAY_TASTES)
def test_a_taste_is_decided_by_the_text_alone(taste: TasteName) -> None:
    liked, disliked = EXAMPLES[taste]
    assert EVERYDAY_TASTES[taste].is_met(liked)
    assert not EVERYDAY_TASTES[taste].is_met(disliked)
    assert not EVERYDAY_TASTES[taste].is_met("")


@pytest.mark.parametrize("taste", EVERYDAY_TASTES)
def test_half_of_the_complaints_name_the_wish_to_the_rules_and_none_names_another(
    taste: TasteName,
) -> None:
    topics = [
        {rule.topic for rule in matching_rules(text) if rule.topic} for text in complaints(taste)
    ]
    assert sum(found == {TOPICS[taste]} for found in topics) >= len(topics) / 2
    assert all(found <= {TOPICS[taste]} for found in topics)
    assert all(rule.score != 1 for text in complaints(taste) for rule in matching_rules(text))


def test_no_praise_is_read_as_a_complaint_or_as_a_wish() -> None:
    rules = [rule for text in praises() for rule in matching_rules(text)]
    assert rules
    assert all(rule.score == 1 and rule.topic is None for rule in rules)


@pytest.mark.parametrize("taste", EVERYDAY_TASTES)
def test_the_same_seed_and_replies_give_the_same_messages(taste: TasteName) -> None:
    def talk(seed: int) -> list[str]:
        person = EverydayPerson(taste=taste, seed=seed)
        messages = []
        for _ in range(40):
            history: list[dict[str, object]] = []
            while (text := person.next_message(history)) is not None:
                messages.append(text)
                reply = EXAMPLES[taste][len(messages) % 2]
                history += [
                    {"role": "user", "content": text},
                    {"role": "assistant", "content": reply},
                ]
        assert {reaction.satisfied for reaction in person.log} == {True, False}
        return messages

    assert talk(1) == talk(1) != talk(2)


def test_measured_questions_are_never_asked() -> None:
    assert not set(held_out_prompts()) & set(asked_prompts())
    assert len(set(held_out_prompts())) == 48
    assert len(set(asked_prompts())) >= 100
    assert len({one.question for one in closed_questions()}) == 100


def test_reading_grades_are_computed_from_words() -> None:
    assert count_words("It's a well-known fact: 3 eggs.") == 6
    assert (
        reading_grade("The cat sat on the mat.")
        < 1
        < 12
        < reading_grade("Photosynthetic organisms metabolise.")
    )
    assert reading_grade("...") == float("inf")
