"""With `policy.per`, each policy practises its own lessons on its own prompts. With the real trainer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.practice.conftest import LONG, SHORT, ScriptedReplies, add_lesson
from tests.train.conftest import put
from tests.train.test_own_policies import ANN, BOB, Home, model, turns_of

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.gates.reply_source import GateReply, RepliesDelayed, ReplyOrder
from openclaw_rl.practice.prompts import PromptSelector
from openclaw_rl.practice.session import PracticeSession
from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import practice_turns
from openclaw_rl.store.lineage import policies, policy_names
from openclaw_rl.store.lineage.policy_names import PolicyOwner
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import JudgedTurn, Kind

__all__ = ["model"]
Make = Callable[..., JudgedTurn]
LESSONS = {
    "ann": replace(SHORT, policy=ANN, scope_value="ann"),
    "bob": replace(LONG, policy=BOB, scope_value="bob"),
}
STEPS = 2
"""One after the person's word, and one that the step on their turns allows."""


def practising_home(
    folder: Path,
    model: str,
    replies: ScriptedReplies,
    *,
    per: PolicyOwner = "agent",
    **settings: Any,
) -> Home:
    def practice(store: Store, builder: SampleBuilder) -> PracticeSession:
        values = {"replies": 4, "step_limit": 1, "max_divergence": 1e-9} | settings
        selector = PromptSelector(
            renderer=builder.renderer,
            transient=EphemeralMatcher([]),
            key=store.secret,
            read_topics=lambda: load_topics(None),
        )
        return PracticeSession(store, PracticeConfig(**values), selector, replies, per=per)

    return Home(folder, model, per=per, practice=practice)


def teach(home: Home, judged: Make, *agents: str) -> None:
    """Each agent gets four turns, and the lesson of one."""
    taught = {agent: turns_of(judged, agent, 4) for agent in agents}
    put(home.store, [turn for turns in taught.values() for turn in turns])
    for agent, turns in taught.items():
        add_lesson(home.store, LESSONS[agent], [turns[0].turn.id])
    while home.loop.run_once():
        pass


def practised(home: Home, name: str) -> dict[str, str]:
    """The agent and the lesson of each turn of practice on a policy's lineage, by its id."""
    lesson_by_turn = {}
    with home.store.read() as conn:
        for version in policies.lineage(conn, policies.head(conn, name).version):
            uses = policies.uses_of_version(conn, version)
            for exchange in exchanges.get_many(conn, [use.turn for use in uses]).values():
                if exchange.request.kind is Kind.PRACTICE:
                    (row,) = practice_turns.lessons_of_practice(conn, [exchange.request.id]).keys()
                    lesson_by_turn[exchange.request.id] = f"{exchange.request.agent} {row}"
    return lesson_by_turn


def test_each_policy_practises_its_own_lessons_as_if_alone(
    tmp_path: Path, judged: Make, model: str, replies: ScriptedReplies
) -> None:
    """Weights, optimizer and trainer state are the same to the bit with and without the other agent."""
    both = practising_home(tmp_path / "both", model, replies)
    teach(both, judged, "ann", "bob")
    alone = practising_home(tmp_path / "alone", model, replies)
    teach(alone, judged, "ann")
    assert list(practised(both, ANN).values()) == ["ann aa"] * 4 * STEPS
    assert list(practised(both, BOB).values()) == ["bob bb"] * 4 * STEPS
    assert len(both.lineage(ANN)) == len(both.lineage(BOB)) == len(alone.lineage(ANN)) == 2 + STEPS
    assert both.files(ANN) == alone.files(ANN)
    assert both.files(ANN) != both.files(BOB)
    assert "agent:key:ann: 0 of 4; practice of" in both.loop.note
    assert "agent:key:bob: 0 of 4; practice of" in both.loop.note


def test_policies_practise_in_turn(
    tmp_path: Path, judged: Make, model: str, replies: ScriptedReplies
) -> None:
    home = practising_home(tmp_path, model, replies)
    teach(home, judged, "ann", "bob")
    with home.store.read() as conn:
        names = [policy.name for policy in policies.list_all(conn) if policy.version > 2]
    assert names in ([ANN, BOB] * STEPS, [BOB, ANN] * STEPS)


def test_a_round_continues_after_people_were_answered(
    tmp_path: Path, judged: Make, model: str, replies: ScriptedReplies
) -> None:
    """While replies to people are running, no policy asks again, and what was generated is not lost."""
    home, answer, calls = (
        practising_home(tmp_path, model, replies),
        replies.generate,
        itertools.count(),
    )

    def generate(orders: Sequence[ReplyOrder]) -> list[GateReply]:
        if next(calls) == 1:  # half of the first round is there
            raise RepliesDelayed("replies to people are running")
        return answer(orders)

    replies.generate = generate  # type: ignore[method-assign]
    teach(home, judged, "ann", "bob")
    assert len(replies.orders) == 2
    assert (
        'practice of "Keep answers short." waits: replies to people are running' in home.loop.note
    )
    assert "agent:key:bob: 0 of 4" in home.loop.note
    home.loop._next_check = 0.0
    while home.loop.run_once():
        pass
    assert len(replies.orders) == 2 * 4 * STEPS


@pytest.mark.parametrize("per", ["agent", "user", "key"])
def test_a_turn_of_practice_trains_the_policy_of_its_prompt(
    tmp_path: Path, judged: Make, model: str, replies: ScriptedReplies, per: PolicyOwner
) -> None:
    owner = {"agent": "key:ann", "user": "key:ann", "key": "key"}[per]
    name = f"{per}:{owner}"
    home = practising_home(tmp_path, model, replies, per=per, step_limit=1)
    turns = [
        judged(
            score=1,
            request={"id": f"t{n}", "agent": "ann", "user": "ann"},
            question=f"What is {n}?",
        )
        for n in range(3)
    ]
    put(home.store, turns)
    add_lesson(home.store, replace(SHORT, policy=name, scope_value="ann"), ["t0"])
    while home.loop.run_once():
        pass
    lesson_by_turn = practised(home, name)
    assert list(lesson_by_turn.values()) == ["ann aa"] * 4
    with home.store.read() as conn:
        assert {policy_names.name_of_turn(conn, per, turn) for turn in lesson_by_turn} == {name}
        assert home.head(policy_names.DEFAULT_NAME) == 0
