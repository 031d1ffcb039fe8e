"""Whom a lesson reaches: its person, and others if it is shared."""

from __future__ import annotations

import asyncio

import pytest
from tests.judge.test_worker import until, working
from tests.judge.world import World

from openclaw_rl.practice.plan import plan_practice
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.people import PeopleOfPolicies
from openclaw_rl.store.lineage import policies

SHORT = "Keep answers short."


def learn_wish(world: World, scope: str) -> Lesson:
    """The lesson of a wish that one person of two said, under a value of `lessons.scope`."""
    flat = {"home": str(world.config.home_dir), "judge.poll": 0.01, "lessons.scope": scope}
    world.config = from_flat(flat)

    async def go() -> None:
        world.served("a", user="ann")
        world.close("a", "Shorter, please. The roses are fine.")
        async with working(world):
            await until(lambda: world.judged() == 1)

    asyncio.run(go())
    with world.store.read() as conn:
        (lesson,) = lessons.list_lessons(conn)
    return lesson


@pytest.mark.parametrize("scope", ["person", "all"])
def test_the_setting_decides_whom_a_lesson_reaches(world: World, scope: str) -> None:
    lesson = learn_wish(world, scope)
    assert (lesson.text, lesson.is_shared) == (SHORT, scope == "all")
    with world.store.read() as conn:
        (evidence,) = lessons.turns_of_lesson(conn, lesson.id)
    assert evidence.words == "Shorter, please."


@pytest.mark.parametrize(("scope", "beside"), [("person", []), ("all", [SHORT])])
def test_weights_that_others_share_learn_shared_lessons_alone(
    world: World, scope: str, beside: list[str]
) -> None:
    learn_wish(world, scope)
    people = PeopleOfPolicies()

    def practised() -> list[str]:
        with world.store.write() as conn:
            head = policies.ensure_root(conn, base="b", identity="i", at=0.0)
            is_alone = people.is_alone(conn, head.name, None)
            plan = plan_practice(conn, head, 100.0, is_alone=is_alone)
        return [lesson.text for lesson in plan.targets]

    assert practised() == [SHORT], "nobody else talks to this policy"
    world.served("b", user="bob")
    assert practised() == beside
