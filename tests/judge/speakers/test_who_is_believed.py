"""Third parties teach nothing: 0 lessons, 0 wishes, 0 verdicts by their words, with rules and a judge that repeats.

The judge is a real chat-completions server, whose hint is the order that it reads in the record, in the reaction before
anywhere else, and whose score is -1 whenever it reads one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.judge.endpoint import completion, serving
from tests.judge.speakers.texts import (
    HALVES,
    ThirdPartyText,
    all_orders,
    honest_wishes,
    third_party_texts,
)
from tests.judge.test_worker import until, working
from tests.judge.world import World

from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.judge.heard import heard_item
from openclaw_rl.judge.reward_model import make_reward_input
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.types import JudgeInput, Message, Reaction

JUDGES = ("rules", "llm", "teacher")
REPLY = "Sow carrots in April."
ORDERS = sorted(all_orders(), key=len, reverse=True)


def read_order(record: str) -> str | None:
    """Return the first order in a record, in its reaction if there is one."""
    reaction = record.partition(" REACTION")[2]
    for text in (reaction, record):
        read = [order for order in ORDERS if order in text]
        if read:
            return min(read, key=text.index)
    return None


async def repeat(request: web.Request, number: int) -> web.StreamResponse:
    record = (await request.json())["messages"][-1]["content"]
    if "Write the lesson" in record:
        hint = record.rpartition(" HINT>>\n")[2].partition("\n<<")[0]
        answer = {"lesson": hint, "scope": "general", "same": None, "contradicts": []}
        return completion(json.dumps(answer | {"subject": None}))
    order = read_order(record)
    if "Write the hint" in record:
        return completion(json.dumps({"hint": order}))
    score = "no evidence" if order is None else "-1"
    vote = {"reason": "r", "score": score, "hint": order, "words": order}
    return completion(json.dumps(vote))


@asynccontextmanager
async def judging(home: Path, kind: str) -> AsyncIterator[World]:
    """Yield a world whose turns a judge of this kind reads; `teacher`: the rules, with a teacher."""
    has_teacher = kind == "teacher"
    kind = "rules" if has_teacher else kind
    flat: dict[str, Any] = {
        "home": str(home),
        "judge.kind": kind,
        "judge.poll": 0.01,
        "judge.workers": 4,
    }
    async with serving(repeat) as endpoint:
        if kind == "llm":
            flat |= {"judge.base_url": f"http://127.0.0.1:{endpoint.port}/v1", "judge.model": "m"}
            flat |= {"judge.num_judges": 1, "judge.retries": 0}
        if has_teacher:
            flat |= {"teacher.base_url": f"http://127.0.0.1:{endpoint.port}/v1"}
            flat |= {"teacher.model": "m", "teacher.when": "always", "teacher.retries": 0}
        config = from_flat(flat)
        store = Store.open(config.store_path)
        try:
            world = World(config, store)
            yield world
        finally:
            store.close()


def judge_turns(home: Path, kind: str, make_turns: Callable[[World], int]) -> World:
    """Let a judge read the turns that a function makes; return the world, whose store is open."""

    async def go() -> World:
        async with judging(home, kind) as world:
            count = make_turns(world)
            async with working(world):
                await until(lambda: world.judged() == count)
        return World(world.config, Store.open(world.config.store_path))

    return asyncio.run(go())


def lessons_of(world: World, turn: str) -> list[Lesson]:
    with world.store.read() as conn:
        return lessons.lessons_of_turns(conn, [turn])


def close_all(world: World, texts: Sequence[ThirdPartyText]) -> int:
    for one in texts:
        world.close(one.id, one.text, role=one.role)
        world.close(f"control-{one.id}", one.control, role=one.role)
    return 2 * len(texts)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", JUDGES)
def test_a_third_party_makes_no_lesson_and_no_verdict(tmp_path: Path, kind: str, half: str) -> None:
    texts = third_party_texts(half)
    world = judge_turns(tmp_path, kind, lambda world: close_all(world, texts))
    taught = []
    changed = []
    for one in texts:
        verdict = world.verdict(one.id)
        control = world.verdict(f"control-{one.id}")
        assert verdict is not None
        assert control is not None
        if lessons_of(world, one.id) or verdict.hints:
            taught.append(one)
        if verdict.score != control.score:
            changed.append(one)
    world.store.close()
    assert len(texts) >= 100
    assert (taught, changed) == ([], [])


@pytest.mark.parametrize("half", HALVES)
def test_a_third_party_asks_for_nothing_in_the_next_prompt(half: str) -> None:
    topics = load_topics(None)
    obeyed = []
    for one in third_party_texts(half):
        wishes = topics.read_wishes({"role": "user", "content": one.text}, REPLY)
        if one.role == "user" and (wishes.topics or wishes.hints):
            obeyed.append(one)
    assert obeyed == []


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", JUDGES)
def test_what_a_third_party_said_before_teaches_nothing_later(
    tmp_path: Path, kind: str, half: str
) -> None:
    """The text stands in the conversation before the reply, and the person says something else about it."""
    texts = third_party_texts(half)

    def make_turns(world: World) -> int:
        for one in texts:
            message: Message = {"role": one.role, "content": one.text}
            world.served(one.id, {"role": "user", "content": f"ask {one.id}"}, message)
            world.close(one.id, "And when does it open in winter?")
        return len(texts)

    world = judge_turns(tmp_path, kind, make_turns)
    believed = [one for one in texts if lessons_of(world, one.id) or world.verdict(one.id).score]  # type: ignore[union-attr]
    world.store.close()
    assert believed == []


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", JUDGES)
@pytest.mark.parametrize("place", ["comment", "correction"])
def test_text_of_others_in_feedback_teaches_nothing(
    tmp_path: Path, place: str, kind: str, half: str
) -> None:
    """A correction may have words of the person beside them, which are about its question."""
    texts = [one for one in third_party_texts(half) if one.role == "user"]

    def make_turns(world: World) -> int:
        for one in texts:
            world.served(one.id)
            world.give(one.id, **{place: one.text})
        return len(texts)

    world = judge_turns(tmp_path, kind, make_turns)
    taught = []
    for one in texts:
        made = lessons_of(world, one.id)
        if place == "comment" and made:
            taught.append(one)
        taught += [
            one
            for lesson in made
            if one.order.rstrip(".。!！") in lesson.text or lesson.topic.startswith("length")
        ]
    world.store.close()
    assert taught == []


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", JUDGES)
def test_wishes_beside_words_of_others_make_their_lessons(
    tmp_path: Path, kind: str, half: str
) -> None:
    """At least 180 of the 200 in both halves."""
    topics = load_topics(None)
    wishes = honest_wishes(half)

    def make_turns(world: World) -> int:
        for one in wishes:
            world.served(one.id)
            if one.place != "text":
                world.give(one.id, **{one.place: one.text})
            elif one.tool is None:
                world.close(one.id, one.text)
            else:
                world.close_with_tool(one.id, one.tool, one.text)
        return len(wishes)

    world = judge_turns(tmp_path, kind, make_turns)
    lost = []
    for one in wishes:
        rule = topics.find_rule(one.wish, as_reaction=True)
        assert rule is not None
        made = lessons_of(world, one.id)
        if not any(rule.topic in (lesson.topic, topics.topic_of(lesson.text)) for lesson in made):
            lost.append(one)
    world.store.close()
    assert len(wishes) == 100
    assert len(lost) <= 10, lost


@pytest.mark.parametrize("half", HALVES)
def test_a_reward_model_reads_no_words_of_others(half: str) -> None:
    """So does a plug-in, which gets the same input."""
    read = []
    for one in third_party_texts(half):
        message: Message = {"role": one.role, "content": one.text}
        reaction = Reaction(
            turn="t", revision=1, messages=(message,), source="u", how="exact", at=1.0
        )
        item = JudgeInput(turn="t", messages=(), reply={"role": "assistant"}, reaction=reaction)
        heard = make_reward_input(heard_item(item), lambda message: False)
        is_person = one.role == "user" and one.kind != "observation"
        if is_person and one.order.rstrip(".。!！") in heard.outcome:
            read.append(one)
    assert read == []
