"""Wishes that mean the same in several languages are one lesson, in the person's newest words."""

from __future__ import annotations

from itertools import combinations

import pytest
from tests.judge.lessons.test_lesson_book import LONG, SHORT, TOPICS, everything, in_force, learn
from tests.judge.world import World

from openclaw_rl.judge.lessons.drafts import LessonDraft, LessonReach
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.store.lessons import lessons, removal
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lineage import policies

GERMAN, FRENCH, SPANISH = "Antworte kurz.", "Réponds brièvement.", "Responde brevemente."
CHINESE, JAPANESE = "回答要短。", "短く答えてください。"
HINTS_BY_TOPIC: dict[str, list[str]] = {}
for rule in (
    rule for file in RulesJudge.load().files for rule in file.rules if rule.hint and rule.topic
):
    HINTS_BY_TOPIC.setdefault(str(rule.topic), []).append(str(rule.hint))


@pytest.mark.parametrize("topic", sorted(HINTS_BY_TOPIC))
def test_each_wish_is_one_lesson_in_all_six_languages(world: World, topic: str) -> None:
    hints = list(dict.fromkeys(HINTS_BY_TOPIC[topic]))
    assert len(hints) == 6
    for number, hint in enumerate(hints):
        learn(world, f"{topic}{number}", hint, at=10.0 + number)
        assert in_force(world) == [hint], "the newest words stand in the prompt"
    assert len(everything(world)) == 1


def test_wishes_of_several_topics_in_mixed_languages_stay_apart(world: World) -> None:
    for number, hint in enumerate(
        [SHORT, "Antworte in Stichpunkten.", FRENCH, "用正式的口吻回答。", JAPANESE]
    ):
        learn(world, f"turn{number}", hint, at=10.0 + number)
    assert in_force(world) == [JAPANESE, "Antworte in Stichpunkten.", "用正式的口吻回答。"]


def test_the_opposite_in_another_language_supersedes(world: World) -> None:
    learn(world, "a", GERMAN)
    learn(world, "b", "Responde de forma larga y detallada.", at=20.0)
    assert in_force(world) == ["Responde de forma larga y detallada."]
    learn(world, "c", CHINESE, at=30.0)
    learn(world, "d", CHINESE, at=40.0)
    assert in_force(world) == [CHINESE]


def test_an_edited_text_stays_when_the_wish_is_said_in_another_language(world: World) -> None:
    learn(world, "a", SHORT)
    (lesson,) = everything(world)
    with world.store.write(durable=False) as conn:
        removal.replace_text(conn, lesson.id, SPANISH, topic="length/short", at=15.0)
    learn(world, "b", GERMAN, at=20.0)
    (lesson,) = everything(world)
    assert lesson.text == SPANISH
    assert lesson.weight == pytest.approx(2.0, rel=1e-3)


def test_a_pinned_text_stays_when_the_wish_is_said_in_another_language(world: World) -> None:
    learn(world, "a", SHORT)
    (lesson,) = everything(world)
    with world.store.write(durable=False) as conn:
        lessons.set_pinned(conn, lesson.id, True)
    learn(world, "b", GERMAN, at=20.0)
    assert in_force(world) == [SHORT]


def test_text_of_a_model_stays_because_it_may_say_more_than_the_rule(world: World) -> None:
    draft = LessonDraft(
        text="At most two sentences.", topic="length/short", reach=LessonReach.GENERAL
    )
    learn(world, "a", draft.text, drafts=[draft])
    learn(world, "b", GERMAN, at=20.0)
    assert in_force(world) == ["At most two sentences."]


def test_a_turn_that_is_judged_again_does_not_restore_older_text(world: World) -> None:
    learn(world, "a", SHORT)
    learn(world, "b", GERMAN, at=20.0)
    learn(world, "a", SHORT, at=30.0)
    assert in_force(world) == [GERMAN]


def test_a_learned_lesson_stays_learned_when_rephrased(world: World) -> None:
    learn(world, "a", SHORT)
    (lesson,) = everything(world)
    with world.store.write(durable=False) as conn:
        head = policies.ensure_root(conn, base="b", identity="i", at=0.0)
        lessons.mark_learned(conn, lesson.id, head.version, at=15.0)
    learn(world, "b", FRENCH, at=20.0)
    (lesson,) = everything(world)
    assert (lesson.text, lesson.state, lesson.learned_version) == (
        FRENCH,
        LessonState.LEARNED,
        head.version,
    )


def test_a_contradiction_of_a_heavy_lesson_is_a_conversation_lesson_with_the_newest_text(
    world: World,
) -> None:
    for number in range(4):
        learn(world, f"turn{number}", LONG, at=10.0 + number)
    learn(world, "x", SHORT, at=20.0)
    learn(world, "y", GERMAN, at=21.0)
    assert in_force(world) == [GERMAN]


def test_no_two_topics_share_a_hint() -> None:
    for first, second in combinations(HINTS_BY_TOPIC.values(), 2):
        assert not set(first) & set(second)
    assert all(
        TOPICS.has_hint(hint.upper().rstrip(".。"))
        for hints in HINTS_BY_TOPIC.values()
        for hint in hints
    )
