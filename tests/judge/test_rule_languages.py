"""The shipped rules in each language: a table of reactions, of which about half say nothing about the reply."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.rules.rule_files import Rule, RuleFile
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.types import JudgeInput, Reaction, Verdict

TABLES: dict[str, dict[str, Any]] = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in sorted((Path(__file__).parent / "languages").glob("*.yaml"))
}
TRANSLATED = [language for language in TABLES if language != "english"]
STATEMENT, QUESTION = "Here you are.", "Here you are. Do you want the first one?"


@cache
def shipped() -> RulesJudge:
    return RulesJudge.load()


def judged(text: str, reply: str = STATEMENT) -> Verdict:
    reaction = Reaction(
        turn="t",
        revision=1,
        messages=({"role": "user", "content": text},),
        source="u",
        how="x",
        at=1,
    )
    answer = {"role": "assistant", "content": reply}
    return asyncio.run(
        shipped().judge(JudgeInput(turn="t", messages=(), reply=answer, reaction=reaction))
    )


def rows(*kinds: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{name}-{text}")
        for name, table in TABLES.items()
        for k in kinds
        for text in table[k]
    ]


def hinted_rows(kind: str) -> list[Any]:
    return [
        pytest.param(*row, id=f"{name}-{row[0]}")
        for name, table in TABLES.items()
        for row in table[kind].items()
    ]


def rows_by_hint(kind: str) -> list[Any]:
    return [
        pytest.param(hint, text, id=f"{name}-{text}")
        for name, table in TABLES.items()
        for hint, texts in table[kind].items()
        for text in texts
    ]


def file_of(language: str) -> RuleFile:
    return next(file for file in shipped().files if file.rules[0].name.startswith(f"{language}/"))


def rules_of(language: str) -> tuple[Rule, ...]:
    return file_of(language).rules


def hints_by_topic(language: str) -> dict[str, str]:
    return {rule.topic: rule.hint for rule in rules_of(language) if rule.topic and rule.hint}


def wished_topics(language: str) -> set[str]:
    wishes = file_of(language).wishes
    return set(wishes.topics) if wishes is not None else set()


@pytest.mark.parametrize("text", rows("good"))
def test_praise_is_a_good_verdict(text: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (1, ()), verdict.reason


@pytest.mark.parametrize("text", rows("bad"))
def test_a_complaint_is_a_bad_verdict(text: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (-1, ()), verdict.reason


@pytest.mark.parametrize(("text", "hint"), hinted_rows("good_hints"))
def test_praise_for_a_style_says_what_to_keep(text: str, hint: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (1, (hint,)), verdict.reason


@pytest.mark.parametrize(("text", "hint"), hinted_rows("bad_hints"))
def test_a_wish_for_a_style_is_a_hint_in_the_persons_language(text: str, hint: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (-1, (hint,)), verdict.reason


@pytest.mark.parametrize(("hint", "text"), rows_by_hint("ways"))
def test_a_wish_is_recognised_in_many_phrasings(hint: str, text: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (-1, (hint,)), verdict.reason


@pytest.mark.parametrize(("hint", "text"), rows_by_hint("liked"))
def test_praise_is_recognised_in_many_phrasings(hint: str, text: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (1, (hint,)), verdict.reason


@pytest.mark.parametrize("language", TABLES)
def test_all_languages_have_hints_for_the_topics_of_english(language: str) -> None:
    assert set(hints_by_topic(language)) == set(hints_by_topic("english"))
    assert wished_topics(language) == wished_topics("english")


@pytest.mark.parametrize("language", TABLES)
def test_a_hint_text_is_recognised_as_its_topic(language: str) -> None:
    for topic, hint in hints_by_topic(language).items():
        verdict = judged(hint)
        assert (verdict.score, verdict.hints) == (-1, (hint,)), (topic, verdict.reason)


@pytest.mark.parametrize("language", TABLES)
def test_each_topic_has_one_hint_in_a_language(language: str) -> None:
    pairs = {(rule.topic, rule.hint) for rule in rules_of(language) if rule.hint}
    assert len(pairs) == len(hints_by_topic(language))


@pytest.mark.parametrize("text", rows("none"))
def test_messages_about_other_things_give_no_verdict(text: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (None, ()), verdict.reason


@pytest.mark.parametrize("text", rows("asked"))
def test_a_no_to_a_question_of_the_assistant_is_no_verdict(text: str) -> None:
    verdict = judged(text, QUESTION)
    assert verdict.score is None, verdict.reason


@pytest.mark.parametrize("language", TRANSLATED)
def test_each_language_has_a_file_forty_cases_and_half_of_them_without_a_verdict(
    language: str,
) -> None:
    table = TABLES[language]
    silent = len(table["none"]) + len(table["asked"])
    spoken = sum(len(table[kind]) for kind in ("good", "bad", "good_hints", "bad_hints"))
    assert (ASSETS / "rules" / f"{language}.yaml").is_file()
    assert spoken + silent >= 40
    assert silent >= 20
    assert set(TABLES) == {file.stem for file in (ASSETS / "rules").glob("*.yaml")} - {
        "tools",
        "signs",
    }
