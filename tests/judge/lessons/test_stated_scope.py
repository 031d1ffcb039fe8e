"""Words that limit a wish to a conversation or a subject, in the shipped languages: read, and no hindrance to rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.growth import check_linear_growth

from openclaw_rl.common.rules.lesson_topics import MAX_WISH_CHARS, HintTopics
from openclaw_rl.common.rules.rule_files import load_rule_files, rules_path
from openclaw_rl.common.rules.stated_scope import names_subject, normalise_subject
from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.rules import RulesJudge

FILES = RulesJudge.load().files
TOPICS = HintTopics(FILES)
SHORT, LONG = "length/short", "length/long"


def read(text: str) -> tuple[str | None, str | None]:
    """The topic of a complaint, and its scope: None for all prompts, "" for this conversation, or the subject."""
    rules = [rule for file in FILES for rule in file.matching_rules([("user", text)], "")]
    rule = next((rule for rule in rules if rule.topic), None)
    scope = TOPICS.find_scope([text], rule.hint) if rule is not None else None
    return (rule.topic if rule is not None else None), (
        scope.subject if scope is not None else None
    )


@pytest.mark.parametrize(
    "text",
    [
        "Shorter in this chat, please.",
        "For now, be more concise.",
        "Thanks. Shorter for the rest of this conversation, please.",
        "In diesem Gespräch bitte kürzer.",
        "Fürs Erste bitte kürzer.",
        "Plus court dans cette conversation, s'il te plaît.",
        "Más corto por ahora, por favor.",
        "在这个对话里请简短一点。",
        "この会話では短くしてください。",
    ],
)
def test_a_wish_for_this_conversation(text: str) -> None:
    assert read(text) == (SHORT, "")


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("When I ask about money, shorter please.", "money"),
        ("Shorter, please, when I ask about Python code.", "Python code"),
        ("Shorter, please, for questions about capitals.", "capitals"),
        ("When I ask about number theory, be more concise.", "number theory"),
        ("When I ask about users, make it shorter.", "users"),
        ("When I ask about node.js, shorter please.", "node.js"),
        ("Shorter, please, when I ask about version 3.5. Thanks.", "version 3.5"),
        ("When I ask about makers make it shorter.", "makers"),
        ("Kürzer, bitte, wenn ich nach Python frage.", "Python"),
        ("Wenn es um Geld geht, bitte kürzer.", "Geld"),
        ("Plus court, s'il te plaît, quand je parle de musique.", "musique"),
        ("Más corto, por favor, cuando pregunto por dinero.", "dinero"),
        ("当我问到编程的时候，请简短一点。", "编程"),
    ],
)
def test_a_wish_about_a_subject(text: str, subject: str) -> None:
    assert read(text) == (SHORT, subject)


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("Shorter, please.", SHORT),
        ("Too long. For now let me ask something else.", SHORT),
        ("More detail, please. What is this chat about?", LONG),
        (
            "When I ask about something that I have already told you three times over, shorter please.",
            SHORT,
        ),
        ("Kürzer, bitte. Was ist heute?", SHORT),
    ],
)
def test_a_wish_for_all_prompts(text: str, topic: str) -> None:
    assert read(text) == (topic, None)


def test_each_wish_has_a_separate_limit() -> None:
    text = "Shorter for now, please. Too casual."
    rules = {
        rule.topic: rule
        for file in FILES
        for rule in file.matching_rules([("user", text)], "")
        if rule.topic
    }
    scopes = {topic: TOPICS.find_scope([text], rule.hint) for topic, rule in rules.items()}
    assert set(scopes) == {SHORT, "tone/formal"}
    assert scopes[SHORT] is not None
    assert scopes["tone/formal"] is None


def test_scope_text_inside_other_words_stays() -> None:
    said = "The weather for nowadays: shorter for now, please."
    assert FILES[1].scopes.without_scopes(said) == "The weather for nowadays: shorter , please."


@pytest.mark.parametrize(
    "unit", ["的。问到x的时候。", "When I ask about x. ", "a.", "暂时。", "for now.a."]
)
def test_a_long_message_is_searched_in_linear_time(unit: str) -> None:
    def text(size: int) -> str:
        return (unit * size)[:size]

    def read_wishes(said: str) -> None:
        TOPICS.read_wishes({"role": "user", "content": said * 8}, "a reply")

    def find_scope(said: str) -> None:
        TOPICS.find_scope([said, said], "Keep answers short.")

    check_linear_growth(read_wishes, text, MAX_WISH_CHARS // 2)
    check_linear_growth(find_scope, text, MAX_WISH_CHARS // 2)


@given(st.text(max_size=300))
def test_any_text_can_be_searched_for_a_scope(text: str) -> None:
    for file in FILES:
        assert len(file.scopes.without_scopes(text)) <= len(text)


@pytest.mark.parametrize(
    "scopes", ["[]", "{}", "{sessions: x}", "{after: x}", "{session: '('}", "{session: 3}"]
)
def test_damaged_patterns_are_refused_by_name(tmp_path: Path, scopes: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"version: 1\nrules: [{{name: a, when: b, score: 1}}]\nscopes: {scopes}\n")
    with pytest.raises(ConfigError, match="`scopes`"):
        load_rule_files(rules_path(path))


@pytest.mark.parametrize(
    ("asked", "subject", "is_about"),
    [
        ("Write a Python function.", "python", True),
        ("What is a capital?", "capitals", True),
        ("Explain the python that ate a code book", "python code", True),
        ("Explain the python", "python code", False),
        ("Explain the code", "Python, code", True),
        ("pythonic", "python", False),
        ("请写一个编程例子", "编程", True),
        ("hi", "!!!", False),
        ("", "money", False),
    ],
)
def test_the_subject_is_found_in_a_prompt(asked: str, subject: str, is_about: bool) -> None:
    assert names_subject(asked, normalise_subject(subject)) is is_about


def test_many_subjects_are_searched_in_a_long_prompt_in_linear_time() -> None:
    asked = " ".join(f"word{number}" for number in range(1_500))

    def search(subjects: int) -> list[bool]:
        return [names_subject(asked, f"word{number}0") for number in range(subjects)]

    assert sum(search(1_000)) == 150 - 1, "word00 is none of them"
    check_linear_growth(search, lambda size: size, 1_000)
