"""The shipped rules on reactions as people type them, half of them no evidence, in six languages.

`natural_reactions.jsonl` was written before the rules that read it, `later_reactions.jsonl` after them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.types import JudgeInput, Reaction, Verdict

FOLDER = Path(__file__).parent / "languages"
STATEMENT, QUESTION = "Here you are.", "Here you are. Shall I send it?"
LANGUAGES = ("en", "de", "fr", "es", "zh", "ja")


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


@cache
def shipped() -> RulesJudge:
    return RulesJudge.load()


def judged(text: str, role: str = "user", reply: str = STATEMENT) -> Verdict:
    reaction = Reaction(
        turn="t",
        revision=1,
        messages=({"role": role, "content": text},),
        source="u",
        how="x",
        at=1,
    )
    answer = {"role": "assistant", "content": reply}
    return asyncio.run(
        shipped().judge(JudgeInput(turn="t", messages=(), reply=answer, reaction=reaction))
    )


def outcomes(name: str) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for row in rows(name):
        score = judged(row["text"], row["role"]).score
        if score == row["expected"]:
            counts["right"] += 1
        elif score is None:
            counts["silent"] += 1
        else:
            counts["wrong"] += 1
            wrong.append(row["text"])
    return counts, wrong


def test_natural_reactions_are_understood_and_none_is_turned_round() -> None:
    counts, wrong = outcomes("natural_reactions.jsonl")
    assert counts["right"] >= 145, counts
    assert not wrong


def test_later_reactions_give_at_most_two_wrong_verdicts() -> None:
    counts, wrong = outcomes("later_reactions.jsonl")
    assert counts["right"] >= 0.9 * sum(counts.values()), counts
    assert len(wrong) <= 2, wrong


def test_half_of_the_natural_reactions_are_no_evidence_or_traps_in_each_language() -> None:
    natural = rows("natural_reactions.jsonl")
    assert Counter(row["language"] for row in natural) == dict.fromkeys(LANGUAGES, 25)
    traps = [row for row in natural if row["expected"] is None or row["kind"] == "tool-result"]
    assert len(traps) >= 70


@pytest.mark.parametrize("row", rows("asked_wishes.jsonl"), ids=lambda row: row["text"])
def test_a_wish_may_be_a_question(row: dict[str, str]) -> None:
    verdict = judged(row["text"])
    topics = {
        rule.topic for file in shipped().files for rule in file.rules if rule.hint in verdict.hints
    }
    assert (verdict.score, topics) == (-1, {row["topic"]}), verdict.reason


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("👍", 1),
        ("👍🏻", 1),
        (":+1:", 1),
        ("👎👎", -1),
        ("🤦‍♀️", -1),
        ("???", -1),
        ("👍 👎", None),
        ("🤔", None),
        ("?", None),
        ("what does the 👎 icon do", None),
        ("Slack reaction added: :+1: by Ann in #general msg 1764.2", 1),
        ("Slack reaction added: :thumbsdown:", -1),
        ("Slack reaction removed: :+1: by Ann", None),
        ("System: [2026-01-01 10:00:00] Discord reaction added: 👎 by x on #general msg 1", -1),
        ("Telegram reaction added: 😡 by Bob on msg 4", -1),
        ("Teams reaction: like", 1),
        ("Teams reaction: angry", -1),
        ("Ann reacted with 👍", 1),
        ("Disliked “that is it”", -1),
    ],
)
def test_signs_and_the_reaction_lines_of_chat_programs(text: str, score: int | None) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (score, ()), verdict.reason


@pytest.mark.parametrize("text", ["👍", "👎", ":+1:", "it's 1989, not 1991", "C, not Python"])
def test_an_answer_to_a_question_of_the_assistant_is_no_verdict(text: str) -> None:
    assert judged(text).score is not None
    assert judged(text, reply=QUESTION).score is None


@pytest.mark.parametrize(
    "text",
    [
        "My sister wrote me: too long, didn't read. What should I answer?",
        "The customer replied: shorter, please.\nHow do I do that?",
        'He said "that is wrong". Is it?',
        "“Too long. Keep it short.” is the comment under my essay",
        "> Too long. Keep it short.\nwho wrote this?",
        "Mein Chef schreibt: zu lang, bitte kürzer. Was tun?",
        "Mon prof m'a écrit : trop long. Que faire ?",
        "Mi jefe me escribió: demasiado largo. ¿Qué hago?",
        "老师写道：太长了。我该怎么改？",
        "先生に「長すぎる」と言われました",
    ],
)
def test_words_of_others_are_neither_a_verdict_nor_a_wish(text: str) -> None:
    verdict = judged(text)
    assert (verdict.score, verdict.hints) == (None, ()), verdict.reason


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("That is wrong. My boss says it is 1989.", -1),
        ('Perfect, thank you! He wrote "too long" under the last one.', 1),
    ],
)
def test_own_words_before_those_of_others_count(text: str, score: int) -> None:
    assert judged(text).score == score


@pytest.mark.parametrize(
    "text",
    [
        "great, another wall of text",
        "Super, encore un pavé de trois pages.",
        "Genial, otro tocho de dos páginas.",
        "真棒，又是一大篇看不完的。",
    ],
)
def test_mocking_praise_is_a_complaint(text: str) -> None:
    assert judged(text).score in (-1, None)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Error executing tool read_file: no such file", -1),
        ("Error calling tool 'search': missing argument", -1),
        ("ENOENT: no such file or directory, open 'a.txt'", -1),
        ('{"success": false, "reason": "no such user"}', -1),
        ('{"ok": false}', -1),
        ("File a.txt does not exist.", -1),
        ("[exit code: 2]", -1),
        ('{"success": true, "id": 4}', 1),
        ('{"ok": true, "errors": []}', 1),
        ('{"city": "Oslo", "temp_c": -3}', 1),
        ("(no matches)\n[exit code: 1]", None),
        ("503 Service Unavailable", None),
        ('{"error": "rate limit exceeded, retry later"}', None),
        ("notes.md:3: the file does not exist? Run setup", None),
        ("[]", None),
    ],
)
def test_what_frameworks_say_of_a_call(text: str, score: int | None) -> None:
    verdict = judged(text, "tool")
    assert verdict.score == score, verdict.reason
