"""Wishes for one conversation or one subject, from what people say at the gateway to the prompts that follow."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

from tests.serve.conftest import KEY, Site

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.judge import user_feedback
from openclaw_rl.judge.lessons.lesson_book import update_lessons
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.store import turns
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lessons.scopes import LessonScope

JUDGE = RulesJudge.load()
TIMES = itertools.count(1.0)
TOPICS = HintTopics(JUDGE.files)
SHORT, LONG = "Keep answers short.", "Give long, detailed answers."


class Talk:
    """One conversation with the real gateway. `session`: its header; "" for a client that sends none, as for `user`."""

    def __init__(self, site: Site, session: str = "", user: str = "") -> None:
        self._site, self._headers = site, {"X-Session-Id": session} if session else {}
        self._user = {"user": user} if user else {}
        self._messages: list[dict[str, Any]] = []

    def say(self, text: str) -> list[str]:
        """Send a message, and let the worker link and judge what came before. Returns the lessons in the prompt."""
        self._messages.append({"role": "user", "content": text})
        body = {"model": self._site.config.model.name, "messages": self._messages, **self._user}
        answer = self._site.http.post(
            "/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}", **self._headers}
        )
        assert answer.status_code == 200, answer.text
        self._messages.append(answer.json()["choices"][0]["message"])
        in_prompt = list(self._site.ended(self._site.last().request.id).request.lessons.values())
        judge_all(self._site)
        return in_prompt

    def correct(self, text: str) -> None:
        """Give feedback on the last reply, and let the worker judge it."""
        body = {"id": self._site.last().request.id, "thumbs": "down", "correction": text}
        answer = self._site.http.post("/v1/feedback", body, {"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 200, answer.text
        judge_all(self._site)

    def begin_like(self, other: Talk) -> None:
        """Begin with what the other conversation has so far, as another client that got the same replies."""
        self._messages = list(other._messages)


def judge_all(site: Site) -> None:
    collector = Collector(site.store, site.config.collect)
    while collector.step():
        pass
    with site.store.read() as conn:
        waiting = turns.closed_turns(conn, 100)
    for item in waiting:
        judged = user_feedback.explicit_verdict(item) or asyncio.run(JUDGE.judge(item))
        verdict = replace(judged, at=next(TIMES))
        with site.store.write() as conn:
            turns.add_verdict(conn, verdict)
            update_lessons(
                conn, verdict, TOPICS, is_ephemeral=lambda message: False, key=site.store.secret
            )


def test_a_wish_for_a_conversation_applies_to_it_alone(site: Site) -> None:
    for session in ("", "s1"):
        talk, other = Talk(site, session), Talk(site, session and "s2")
        talk.say(f"Where is the Louvre? {session}")
        assert talk.say("Shorter in this chat, please. And the Prado?") == [SHORT], (
            "at once, by the words alone"
        )
        assert talk.say("And the Uffizi?") == [SHORT]
        assert other.say("What is the capital of France?") == []
        assert talk.say("And the Tate?") == [SHORT]


def test_conversations_with_the_same_first_message_are_distinct(site: Site) -> None:
    talk, other = Talk(site), Talk(site)
    talk.say("Could you help me with a few museums?")
    talk.say("Shorter for now, please.")
    assert talk.say("Where is the Louvre?") == [SHORT]
    assert other.say("Could you help me with a few museums?") == []
    assert other.say("Where is the Louvre?") == []


def test_conversations_of_two_users_with_the_same_replies_are_distinct(site: Site) -> None:
    ann, bob = Talk(site, user="ann"), Talk(site, user="bob")
    ann.say("Could you help me with a few museums?")
    bob.begin_like(ann)
    ann.correct("Shorter in this chat, please.")
    assert bob.say("Where is the Prado?") == []
    assert ann.say("Where is the Louvre?") == [SHORT]


def test_a_wish_about_a_subject_applies_to_prompts_that_name_it(site: Site) -> None:
    talk = Talk(site)
    talk.say("Which money do they use in Japan?")
    talk.say("Shorter, please, when I ask about money.")
    assert Talk(site).say("Where does money come from?") == [SHORT]
    assert Talk(site).say("Where is the Louvre?") == []


def test_a_message_that_limits_a_wish_to_a_subject_does_not_name_the_subject(site: Site) -> None:
    talk = Talk(site)
    talk.say("Where is the Louvre?")
    assert talk.say("Shorter, please, when I ask about money. Where is the Prado?") == []
    assert talk.say("And where is the Uffizi gallery?") == []
    assert talk.say("Which money do I need for it?") == [SHORT]
    assert talk.say("Is it far?") == [SHORT], "it goes on about it"


def test_the_newer_wish_of_a_subject_and_a_conversation_counts(site: Site) -> None:
    talk = Talk(site)
    talk.say("Where is the Louvre?")
    talk.say("Shorter in this chat, please. Where is the Prado?")
    talk.say("More detail, please, when I ask about money. Where is the Uffizi?")
    assert talk.say("And the Tate gallery?") == [SHORT]
    assert talk.say("Which money do I need for it?") == [LONG]


def test_a_narrower_wish_counts_until_a_newer_general_one(site: Site) -> None:
    first = Talk(site)
    first.say("Where is the Louvre?")
    first.say("Shorter, please.")
    talk = Talk(site)
    talk.say("Where is the Prado?")
    talk.say("More detail in this chat, please.")
    assert talk.say("And the Uffizi?") == [LONG]
    assert Talk(site).say("Where is the Tate?") == [SHORT]
    talk.say("Too long.")
    assert talk.say("And the Hermitage?") == [SHORT]
    with site.store.read() as conn:
        states = {lesson.scope_kind: lesson.state for lesson in lessons.list_lessons(conn)}
    assert states == {
        LessonScope.AGENT: LessonState.ACTIVE,
        LessonScope.SESSION: LessonState.SUPERSEDED,
    }
