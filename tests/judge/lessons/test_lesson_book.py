"""Verdicts become lessons: merged, weighed against what contradicts them, and kept to their question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import Connection, update
from tests.judge.world import World

from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.judge.lessons.drafts import LessonDraft, LessonReach
from openclaw_rl.judge.lessons.lesson_book import update_lessons
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.practice.plan import plan_practice
from openclaw_rl.store import schema, turns
from openclaw_rl.store.lessons import forgotten_wishes, lessons, removal
from openclaw_rl.store.lessons.lessons import HALF_LIFE_SECONDS, Lesson, LessonState
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import LessonScope, PromptContext
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Verdict, Vote

SHORT, LONG, FORMAL = "Keep answers short.", "Give long, detailed answers.", "Use a formal tone."
TOPICS = HintTopics(RulesJudge.load().files)


def not_ephemeral(message: object) -> bool:
    return False


def verdict(turn: str, *hints: str, at: float = 10.0, **changes: object) -> Verdict:
    votes = tuple(Vote(score=-1, hint=hint) for hint in hints)
    made = Verdict(
        turn=turn, revision=1, judge="rules@1", score=-1, votes=votes, hints=hints, at=at
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def learn(
    world: World,
    turn: str,
    *hints: str,
    at: float = 10.0,
    drafts: Sequence[LessonDraft] | None = None,
    **changes: object,
) -> None:
    given = verdict(turn, *hints, at=at, **changes)
    with world.store.read() as conn:
        is_known = turns.get(conn, turn) is not None
    if not is_known:
        world.close(turn, "hm")
    with world.store.write(durable=False) as conn:
        update_lessons(
            conn, given, TOPICS, drafts=drafts, is_ephemeral=not_ephemeral, key=world.store.secret
        )


def in_force(world: World, question: str = "", session: str = "", asked: str = "") -> list[str]:
    """The texts that stand in a prompt of the agent."""
    context = replace(here(world, question), sessions=(session,) if session else (), asked=asked)
    with world.store.read() as conn:
        return [lesson.text for lesson in lessons.lessons_for(conn, context)]


def here(world: World, question: str) -> PromptContext:
    messages = [{"role": "user", "content": question}]
    return PromptContext(
        key="s", question=question_hash(messages, not_ephemeral, key=world.store.secret)
    )


def everything(world: World) -> list[Lesson]:
    with world.store.read() as conn:
        return lessons.list_lessons(conn)


def test_the_same_wish_in_two_languages_is_one_lesson(world: World) -> None:
    learn(world, "a", SHORT)
    learn(world, "b", "Antworte kurz.")
    learn(world, "b", "Antworte kurz.")
    (lesson,) = everything(world)
    assert (lesson.text, lesson.topic, lesson.weight) == (
        "Antworte kurz.",
        "length/short",
        pytest.approx(2.0),
    )


def test_wishes_about_different_things_stand_side_by_side(world: World) -> None:
    learn(world, "a", SHORT)
    learn(world, "b", FORMAL)
    assert in_force(world) == [SHORT, FORMAL]


def converse(world: World, *ids: str) -> None:
    """Serve these turns, all of one conversation, in this order."""
    for id_ in ids:
        world.close(id_, "hm")
    with world.store.write(durable=False) as conn:
        conn.execute(update(schema.turns).where(schema.turns.c.id.in_(ids)).values(session=ids[0]))


def practised(world: World) -> list[str]:
    with world.store.write(durable=False) as conn:
        head = policies.ensure_root(conn, base="b", identity="i", at=0.0)
        return [lesson.text for lesson in plan_practice(conn, head, 100.0).targets]


def test_a_repeated_wish_may_be_for_its_conversation(world: World) -> None:
    """The prompt follows the second word against a lesson that was said often, the weights the next conversation."""
    for id_ in "abcde":
        learn(world, id_, SHORT)
    converse(world, *"fghi")
    learn(world, "f", LONG, at=20.0)
    assert in_force(world) == [SHORT]
    for id_ in "ghi":
        learn(world, id_, LONG, at=20.0)
        assert in_force(world) == [LONG]
        assert practised(world) == []
    learn(world, "j", LONG, at=20.0)
    assert practised(world) == [LONG]


def test_the_third_contradiction_of_an_often_stated_lesson_is_practised(
    world: World,
) -> None:
    for id_ in "abcd":
        learn(world, id_, SHORT)
    learn(world, "e", LONG, at=20.0)
    learn(world, "f", LONG, at=20.0)
    assert in_force(world) == [LONG]
    assert practised(world) == []
    learn(world, "g", LONG, at=20.0)
    assert practised(world) == [LONG]


def test_repetitions_far_apart_in_a_conversation_count_fully(world: World) -> None:
    ids = [f"t{n:02d}" for n in range(24)]
    converse(world, *ids)
    for id_ in ids[::9]:
        learn(world, id_, SHORT)
    (lesson,) = everything(world)
    assert lesson.weight == pytest.approx(3.0)
    learn(world, ids[19], SHORT)
    learn(world, ids[20], SHORT)
    (lesson,) = everything(world)
    assert lesson.weight == pytest.approx(3.75)


def test_one_wish_supersedes_a_lesson_stated_once(world: World) -> None:
    learn(world, "a", SHORT)
    learn(world, "b", LONG, at=20.0)
    assert in_force(world) == [LONG]
    learn(world, "c", SHORT, at=30.0)
    assert in_force(world) == [SHORT]


def test_two_wishes_supersede_an_often_stated_lesson(world: World) -> None:
    for n in range(5):
        learn(world, f"s{n}", SHORT)
    learn(world, "a", LONG, at=20.0)
    assert in_force(world) == [SHORT], "one word may be an error of the judge"
    learn(world, "b", LONG, at=30.0)
    assert in_force(world) == [LONG]


def test_a_contradiction_of_an_often_stated_lesson_holds_in_its_conversation(world: World) -> None:
    """It may be meant for this conversation, or be an error: other conversations keep what was said often."""
    for n in range(5):
        learn(world, f"s{n}", SHORT)
    converse(world, "a", "b")
    learn(world, "a", LONG, at=20.0)
    assert in_force(world) == [SHORT]
    assert in_force(world, session="a") == [LONG]
    learn(world, "a", LONG, at=20.0)
    assert in_force(world, session="a") == [LONG], "a verdict that is read twice changes nothing"
    learn(world, "b", SHORT, at=30.0)
    assert in_force(world, session="a") == [SHORT], "the newest word of the conversation counts"


def test_a_wish_that_is_judged_again_leaves_its_conversation(world: World) -> None:
    for n in range(5):
        learn(world, f"s{n}", SHORT)
    converse(world, "a")
    learn(world, "a", LONG, at=20.0)
    learn(world, "a", at=30.0)
    assert in_force(world, session="a") == [SHORT]
    assert [lesson.text for lesson in everything(world)] == [SHORT]


def said_often(world: World, wish: str) -> str:
    """Say this in five conversations; return the id of its lesson."""
    for n in range(5):
        learn(world, f"often-{n}", wish)
    return next(lesson.id for lesson in everything(world) if lesson.text == wish)


def test_a_wish_stays_in_its_conversation_when_a_model_reads_it_again(world: World) -> None:
    """The model finds the lesson for all prompts, which the word gave as well, and says that it is the same."""
    said_often(world, SHORT)
    learn(world, "a", LONG, at=20.0)
    known = next(one for one in everything(world) if one.text == LONG and one.is_practised)
    again = LessonDraft(
        text="Write more.", reach=LessonReach.GENERAL, topic="length/long", same_as=known.id
    )
    learn(world, "a", LONG, at=30.0, drafts=[again])
    assert in_force(world, session="a") == [LONG]


def test_a_contradiction_of_a_pinned_lesson_gives_no_lesson_for_its_conversation(
    world: World,
) -> None:
    """It would be in no prompt, although `chat` says "noted"."""
    pinned = said_often(world, SHORT)
    with world.store.write() as conn:
        lessons.set_pinned(conn, pinned, True)
    learn(world, "a", LONG, at=20.0)
    assert [one.text for one in everything(world) if not one.is_practised] == []
    with world.store.read() as conn:
        assert events_of(conn) == ["lesson.made"]


def test_no_prompt_has_two_lessons_that_contradict_each_other(world: World) -> None:
    """Of lessons without a topic, only the model knows that they do."""
    french = said_often(world, "Answer in French.")
    english = LessonDraft(
        text="Answer in English.", reach=LessonReach.GENERAL, contradicts=(french, "gone")
    )
    for at in (20.0, 30.0):
        learn(world, "a", english.text, at=at, drafts=[english])
        assert in_force(world, session="a") == ["Answer in English."]
        assert in_force(world, session="b") == ["Answer in French."]
    learn(world, "a", at=40.0)
    assert in_force(world, session="a") == ["Answer in French."]


@pytest.mark.parametrize("reach", [LessonReach.SESSION, LessonReach.SUBJECT])
def test_a_narrower_wish_takes_the_place_of_what_it_contradicts(
    world: World, reach: LessonReach
) -> None:
    french = said_often(world, "Answer in French.")
    converse(world, "a", "later")
    draft = LessonDraft(
        text="Answer in English.", reach=reach, subject="code", contradicts=(french,)
    )
    learn(world, "a", draft.text, at=20.0, drafts=[draft])
    place = {"session": "a"} if reach is LessonReach.SESSION else {"asked": "Write some code."}
    assert in_force(world, **place) == ["Answer in English."]
    assert in_force(world, session="b") == ["Answer in French."]
    with world.store.write() as conn:
        lessons.set_pinned(conn, french, True)
    assert in_force(world, **place) == ["Answer in French."]
    with world.store.write() as conn:
        lessons.set_pinned(conn, french, False)
    learn(world, "later", "Answer in French.", at=30.0)
    expected = ["Answer in French."] if reach is LessonReach.SESSION else ["Answer in English."]
    assert in_force(world, **place) == expected, (
        "what is said in the conversation again counts there"
    )
    with world.store.write() as conn:
        removal.forget(conn, french, at=40.0)
    assert in_force(world, **place) == ["Answer in English."]


def test_the_lesson_of_a_conversation_has_the_text_that_its_wish_was_edited_to(
    world: World,
) -> None:
    said_often(world, SHORT)
    learn(world, "a", LONG, at=20.0)
    with world.store.write() as conn:
        (known,) = (
            one for one in lessons.list_lessons(conn) if one.text == LONG and one.is_practised
        )
        lessons.edit_text(conn, known.id, "Ten sentences.", at=25.0)
    for n in range(3):
        learn(world, f"more-{n}", SHORT, at=30.0)
    learn(world, "b", LONG, at=40.0)
    assert in_force(world, session="b") == ["Ten sentences."]


@pytest.mark.parametrize("is_of_session", [True, False])
def test_a_forgotten_wish_gives_no_lesson_in_any_scope(world: World, is_of_session: bool) -> None:
    said_often(world, SHORT)
    learn(world, "a", LONG, at=20.0)
    scopes = {
        one.scope_kind is LessonScope.SESSION: one for one in everything(world) if one.text == LONG
    }
    with world.store.write() as conn:
        forgotten_wishes.forget_wish(conn, scopes[is_of_session], at=30.0)
    assert [one.text for one in everything(world)] == [SHORT]
    assert in_force(world, session="a") == [SHORT]


def test_one_wish_supersedes_a_lesson_stated_long_ago(world: World) -> None:
    for n in range(5):
        learn(world, f"s{n}", SHORT)
    learn(world, "a", LONG, at=10.0 + 2 * HALF_LIFE_SECONDS)
    assert in_force(world) == [LONG]


def test_a_pinned_lesson_is_not_replaced(world: World) -> None:
    learn(world, "a", SHORT)
    with world.store.write() as conn:
        lessons.set_pinned(conn, everything(world)[0].id, True)
    for n in range(4):
        learn(world, f"l{n}", LONG, at=20.0 + n)
    assert in_force(world) == [SHORT]


def test_a_turn_that_is_judged_again_loses_the_lesson_that_its_verdict_no_longer_has(
    world: World,
) -> None:
    learn(world, "a", SHORT)
    learn(world, "a", FORMAL, at=20.0, revision=2)
    assert in_force(world) == [FORMAL]
    learn(world, "a", at=30.0, revision=3)
    assert everything(world) == []


@pytest.mark.parametrize("wish", [SHORT, "Cite your sources."])
def test_a_forgotten_lesson_returns_only_with_new_text(world: World, wish: str) -> None:
    learn(world, "a", wish, FORMAL)
    with world.store.write() as conn:
        gone = next(lesson for lesson in lessons.list_lessons(conn) if lesson.text == wish)
        forgotten_wishes.forget_wish(conn, gone, at=15.0)
    learn(world, "a", wish, FORMAL, at=20.0, revision=2)
    assert in_force(world) == [FORMAL], "the turn was only judged again"
    learn(world, "b", wish, at=30.0)
    assert in_force(world) == [FORMAL, wish]


def test_a_correction_is_for_its_question_alone(world: World) -> None:
    world.close("a", "hm")
    world.give("a", score=-1, correction="The capital is Canberra.")
    learn(world, "a", "The capital is Canberra.")
    assert in_force(world, "  ASK a") == ["The capital is Canberra."], (
        "case and white space do not matter"
    )
    assert in_force(world, "ask b") == []
    (lesson,) = everything(world)
    assert lesson.scope_kind is LessonScope.QUESTION


def test_a_later_correction_of_the_same_answer_counts(world: World) -> None:
    for n, fact in enumerate(("It is Sydney.", "It is Canberra.")):
        learn(
            world, "a", fact, at=10.0 + n, votes=()
        )  # not from the judge's votes: written by the teacher
    assert in_force(world, "ask a") == ["It is Canberra."]


def test_a_correction_that_a_rule_can_read_is_a_wish_for_all_answers(world: World) -> None:
    world.close("a", "hm")
    world.give("a", score=-1, correction="shorter, please")
    learn(world, "a", "shorter, please")
    assert in_force(world, "another question") == [SHORT]


def test_a_correction_with_a_wish_and_a_fact_gives_both(world: World) -> None:
    world.close("a", "hm")
    world.give("a", score=-1, correction="Shorter, please. It is Canberra.")
    learn(world, "a", "Shorter, please. It is Canberra.")
    assert in_force(world, "ask a") == [SHORT, "It is Canberra."]
    assert in_force(world, "another question") == [SHORT]


def test_a_fact_that_was_kept_out_of_the_hints_is_a_lesson_for_its_question(world: World) -> None:
    votes = (Vote(score=-1, fact="Say that it is Canberra."),)
    learn(world, "a", votes=votes)
    assert in_force(world, "ask a") == ["Say that it is Canberra."]
    assert in_force(world, "ask b") == []


def test_a_lesson_in_the_weights_is_in_force_again_only_after_a_contradiction_is_undone(
    world: World,
) -> None:
    learn(world, "a", SHORT)
    with world.store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        lessons.mark_learned(conn, everything(world)[0].id, 0)
    learn(world, "b", SHORT, at=20.0)
    assert everything(world)[0].state is LessonState.LEARNED, "more of the same changes nothing"
    learn(world, "c", LONG, at=20.0 + HALF_LIFE_SECONDS)
    assert in_force(world) == [LONG]
    with world.store.write() as conn:
        removal.remove_evidence(conn, ["c"], at=9.0)
    assert in_force(world) == [SHORT]


def test_a_redacted_turn_gives_no_lesson(world: World) -> None:
    world.close("a", "hm")
    with world.store.write() as conn:
        conn.exec_driver_sql("UPDATE exchanges SET capture = 'redacted'")
    learn(world, "a", SHORT)
    assert everything(world) == []


def events_of(conn: Connection) -> list[str]:
    return [
        row[0]
        for row in conn.exec_driver_sql(
            "SELECT kind FROM events WHERE kind LIKE 'lesson.%' ORDER BY seq"
        )
    ]


def test_watchers_see_when_a_lesson_is_made_and_superseded(world: World) -> None:
    learn(world, "a", SHORT)
    learn(world, "b", SHORT)
    learn(world, "c", LONG, at=10.0 + 3 * HALF_LIFE_SECONDS)
    with world.store.read() as conn:
        assert events_of(conn) == ["lesson.made", "lesson.superseded", "lesson.made"]
