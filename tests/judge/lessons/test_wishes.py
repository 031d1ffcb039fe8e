"""What a message asks of its own reply, by the shipped rules, and which lessons it contradicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.common.rules.lesson_topics import HintTopics, is_contradicted
from openclaw_rl.common.rules.rule_files import load_rule_files, rules_path
from openclaw_rl.errors import ConfigError

LONG, SHORT = "length/long", "length/short"
CASES = {
    "What is photosynthesis? This time in detail, please.": {LONG},
    "Explain the French Revolution at length.": {LONG},
    "I know I said short answers, but could you give me a longer explanation here?": {LONG},
    "Just here: in one sentence, please.": {SHORT},
    "More detail, please.": {LONG},
    "Write it in a formal tone this time.": {"tone/formal"},
    "Explain this in detail, as a bulleted list.": {LONG, "form/list"},
    "What is the capital of France?": set(),
    "Please do not explain it in detail.": set(),
    "The report describes the accident. It goes on at length.": set(),
    "Wie funktioniert das? Diesmal bitte ausführlich.": {LONG},
    "Explique la photosynthèse en détail, cette fois.": {LONG},
    "Esta vez, responde en una frase.": {SHORT},
    "这次请详细回答。": {LONG},
    "今回は詳しく説明してください。": {LONG},
}


@pytest.fixture(scope="module")
def topics() -> HintTopics:
    return HintTopics(load_rule_files(rules_path(None))[0])


@pytest.mark.parametrize("text", CASES)
def test_wishes_in_a_message_are_read(topics: HintTopics, text: str) -> None:
    assert topics.read_wishes({"role": "user", "content": text}, None).topics == CASES[text]


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("Too long. What is the capital of France?", {SHORT: "Keep answers short."}),
        ("Kürzer, bitte. Was ist die Hauptstadt von Frankreich?", {SHORT: "Antworte kurz."}),
        (
            "Too long. Too casual.",
            {SHORT: "Keep answers short.", "tone/formal": "Use a formal tone."},
        ),
        ("Too long. But this time more detail, please.", {}),
        ("Perfect, thanks!", {}),
        ("Write a story.", {}),
    ],
)
def test_hints_on_the_reply_before_a_message_are_read(
    topics: HintTopics, text: str, hints: dict[str, str]
) -> None:
    message = {"role": "user", "content": text}
    assert topics.read_wishes(message, "Paris is the capital.").hints == hints
    assert not topics.read_wishes(message, None).hints, "the first message is about no reply"


def test_which_lessons_a_wish_contradicts() -> None:
    assert is_contradicted(SHORT, frozenset({LONG}))
    assert not is_contradicted(SHORT, frozenset({LONG, SHORT})), "it is not clear"
    assert not is_contradicted("tone/formal", frozenset({LONG}))
    assert not is_contradicted("", frozenset({LONG}))


def test_a_lesson_of_a_model_has_the_topic_of_the_rule_that_says_the_same(
    topics: HintTopics,
) -> None:
    assert topics.topic_of("Be brief.") == SHORT
    assert topics.topic_of("Cite your sources.") == ""
    assert topics.topic_of("Be brief.", "length/own") == "length/own"


UNREADABLE = (
    "[]",
    "{asked: now}",
    "{asked: now, topics: {long: x}}",
    "{topics: {length/long: x}}",
    "{asked: '(', topics: {length/long: x}}",
)


@pytest.mark.parametrize("wishes", UNREADABLE)
def test_wishes_that_cannot_be_read(tmp_path: Path, wishes: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(f"version: 1\nrules: [{{name: a, when: a, score: 1}}]\nwishes: {wishes}\n")
    with pytest.raises(ConfigError, match="`wishes`"):
        load_rule_files(file)
