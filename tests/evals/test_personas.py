"""The simulated user: reproducible, words only, and as hard on the rules as it says it is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.demo import personas
from benchmarks.demo.personas import DECK_SIZE, SUBTLE_CARDS, WRONG_CARDS, Persona
from benchmarks.starter_corpus import draw_style, write_answer

from openclaw_rl.common.rules.rule_files import Rule
from openclaw_rl.evals import phrases
from openclaw_rl.evals.phrases import INSTRUCTIONS, PhrasePool
from openclaw_rl.evals.styles import TASTES, VALUES, Taste
from openclaw_rl.evals.toy_world import Question, all_facts, questions_about, split_of
from openclaw_rl.judge.rules import RulesJudge

RULE_FILES = RulesJudge.load().files
QUESTIONS = {q.text: q for fact in all_facts() for q in questions_about(fact)}


def question_in(text: str) -> Question | None:
    """The question at the end of a user's message."""
    found = [q for known, q in QUESTIONS.items() if text.endswith(known)]
    return max(found, key=lambda q: len(q.text), default=None)


def matching(text: str, who: str = "user") -> list[Rule]:
    return [rule for file in RULE_FILES for rule in file.matching_rules([(who, text)], "")]


def verdict(text: str, who: str = "user") -> tuple[int | None, list[str]]:
    """Score and distinct hints, as the rule judge has them."""
    rules = matching(text, who)
    scores = {r.score for r in rules if r.score is not None}
    hints = dict.fromkeys(r.hint for r in rules if r.hint is not None)
    return (scores.pop() if len(scores) == 1 else None), list(hints)


def pools() -> Iterator[tuple[PhrasePool, int, list[str]]]:
    """Each pool with the score and the hints that its plain half must get."""
    for value in VALUES:
        yield phrases.PRAISE[value], 1, [INSTRUCTIONS[value][0]]
        yield phrases.COMPLAINT[value], -1, [INSTRUCTIONS[value][0]]
    yield from (
        (phrases.GENERIC_PRAISE, 1, []),
        (phrases.GENERIC_COMPLAINT, -1, []),
        (phrases.WRONG_ANSWER, -1, []),
    )


def talk(persona: Persona, replies: int, reply_to: Any = None) -> list[list[dict[str, str]]]:
    """Whole sessions with somebody who answers rightly, in styles of no pattern."""
    rng, sessions = random.Random(0), []
    while len(persona.log) < replies:
        history: list[dict[str, str]] = []
        while (text := persona.next_message(history)) is not None:
            question = question_in(text)
            answer = (
                "You are welcome."
                if question is None
                else write_answer(question.fact, draw_style(rng), rng)
            )
            answer = answer if reply_to is None else reply_to(text)
            history += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        sessions.append(history)
    return sessions


def test_rules_have_a_verdict_on_the_plain_half_and_none_on_the_subtle_half() -> None:
    for pool, score, hints in pools():
        assert {text: verdict(text) for text in pool.plain} == dict.fromkeys(
            pool.plain, (score, hints)
        )
        assert {text: matching(text) for text in pool.subtle} == {text: [] for text in pool.subtle}


def test_at_least_half_of_the_phrasings_are_unknown_to_the_rules() -> None:
    for pool, _, _ in pools():
        assert len(pool.subtle) >= len(pool.plain)
    assert SUBTLE_CARDS >= DECK_SIZE / 2


def test_rules_are_silent_on_questions() -> None:
    assert [q.text for fact in all_facts() for q in questions_about(fact) if matching(q.text)] == []


def test_a_question_after_the_reaction_does_not_change_the_verdict() -> None:
    questions = [q.text for fact in all_facts()[::7] for q in questions_about(fact)]
    for pool, score, hints in pools():
        for text in pool.plain:
            assert all(verdict(f"{text} {question}") == (score, hints) for question in questions)
        assert not any(matching(f"{text} {questions[0]}") for text in pool.subtle)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("thx, that fixed it!", 1),
        ("Not great.", -1),
        ("No, that's not what I asked for.", -1),
        ("You're wrong, it is 5", -1),
        ("No problem.", None),
        ("I see what is wrong with my code now", None),
        ("Thanks, but it is too long.", -1),
        ("not too long, perfect", 1),
        ("Can you say that in fewer words?", -1),
        ("Summarise the attached document in three pages", None),
        ("What is a perfect number?", None),
        ("Write a function that sorts a list", None),
        ("Where can I relax in Rome?", None),
    ],
)
def test_rules_score_messages_of_people(text: str, expected: int | None) -> None:
    assert verdict(text)[0] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback (most recent call last):\n  File x\nValueError: no", -1),
        ("bash: foo: command not found", -1),
        ("process exited with code 2", -1),
        ("exit code: 0", 1),
        ("exit code: 127", -1),
        ("12 passed in 0.31s", 1),
        ("FAILED tests/test_a.py::test_b\n1 failed, 11 passed in 0.4s", -1),
        ("error: cannot find module", -1),
        ("0 errors, 3 passed", 1),
        ("README.md  src  tests", None),
    ],
)
def test_rules_score_tool_results(text: str, expected: int | None) -> None:
    assert verdict(text, "tool")[0] == expected


def test_tool_rules_do_not_read_people_nor_the_other_way_round() -> None:
    assert verdict("command not found")[0] is None
    assert verdict("Perfect, thanks.", "tool")[0] is None


@pytest.mark.parametrize("taste", TASTES)
def test_the_same_seed_says_the_same(taste: Taste) -> None:
    first, second, other = (Persona(taste=taste, seed=seed) for seed in (1, 1, 2))
    assert talk(first, 40) == talk(second, 40) != talk(other, 40)
    assert first.log == second.log


@pytest.mark.parametrize("taste", TASTES)
def test_shares_hold_in_each_run(taste: Taste) -> None:
    persona = Persona(taste=taste, seed=5)
    talk(persona, 600)
    full = persona.log[: len(persona.log) // DECK_SIZE * DECK_SIZE]
    assert sum(not u.known for u in full) == len(full) * SUBTLE_CARDS / DECK_SIZE
    assert sum(u.is_wrong for u in full) == len(full) * WRONG_CARDS / DECK_SIZE
    assert {u.known for u in persona.log if verdict(u.phrase)[0] is not None} == {True}
    assert {u.known for u in persona.log if verdict(u.phrase)[0] is None} == {False}
    assert {u.praised for u in persona.log if verdict(u.phrase)[0] == 1} == {True}
    assert {u.praised for u in persona.log if verdict(u.phrase)[0] == -1} == {False}
    named = sum(verdict(u.phrase)[1] != [] for u in persona.log if u.known) / sum(
        u.known for u in persona.log
    )
    assert abs(named - personas.STYLE_NAMED_SHARE) < 0.1


def test_sessions_are_short_and_end_with_a_bare_reaction() -> None:
    persona = Persona(taste="short", seed=0)
    sessions = talk(persona, 100)
    lengths = [sum(u.session == n for u in persona.log) for n in range(len(sessions))]
    assert set(lengths) == {1, 2, 3, 4}
    for session, turns in zip(sessions, lengths, strict=True):
        texts = [m["content"] for m in session if m["role"] == "user"]
        asked = [question_in(text) for text in texts]
        assert len(texts) == turns + 1
        assert all(q is not None and split_of(q.fact) == "asked" for q in asked[:-1])
        assert asked[-1] is None
    uttered = iter(persona.log)
    for session in sessions:
        for text in [m["content"] for m in session if m["role"] == "user"][1:]:
            assert text.startswith(next(uttered).phrase)


def test_a_wrong_answer_is_no_satisfaction() -> None:
    persona = Persona(taste="short", seed=0)
    talk(persona, 60, reply_to=lambda _: "Certainly: Atlantis.")
    assert not any(u.satisfied or u.correct for u in persona.log)
    honest = [u.phrase for u in persona.log if not u.is_wrong]
    assert set(honest) <= {*phrases.WRONG_ANSWER.plain, *phrases.WRONG_ANSWER.subtle}


def test_an_empty_reply_and_a_system_message_are_accepted() -> None:
    persona = Persona(taste="bulleted", seed=0)
    history: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}]
    first = persona.next_message(history)
    assert first is not None
    history += [{"role": "user", "content": first}, {"role": "assistant", "content": None}]
    assert persona.next_message(history) is not None
    assert not persona.log[0].satisfied
