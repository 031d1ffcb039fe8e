"""Lessons are kept with their evidence, apply within their scope only, and end with their last turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Connection, update
from tests.store.world import policy, serve

from openclaw_rl.store import leases, schema
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, pins, practice_turns, removal
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope, PromptContext, user_scope
from openclaw_rl.store.lineage import head_moves, policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME

SHORT = Lesson(
    id="aa", key="key", text="Keep answers short.", topic="length/short", scope_value="agent", made_at=1.0,
    reinforced_at=1.0,
)  # fmt: skip
HERE = PromptContext(key="key", agent="agent", user="ann", question="q")
ANN = user_scope("agent", "ann")
MONTH = lessons.HALF_LIFE_SECONDS


def put(conn: Connection, *given: Lesson) -> None:
    for lesson in given:
        lessons.add_lesson(conn, lesson)


def names(found: list[Lesson]) -> list[str]:
    return [lesson.id for lesson in found]


def test_a_lesson_is_read_back_as_it_was_stored(store: Store) -> None:
    with store.write() as conn:
        put(conn, replace(SHORT, is_pinned=True, scope_kind=LessonScope.USER, scope_value=ANN))
    with store.read() as conn:
        found = lessons.get(conn, "aa")
        assert found == replace(SHORT, is_pinned=True, scope_kind=LessonScope.USER, scope_value=ANN)
        assert found.owner == ("agent", "ann")
        assert lessons.get(conn, "bb") is None


def test_a_lesson_applies_within_its_scope_only(store: Store) -> None:
    user = replace(
        SHORT,
        id="bb",
        topic="tone/formal",
        scope_kind=LessonScope.USER,
        scope_value=ANN,
        made_at=2.0,
    )
    fact = replace(SHORT, id="cc", scope_kind=LessonScope.QUESTION, scope_value="q", made_at=3.0)
    with store.write() as conn:
        put(conn, SHORT, user, fact)
        assert names(lessons.lessons_for(conn, HERE)) == ["aa", "bb", "cc"]
        assert names(lessons.lessons_for(conn, replace(HERE, question="other"))) == ["aa", "bb"]
        assert names(lessons.lessons_for(conn, replace(HERE, user="bob"))) == ["aa", "cc"]
        assert names(lessons.lessons_for(conn, replace(HERE, user=""))) == ["aa", "cc"]
        assert names(lessons.lessons_for(conn, replace(HERE, agent="other"))) == ["cc"]
        assert lessons.lessons_for(conn, replace(HERE, key="other")) == []
        assert lessons.lessons_for(conn, replace(HERE, policy="agent:other")) == []


@pytest.mark.parametrize(("is_pinned", "kept"), [(False, "bb"), (True, "aa")])
def test_a_lesson_of_a_user_overrules_that_of_the_agent(
    store: Store, is_pinned: bool, kept: str
) -> None:
    own = replace(
        SHORT,
        id="bb",
        topic="length/long",
        scope_kind=LessonScope.USER,
        scope_value=ANN,
        made_at=2.0,
    )
    with store.write() as conn:
        put(conn, replace(SHORT, is_pinned=is_pinned), own)
        assert names(lessons.lessons_for(conn, HERE)) == [kept]
        assert names(lessons.lessons_for(conn, replace(HERE, user="bob"))) == ["aa"]
        lessons.supersede(conn, "bb", "aa")
        assert names(lessons.lessons_for(conn, HERE)) == ["aa"]


def test_evidence_adds_weight_once_and_decays(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a")
        serve(conn, "b")
        put(conn, SHORT)
        assert lessons.reinforce(conn, "aa", "a", weight=0.5, at=1.0)
        assert not lessons.reinforce(conn, "aa", "a", weight=0.5, at=5.0)
        assert lessons.reinforce(conn, "aa", "b", at=1.0 + MONTH)
        found = lessons.get(conn, "aa")
    assert found is not None
    assert found.weight == pytest.approx(1.5 / 2 + 1.0)
    assert found.weight_at(found.reinforced_at + MONTH) == pytest.approx(found.weight / 2)


def test_a_superseded_lesson_is_restored_when_its_rival_is_forgotten(store: Store) -> None:
    with store.write() as conn:
        put(
            conn,
            SHORT,
            replace(SHORT, id="bb", text="Give long, detailed answers.", topic="length/long"),
        )
        lessons.supersede(conn, "aa", "bb")
        assert names(lessons.lessons_for(conn, HERE)) == ["bb"]
        removal.forget(conn, "bb", at=5.0)
        assert lessons.lessons_for(conn, HERE) == [SHORT]


def of_session(name: str, *, at: float) -> Lesson:
    return replace(
        SHORT, id=name, scope_kind=LessonScope.SESSION, scope_value=name, reinforced_at=at
    )


def test_superseded_lessons_of_several_conversations_are_restored_together(store: Store) -> None:
    """They say the same of different prompts: none takes the place of another one."""
    with store.write() as conn:
        put(
            conn,
            replace(SHORT, topic="length/long"),
            of_session("one", at=2.0),
            of_session("two", at=3.0),
        )
        lessons.supersede(conn, "one", "aa")
        lessons.supersede(conn, "two", "aa")
        removal.forget(conn, "aa", at=5.0)
        for name in ("one", "two"):
            assert names(lessons.lessons_for(conn, replace(HERE, sessions=(name,)))) == [name]


def test_a_pinned_lesson_of_a_conversation_does_not_affect_other_prompts(store: Store) -> None:
    with store.write() as conn:
        put(conn, replace(SHORT, topic="length/long"), of_session("one", at=2.0))
        lessons.supersede(conn, "one", "aa")
        assert pins.pin_in_force(conn, "one") is None
        assert names(lessons.lessons_for(conn, HERE)) == ["aa"]
        assert names(lessons.lessons_for(conn, replace(HERE, sessions=("one",)))) == ["one"]


def test_contradicting_lessons_are_not_restored_together(store: Store) -> None:
    medium = replace(SHORT, id="bb", topic="length/medium", reinforced_at=2.0)
    long, longer = (
        replace(SHORT, id=id_, topic=f"length/{id_}", reinforced_at=3.0) for id_ in ("cc", "dd")
    )
    with store.write() as conn:
        put(conn, SHORT, medium, long, longer)
        for old, new in (("aa", "cc"), ("bb", "cc"), ("cc", "dd")):
            lessons.supersede(conn, old, new)
        removal.forget(conn, "cc", at=5.0)
        assert names(lessons.lessons_for(conn, HERE)) == ["dd"], "what superseded it stays"
        removal.forget(conn, "dd", at=5.0)
        assert names(lessons.lessons_for(conn, HERE)) == ["bb"], "the newest of the others"
        lessons.edit_text(conn, "aa", "Very short.", at=1.0)
        assert names(lessons.lessons_for(conn, HERE)) == ["bb"]


def test_a_lesson_without_evidence_is_deleted(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a")
        serve(conn, "b")
        put(conn, SHORT, replace(SHORT, id="bb", is_pinned=True, made_at=2.0))
        for turn in ("a", "b"):
            lessons.reinforce(conn, "aa", turn, at=1.0)
        lessons.reinforce(conn, "bb", "a", at=1.0)
        assert names(lessons.lessons_of_turns(conn, ["a"])) == ["aa", "bb"]
        assert removal.remove_evidence(conn, ["a"], at=5.0, only=["bb"], keep_pinned=True) == []
        assert names(lessons.list_lessons(conn)) == ["aa", "bb"]
        lessons.reinforce(conn, "bb", "a", at=1.0)
        assert names(removal.remove_evidence(conn, ["a"], at=5.0)) == ["bb"]
        assert [one.turn for one in lessons.turns_of_lesson(conn, "aa")] == ["b"]
        assert names(removal.remove_evidence(conn, ["b"], at=5.0)) == ["aa"]
        assert lessons.list_lessons(conn) == []


def test_a_lesson_is_marked_learned_and_unlearned(store: Store) -> None:
    with store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        lease = leases.acquire(conn, "trainer", holder="t", now=1.0, ttl=60.0)
        assert lease is not None
        policies.publish(conn, lease, policy(1, 0), [], 2.0)
        put(conn, SHORT)
        lessons.record_divergence(conn, "aa", 0, 0.5, at=2.0)
        lessons.record_divergence(conn, "aa", 1, 0.01, at=3.0)
        lessons.mark_learned(conn, "aa", 1)
        assert lessons.lessons_for(conn, HERE) == []
        (learned,) = lessons.list_lessons(conn, policy=DEFAULT_NAME, states=[LessonState.LEARNED])
        assert (learned.learned_version, learned.divergence) == (1, 0.01)
        assert lessons.divergences_of(conn, "aa") == [(0, 0.5), (1, 0.01)]
        lessons.mark_active(conn, "aa")
        assert names(lessons.lessons_for(conn, HERE)) == ["aa"]
        lessons.edit_text(conn, "aa", "Keep answers very short.", at=1.0)
        assert lessons.divergences_of(conn, "aa") == []
        assert lessons.get(conn, "aa") == replace(SHORT, text="Keep answers very short.")


def test_rolling_back_past_the_learning_version_reactivates_a_lesson(
    store: Store,
) -> None:
    with store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        lease = leases.acquire(conn, "trainer", holder="t", now=1.0, ttl=60.0)
        assert lease is not None
        for version in (1, 2):
            policies.publish(conn, lease, policy(version, version - 1), [], 2.0)
        put(conn, SHORT, replace(SHORT, id="bb", text="Use a formal tone.", topic="tone/formal"))
        lessons.mark_learned(conn, "aa", 1)
        lessons.mark_learned(conn, "bb", 2)
        head_moves.roll_back(conn, to=1, reason="r", at=3.0)
        (again,) = lessons.lessons_for(conn, HERE)
        assert again.id == "bb"
        assert again.reinforced_at == 3.0, "else its practice may have no steps left"


def test_taking_back_turns_removes_their_lessons(store: Store) -> None:
    with store.write() as conn:
        serve(conn, "a")
        put(conn, SHORT)
        lessons.reinforce(conn, "aa", "a", at=1.0)
        removal.take_back(conn, ["a"], "undone", at=2.0)
        assert lessons.list_lessons(conn) == []


@pytest.mark.parametrize(
    ("version", "name", "at", "is_said"),
    [
        (1, DEFAULT_NAME, 4.0, True),
        (0, DEFAULT_NAME, 4.0, False),
        (1, "user/bob", 4.0, False),
        (1, DEFAULT_NAME, 2.5, False),
    ],
)
def test_a_repeated_lesson_is_detected_after_it_was_learned(
    store: Store, version: int, name: str, at: float, is_said: bool
) -> None:
    """Of a reply of its own policy, since it was learned, and after its divergence was measured."""
    with store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        lease = leases.acquire(conn, "trainer", holder="t", now=1.0, ttl=60.0)
        assert lease is not None
        policies.publish(conn, lease, policy(1, 0), [], 2.0)
        put(conn, SHORT)
        lessons.record_divergence(conn, "aa", 1, 0.01, at=3.0)
        lessons.mark_learned(conn, "aa", 1)
        serve(conn, "a")
        conn.execute(update(schema.exchanges).values(version=version))
        conn.execute(
            update(schema.policies).where(schema.policies.c.version == 1).values(name=name)
        )
        lessons.reinforce(conn, "aa", "a", at=at)
        lesson = lessons.get(conn, "aa")
        assert lesson is not None
        assert practice_turns.is_said_again(conn, lesson) == is_said
