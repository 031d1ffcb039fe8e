"""Lessons after they were made: narrower ones end, edits stay, and some turns give none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update
from tests.judge.lessons.test_lesson_book import (
    FORMAL,
    LONG,
    SHORT,
    converse,
    everything,
    in_force,
    learn,
    said_often,
)
from tests.judge.world import World

from openclaw_rl.judge.lessons.drafts import LessonDraft, LessonReach
from openclaw_rl.store import schema
from openclaw_rl.store.lessons import forgotten_wishes, removal
from openclaw_rl.types import Origin

METRIC, PRECISE = "Use metric units.", "Use metric units with two decimals."


def test_a_wish_for_all_prompts_ends_each_narrower_one_that_it_contradicts(world: World) -> None:
    """Also one that another narrower one had overruled until now."""
    draft = LessonDraft(text=SHORT, topic="length/short", reach=LessonReach.SUBJECT, subject="ask")
    converse(world, *"abc")
    learn(world, "a", SHORT, drafts=[draft])
    learn(world, "b", SHORT, at=20.0, drafts=[replace(draft, reach=LessonReach.SESSION)])
    learn(world, "c", LONG, at=30.0)
    assert in_force(world, session="a", asked="ask c") == [LONG]


def test_a_lesson_forgotten_while_the_model_named_it_stays_forgotten(world: World) -> None:
    learn(world, "a", SHORT)
    named = LessonDraft(
        text="Be brief.", topic="length/short", reach=LessonReach.GENERAL, same_as="gone"
    )
    learn(world, "b", named.text, drafts=[named])
    (lesson,) = everything(world)
    assert (lesson.text, lesson.weight) == (SHORT, pytest.approx(2.0))


def test_an_imported_turn_gives_no_lesson(world: World) -> None:
    """It would be in no prompt: none has the key of imported turns."""
    world.close("a", "hm")
    with world.store.write() as conn:
        conn.execute(update(schema.exchanges).values(origin=Origin.TEXT.value))
    learn(world, "a", SHORT)
    assert everything(world) == []


@pytest.mark.parametrize(
    ("said", "edited", "topic"), [(METRIC, PRECISE, ""), (SHORT, LONG, "length/long")]
)
def test_a_turn_that_is_judged_again_gives_the_lesson_as_it_was_edited(
    world: World, said: str, edited: str, topic: str
) -> None:
    learn(world, "a", said)
    with world.store.write() as conn:
        removal.replace_text(conn, everything(world)[0].id, edited, topic=topic, at=15.0)
    learn(world, "a", said, FORMAL, at=20.0, revision=2)
    assert in_force(world) == [edited, FORMAL]
    with world.store.write() as conn:
        forgotten_wishes.forget_wish(conn, everything(world)[0], at=25.0)
    learn(world, "a", said, FORMAL, at=30.0, revision=3)
    assert in_force(world) == [FORMAL], "forgotten with what it said before"


def test_a_conversation_lesson_stays_when_its_wish_was_edited(world: World) -> None:
    metric = said_often(world, METRIC)
    yards = LessonDraft(text="Use yards.", reach=LessonReach.GENERAL, contradicts=(metric,))
    learn(world, "a", yards.text, at=20.0, drafts=[yards])
    general, here = (one for one in everything(world) if one.text == yards.text)
    assert (general.is_practised, here.is_practised) == (True, False)
    for lesson, text in ((here, "Use yards and feet."), (general, "Use miles.")):
        with world.store.write() as conn:
            removal.replace_text(conn, lesson.id, text, at=25.0)
        learn(world, "a", yards.text, at=30.0, revision=2, drafts=[yards])
        assert in_force(world, session="a") == ["Use yards and feet."]
