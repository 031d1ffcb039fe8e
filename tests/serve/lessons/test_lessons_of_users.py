"""Two users behind one key: what one of them wants is in the prompts of that one alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.conftest import KEY, USER, Site

from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.judge.lessons.lesson_book import known_lessons, update_lessons
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.store import reactions
from openclaw_rl.store.lessons import lessons, removal
from openclaw_rl.types import Exchange, Verdict

TOPICS = HintTopics(RulesJudge.load().files)
SHORT, LONG = "Keep answers short.", "Give long, detailed answers."
CLAUDE_CODE = "user_{}_account_acc-{}_session_{}"


def ask(
    site: Site, user: str, *, dialect: str = "chat", text: str = "hi", agent: str = ""
) -> Exchange:
    """A reply of the real gateway to this user, in one of the dialects."""
    messages = [USER | {"content": text}]
    body: dict[str, Any] = {"model": site.config.model.name, "messages": messages}
    if dialect == "messages":
        body |= {"max_tokens": 20, "metadata": {"user_id": user}}
    elif user:
        body["user"] = user
    route = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}[dialect]
    headers = {"Authorization": f"Bearer {KEY}"} | ({"X-Agent-Id": agent} if agent else {})
    answer = site.http.post(route, body, headers)
    assert answer.status_code == 200, answer.text
    return site.last()


def complain(
    site: Site, exchange: Exchange, *hints: str, at: float = 1.0, is_shared: bool = True
) -> None:
    """The lessons of a verdict on this reply, as the judge's worker writes them."""
    verdict = Verdict(
        turn=exchange.request.id, revision=1, judge="rules@1", score=-1, hints=hints, at=at
    )
    with site.store.write() as conn:
        reactions.record_reaction(
            conn,
            exchange.request.id,
            messages=[USER | {"content": " ".join(hints)}],
            signature=b"said",
            source=None,
            how="exact",
            at=at,
        )
        update_lessons(
            conn,
            verdict,
            TOPICS,
            is_shared=is_shared,
            is_ephemeral=lambda message: False,
            key=site.store.secret,
        )


def texts(exchange: Exchange) -> list[str]:
    return list(exchange.request.lessons.values())


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_a_wish_applies_to_its_user_alone(site: Site, dialect: str) -> None:
    complain(site, ask(site, "ann", dialect=dialect), SHORT)
    assert texts(ask(site, "ann", dialect=dialect)) == [SHORT]
    assert texts(ask(site, "bob", dialect=dialect)) == []
    assert texts(ask(site, "")) == []
    complain(site, ask(site, "bob", dialect=dialect), LONG)
    assert texts(ask(site, "ann", dialect=dialect)) == [SHORT], (
        "what another user wants supersedes nothing"
    )
    assert texts(ask(site, "bob", dialect=dialect)) == [LONG]


def test_a_user_of_claude_code_is_recognised_in_each_session(site: Site) -> None:
    first, second, other = (
        CLAUDE_CODE.format(*names) for names in (("x", 1, "s1"), ("x", 1, "s2"), ("y", 2, "s3"))
    )
    complain(site, ask(site, first, dialect="messages"), SHORT)
    assert texts(ask(site, second, dialect="messages")) == [SHORT]
    assert texts(ask(site, other, dialect="messages")) == []


def test_a_wish_applies_to_its_agent_alone(site: Site) -> None:
    complain(site, ask(site, "ann", agent="writer"), SHORT)
    assert texts(ask(site, "ann", agent="writer")) == [SHORT]
    assert texts(ask(site, "ann", agent="coder")) == []


def test_a_wish_without_a_user_applies_to_all_users_of_the_agent(site: Site) -> None:
    complain(site, ask(site, ""), SHORT)
    assert [texts(ask(site, user)) for user in ("", "ann")] == [[SHORT], [SHORT]]
    complain(site, ask(site, "ann"), LONG)
    assert [texts(ask(site, user)) for user in ("", "ann", "bob")] == [[SHORT], [LONG], [SHORT]]


def test_a_wish_without_a_user_reaches_no_user_unless_it_is_shared(site: Site) -> None:
    complain(site, ask(site, ""), SHORT, is_shared=False)
    assert [texts(ask(site, user)) for user in ("", "ann")] == [[SHORT], []]
    with site.store.write() as conn:
        (lesson,) = lessons.list_lessons(conn)
        lessons.share(conn, lesson.id)
    assert [texts(ask(site, user)) for user in ("", "ann")] == [[SHORT], [SHORT]]


def test_a_correction_applies_to_its_question_and_user_alone(site: Site) -> None:
    exchange = ask(site, "ann", text="Capital of Australia?")
    complain(site, exchange, "It is Canberra.")
    assert texts(ask(site, "ann", text="capital of  australia?")) == ["It is Canberra."]
    assert texts(ask(site, "bob", text="Capital of Australia?")) == []


def test_known_lessons_are_those_of_the_same_user(site: Site) -> None:
    complain(site, ask(site, "ann"), SHORT)
    complain(site, ask(site, "bob"), LONG)
    exchange = ask(site, "ann")
    with site.store.read() as conn:
        assert [lesson.text for lesson in known_lessons(conn, exchange.request.id)] == [SHORT]


def test_the_deletion_of_a_users_lesson_leaves_the_others(site: Site) -> None:
    """`undo` takes the turn out of its lesson, and `lessons forget` deletes one."""
    first, second = ask(site, "ann"), ask(site, "bob")
    complain(site, first, SHORT)
    complain(site, second, SHORT)
    with site.store.write() as conn:
        assert [one.owner for one in lessons.list_lessons(conn)] == [("", "ann"), ("", "bob")]
        removal.take_back(conn, [first.request.id], "undo", at=2.0)
    assert [texts(ask(site, user)) for user in ("ann", "bob")] == [[], [SHORT]]
    with site.store.write() as conn:
        removal.forget(conn, lessons.list_lessons(conn)[0].id, at=3.0)
    assert texts(ask(site, "bob")) == []


@pytest.mark.parametrize("route", ["chat/completions", "responses"])
def test_safety_identifier_names_the_user(site: Site, route: str) -> None:
    """Else the wish of one person is in the prompts of everybody behind the key."""

    def ask_as(person: str) -> Exchange:
        prompt: dict[str, Any] = (
            {"messages": [USER]} if route.startswith("chat") else {"input": "hi"}
        )
        body = {"model": site.config.model.name, "safety_identifier": person, **prompt}
        answer = site.http.post(f"/v1/{route}", body)
        assert answer.status_code == 200, answer.text
        assert "safety_identifier" not in answer.headers.get("X-OpenClaw-Ignored", "")
        return site.last()

    complain(site, ask_as("ann"), SHORT)
    assert [texts(ask_as(person)) for person in ("ann", "bob")] == [[SHORT], []]
    assert texts(ask(site, "ann")) == [SHORT]
