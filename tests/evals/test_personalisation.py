"""The personalisation protocol: sessions, people, memory; and a person that a model behind a real endpoint plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from benchmarks.demo.protocol import (
    SessionLog,
    problems_of,
    run_session,
    sessions_until_satisfied,
)
from tests.judge.endpoint import always, serving

from openclaw_rl.errors import JudgeError
from openclaw_rl.evals.personalisation.people import (
    PEOPLE,
    ModelPerson,
    PersonEndpoint,
    RulePerson,
    parse_reaction,
    preference_notes,
)
from openclaw_rl.evals.toy_world import Question, facts_of, questions_about
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.settings.load import from_flat
from openclaw_rl.types import JudgeInput, Message, Reaction

FACT, OTHER = facts_of("asked")[:2]
QUESTION = questions_about(FACT)[0]
CASUAL, FORMAL, WRONG = (
    f"Yep: {FACT.answer}!",
    f"Certainly: {FACT.answer}.",
    f"Yep: {OTHER.answer}!",
)
LONG = (
    f"Certainly. {FACT.statement}. Should you require more, kindly ask. I remain at your disposal."
)


@pytest.mark.parametrize(
    ("satisfied", "sessions"),
    [("", None), ("110", None), ("111", 3), ("110111", 6), ("0111111", 4), ("101101", None)],
)
def test_sessions_until_three_in_a_row(satisfied: str, sessions: int | None) -> None:
    assert sessions_until_satisfied([one == "1" for one in satisfied]) == sessions


def session_of(
    replies: Sequence[str], *, max_replies: int = 3
) -> tuple[SessionLog, list[list[Message]], list[str]]:
    seen: list[list[Message]] = []
    heard: list[str] = []

    async def ask(history: Sequence[Message]) -> str:
        seen.append(list(history))
        return replies[len(seen) - 1]

    person = RulePerson(taste="casual", seed=1)
    log = asyncio.run(
        run_session(ask, person, QUESTION, max_replies=max_replies, heard=heard.append)
    )
    return log, seen, heard


def test_a_person_reacts_until_satisfied_and_sends_the_last_reaction() -> None:
    log, seen, heard = session_of([FORMAL, CASUAL, "You are welcome."])
    assert [one.satisfied for one in log.reactions] == [False, True]
    assert [one.correct for one in log.reactions] == [True, True]
    assert not log.first.satisfied
    said = [str(messages[-1]["content"]) for messages in seen]
    assert said == [QUESTION.text, f"{heard[0]} {QUESTION.text}", heard[1]]


def test_a_session_ends_after_the_most_replies() -> None:
    log, seen, heard = session_of([FORMAL, WRONG, FORMAL, "Noted."])
    assert [(one.satisfied, one.correct) for one in log.reactions] == [
        (False, True),
        (False, False),
        (False, True),
    ]
    assert seen[-1][-1]["content"] == heard[2], "without the question: nothing more is asked"


RULES = RulesJudge.load()


def verdict(reply: str, said: str) -> int | None:
    reaction = Reaction(
        turn="t",
        revision=1,
        messages=({"role": "user", "content": said},),
        source="u",
        how="exact",
        at=1.0,
    )
    item = JudgeInput(
        turn="t",
        messages=({"role": "user", "content": QUESTION.text},),
        reply={"role": "assistant", "content": reply},
        reaction=reaction,
    )
    return asyncio.run(RULES.judge(item)).score


@pytest.mark.parametrize("name", list(PEOPLE))
def test_the_rules_understand_the_simulated_people(name: str) -> None:
    """So what is measured is how a method learns, and not what the rules miss."""
    person = RulePerson(taste=PEOPLE[name].taste, seed=2)
    found = set()
    for reply in [CASUAL, FORMAL, WRONG, LONG] * 5:
        reaction = asyncio.run(person.react_to(QUESTION, reply))
        assert verdict(reply, reaction.text) == (1 if reaction.satisfied else -1)
        found.add(reaction.satisfied)
    assert found == {True, False}


def test_every_arm_gets_the_same_problems_and_none_is_held_out() -> None:
    first, again, other = (
        problems_of(1, "student"),
        problems_of(1, "student"),
        problems_of(2, "student"),
    )
    drawn: list[Question] = [first() for _ in range(40)]
    assert drawn == [again() for _ in range(40)]
    assert drawn != [other() for _ in range(40)]
    assert {q.fact for q in drawn} <= set(facts_of("asked"))


def test_notes_are_one_system_message_without_repetition() -> None:
    assert preference_notes([]) == []
    (message,) = preference_notes(["Shorter, please.", "No lists.", "Shorter, please."])
    assert message["role"] == "system"
    assert message["content"].count("Shorter, please.") == 1


def model_reaction(content: str, reply: str) -> tuple[Any, Any]:
    async def react() -> tuple[Any, Any]:
        async with serving(always(content)) as endpoint:
            config = from_flat({"judge.retries": 0})
            client = PersonEndpoint(
                url=f"http://127.0.0.1:{endpoint.port}/v1", model="m"
            ).make_client(config)
            try:
                return await ModelPerson(PEOPLE["teacher"], client).react_to(
                    QUESTION, reply
                ), endpoint
            finally:
                await client.close()

    return asyncio.run(react())


def test_a_model_plays_a_person() -> None:
    content = json.dumps({"satisfied": True, "message": "Lovely, thank you."})
    reaction, endpoint = model_reaction(content, FORMAL)
    assert (reaction.satisfied, reaction.correct, reaction.text) == (
        True,
        True,
        "Lovely, thank you.",
    )
    system, asked = (message["content"] for message in endpoint.seen[0]["messages"])
    assert "teacher" in system
    assert QUESTION.text in asked
    assert FORMAL in asked
    assert endpoint.headers[0]["x-turn-type"] == "side"
    wrong, _ = model_reaction(content, WRONG)
    assert (wrong.satisfied, wrong.correct) == (False, False), (
        "a model's praise does not make a wrong answer right"
    )


@pytest.mark.parametrize(
    "answer", ["", "yes", "{}", '{"satisfied": "no", "message": "x"}', '{"satisfied": true}', "[1]"]
)
def test_an_answer_that_is_no_reaction_is_an_error(answer: str) -> None:
    with pytest.raises(JudgeError, match="expected"):
        parse_reaction(answer)
