"""Each property of a reply holds and is violated as its definition says, whatever model wrote the reply."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.evals.reply_properties import PROPERTIES, TaskReply, find_violations

FACT = "The colour of a ripe banana is yellow."


def violated(name: str, argument: Any, text: str, **more: Any) -> bool:
    return find_violations(TaskReply(text=text, **more), {name: argument})[name] is not None


@pytest.mark.parametrize(
    ("name", "argument", "text"),
    [
        ("text_present", None, FACT),
        ("no_repetition", None, FACT),
        ("no_repetition", None, "Three words only"),
        ("reference_answer", ["yellow"], FACT),
        ("reference_answer", ["Yellow"], "YELLOW!"),
        ("reference_answer", ["carbon dioxide", "CO2"], "It is CO₂."),
        ("reference_answer", ["one hundred"], "One hundred degrees."),
        ("max_words", 8, FACT),
        ("min_words", 8, FACT),
        ("sentence_count", 1, FACT),
        ("sentence_count", 1, "It costs 3.50 euros"),
        ("sentence_count", 2, "Really?! Yes."),
        ("bullet_count", 2, "Here:\n- one\n* two"),
        ("plain_text", None, FACT + "\nIt is 5 - 3 * 2, in 1999. Yes."),
        ("json_object", ["a"], '{"a": 1}'),
        ("json_object", ["a"], '```json\n{"a": [1]}\n```'),
        ("reply_language", "en", FACT),
        ("reply_language", "de", "Eine Woche hat sieben Tage."),
        ("reply_language", "fr", "Le plus grand océan est l'océan Pacifique."),
        ("reply_language", "es", "El perro es el mejor amigo del hombre."),
        ("reply_language", "zh", "葡萄牙的首都是里斯本。"),
        ("reply_language", "ja", "ポルトガルの首都はリスボンです。"),
        ("letter_case", "lower", "it is the yen, 100 of them."),
        ("letter_case", "upper", "IT IS LATE, 8 O'CLOCK."),
        ("forbidden_words", ["hour"], "It measures time, not hourglasses."),
        ("end_phrase", "Anything else?", "It is 17. anything else?\n"),
    ],
)
def test_a_property_holds(name: str, argument: Any, text: str) -> None:
    assert not violated(name, argument, text)


@pytest.mark.parametrize(
    ("name", "argument", "text"),
    [
        ("text_present", None, ""),
        ("text_present", None, " ... "),
        ("no_repetition", None, "December " * 40),
        ("no_repetition", None, "I am happy to help you. " * 3),
        ("reference_answer", ["yellow"], "It is yellowish."),
        ("reference_answer", ["one hundred"], "One or a hundred."),
        ("reference_answer", ["yellow"], ""),
        ("max_words", 7, FACT),
        ("min_words", 9, FACT),
        ("sentence_count", 1, "One. Two."),
        ("sentence_count", 1, "..."),
        ("bullet_count", 2, "- one\n- two\n- three"),
        ("bullet_count", 1, "1. one"),
        ("plain_text", None, "It is **yellow**."),
        ("plain_text", None, "Two things:\n1. yellow\n2. ripe"),
        ("plain_text", None, "# Banana"),
        ("json_object", ["a"], 'Sure: {"a": 1}'),
        ("json_object", ["a"], "[1]"),
        ("json_object", ["a"], "[" * 100_000),
        ("json_object", ["a"], '{"a": 1, "b": 2}'),
        ("reply_language", "de", FACT),
        ("reply_language", "de", ""),
        ("letter_case", "lower", FACT),
        ("letter_case", "upper", FACT),
        ("forbidden_words", ["Hour"], "It shows the hour."),
        ("end_phrase", "Anything else?", "Anything else? Ask."),
    ],
)
def test_a_property_is_violated(name: str, argument: Any, text: str) -> None:
    assert violated(name, argument, text)


def test_a_reply_that_was_cut_off_is_not_finished() -> None:
    assert violated("finished", None, FACT, finish_reason="length")
    assert not violated("finished", None, FACT, finish_reason="stop")


def test_the_tone_of_a_reply_changes_nothing() -> None:
    """The word lists of the simulated users' tastes are no property of other models' replies."""
    wanted = {
        "reference_answer": ["yellow"],
        "max_words": 10,
        "sentence_count": 1,
        "plain_text": None,
    }
    for text in (FACT, "Certainly, a ripe banana is yellow.", "Yep, it's yellow, buddy!"):
        assert set(find_violations(TaskReply(text=text), wanted).values()) == {None}


def test_every_property_has_a_definition_and_a_source() -> None:
    for name, one in PROPERTIES.items():
        assert one.name == name
        assert len(one.definition) > 20
        assert one.source
