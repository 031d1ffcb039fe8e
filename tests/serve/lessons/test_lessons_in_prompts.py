"""Lessons stand in the prompt and nowhere else: not in the conversation, not in its history, not in its links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import KEY, SCOPE, TOOLS, USER, Answer, Site, Start

from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.judge.lessons.lesson_book import update_lessons
from openclaw_rl.store import reactions
from openclaw_rl.store.lessons import examinations, lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.questions import question_hash
from openclaw_rl.store.lessons.scopes import LessonScope
from openclaw_rl.types import Exchange, Verdict

SHORT = Lesson(
    id="aa",
    key=SCOPE,
    text="Keep answers short",
    topic="length/short",
    made_at=1.0,
    reinforced_at=1.0,
)
FORMAL = replace(SHORT, id="bb", text="Use a formal tone.", topic="tone/formal", made_at=2.0)
HINT = "\n\nKeep answers short."
Conversation = list[dict[str, Any]]


def know(site: Site, *known: Lesson) -> None:
    with site.store.write() as conn:
        for lesson in known:
            lessons.add_lesson(conn, lesson)


def ask(
    site: Site, messages: Conversation, *, key: str = KEY, **more: Any
) -> tuple[Answer, Exchange]:
    body = {
        "model": more.pop("model", site.config.model.name),
        "messages": messages,
        **more.pop("body", {}),
    }
    headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
    answer = site.http.post("/v1/chat/completions", body, headers)
    assert answer.status_code == 200, answer.text
    return answer, site.last()


def prompt_text(site: Site, exchange: Exchange) -> str:
    return str(
        site.renderer.tokenizer.backend.decode(
            exchange.request.prompt_ids.tolist(), skip_special_tokens=False
        )
    )


def continued(messages: Conversation, answer: Answer, *new: dict[str, Any]) -> Conversation:
    return [*messages, answer.json()["choices"][0]["message"], *new]


def test_lessons_are_in_the_next_prompt_but_not_in_stored_messages(site: Site) -> None:
    before = ask(site, [USER])[1]
    know(site, SHORT, FORMAL)
    answer, exchange = ask(site, [USER])
    assert "hi\n\nKeep answers short. Use a formal tone." in prompt_text(site, exchange)
    assert site.script.seen[-1] == exchange.request.prompt_ids.tolist(), "stored as it was sampled"
    assert list(exchange.request.messages) == [USER]
    assert exchange.request.marks == before.request.marks, "links do not see it"
    assert exchange.request.lessons == {"aa": SHORT.text, "bb": FORMAL.text}
    assert answer.headers["X-OpenClaw-Lessons"] == "aa, bb"
    assert (
        "X-OpenClaw-Lessons"
        not in ask(site, [USER], model=f"{site.config.model.name}@0")[0].headers
    )


def test_an_evaluation_can_request_a_version_with_lessons(site: Site) -> None:
    know(site, SHORT)
    side = {"X-Turn-Type": "side", "X-With-Lessons": "true"}
    answer, exchange = ask(site, [USER], model=f"{site.config.model.name}@0", headers=side)
    assert answer.headers["X-OpenClaw-Lessons"] == "aa"
    assert HINT in prompt_text(site, exchange)
    plain = ask(site, [USER], model=f"{site.config.model.name}@0", headers={"X-Turn-Type": "side"})[
        0
    ]
    assert "X-OpenClaw-Lessons" not in plain.headers


def test_a_lesson_is_not_in_the_history_and_the_cached_prefix_stays(site: Site) -> None:
    know(site, SHORT)
    first = [{"role": "system", "content": "You are an assistant. " * 20}, USER]
    answer, one = ask(site, first)
    second = continued(first, answer, {"role": "user", "content": "and then?"})
    answer, two = ask(site, second)
    three = ask(site, continued(second, answer, {"role": "user", "content": "go on"}))[1]
    assert prompt_text(site, two).count("Keep answers short.") == 1
    assert f"and then?{HINT}" in prompt_text(site, two)
    assert one.reply is not None
    sampled, ids = one.reply.response_ids.tolist(), two.request.prompt_ids.tolist()
    assert any(ids[i : i + len(sampled)] == sampled for i in range(len(ids))), (
        "the reply keeps its sampled tokens"
    )
    for earlier, later, last in ((one, two, "hi"), (two, three, "and then?")):
        shared = earlier.request.prompt_ids[: shared_prefix(earlier, later)].tolist()
        text = str(site.renderer.tokenizer.backend.decode(shared, skip_special_tokens=False))
        whole, _, after = prompt_text(site, earlier).partition(HINT)
        assert after, "the earlier prompt has the lesson"
        assert text == whole, "all that the client had sent stays cached"
        assert text.endswith(last)


def shared_prefix(a: Exchange, b: Exchange) -> int:
    pairs = zip(a.request.prompt_ids.tolist(), b.request.prompt_ids.tolist(), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(map(prompt_length, (a, b))))


def prompt_length(exchange: Exchange) -> int:
    return len(exchange.request.prompt_ids)


def test_a_tool_loop_continues_the_whole_prompt(start: Start) -> None:
    site = start("qwen3")
    know(site, SHORT)
    site.script.say(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    )
    answer, one = ask(site, [USER], body={"tools": TOOLS})
    call = answer.json()["choices"][0]["message"]["tool_calls"][0]
    tool = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    _, two = ask(site, continued([USER], answer, tool), body={"tools": TOOLS})
    assert one.reply is not None
    before = [*one.request.prompt_ids, *one.reply.response_ids]
    assert two.request.prompt_ids[: len(before)].tolist() == before
    assert prompt_text(site, two).count("Keep answers short.") == 1


def test_a_restart_does_not_continue_a_prompt_with_an_old_lesson(start: Start) -> None:
    site = start()
    know(site, SHORT)
    answer, _ = ask(site, [USER])
    again = start(store=site.store, settings={"serve.lessons": "off"})
    _, exchange = ask(again, continued([USER], answer, {"role": "user", "content": "and then?"}))
    assert "Keep answers short." not in prompt_text(again, exchange)


@pytest.mark.parametrize(
    ("mode", "texts"),
    [("until_learned", ["aa", "cc"]), ("always", ["aa", "bb", "cc"]), ("off", [])],
)
def test_the_setting_decides_how_long_a_lesson_stays_in_prompts(
    start: Start, mode: str, texts: list[str]
) -> None:
    site = start(settings={"serve.lessons": mode})
    pinned = replace(FORMAL, id="cc", text="Answer in German.", is_pinned=True)
    know(site, SHORT, FORMAL, pinned)
    with site.store.write() as conn:
        lessons.mark_learned(conn, "bb", 0)
        lessons.mark_learned(conn, "cc", 0)
    assert list(ask(site, [USER])[1].request.lessons) == texts


@pytest.mark.parametrize(
    "other",
    [
        {"key": "sk-other"},
        {"headers": {"X-Agent-Id": "writer"}},
        {"headers": {"X-Turn-Type": "side"}},
        {"model": "starter@0"},
    ],
)
def test_other_keys_agents_side_calls_and_pinned_versions_get_no_lessons(
    start: Start, other: dict[str, Any]
) -> None:
    site = start(settings={"model.name": "starter"})
    know(site, SHORT)
    assert list(ask(site, [USER])[1].request.lessons) == ["aa"]
    assert not ask(site, [USER], **other)[1].request.lessons


def test_a_fact_applies_to_its_question_alone(site: Site) -> None:
    question = question_hash(
        [{"role": "user", "content": "Capital  of australia?"}],
        lambda m: False,
        key=site.store.secret,
    )
    know(
        site,
        replace(
            SHORT, text="It is Canberra.", scope_kind=LessonScope.QUESTION, scope_value=question
        ),
    )
    assert "Canberra" in prompt_text(
        site, ask(site, [{"role": "user", "content": "Capital of Australia?"}])[1]
    )
    for other in ("Capital of Austria?", "hi", ""):
        assert "Canberra" not in prompt_text(
            site, ask(site, [{"role": "user", "content": other}])[1]
        )


def test_a_fact_about_a_short_message_applies_to_its_conversation_alone(site: Site) -> None:
    """It is another question in another conversation."""

    def conversation(country: str, message: str = "And its capital?") -> Conversation:
        answer = {"role": "assistant", "content": f"{country} is a country."}
        return [
            {"role": "user", "content": f"Tell me about {country}."},
            answer,
            {"role": "user", "content": message},
        ]

    turn = ask(site, conversation("Australia"))[1].request.id
    verdict = Verdict(
        turn=turn, revision=1, judge="explicit", score=-1, hints=("It is Canberra.",), at=1.0
    )
    with site.store.write() as conn:
        reactions.record_reaction(
            conn,
            turn,
            messages=[USER | {"content": "It is Canberra."}],
            signature=b"said",
            source=None,
            how="exact",
            at=1.0,
        )
        update_lessons(
            conn, verdict, HintTopics(()), is_ephemeral=lambda message: False, key=site.store.secret
        )
    assert "Canberra" in prompt_text(site, ask(site, conversation("Australia"))[1])
    for other in (
        conversation("Austria"),
        conversation("Australia", "Yes"),
        conversation("Austria", "And its capital?")[2:],
    ):
        assert "Canberra" not in prompt_text(site, ask(site, other)[1])


def test_a_prompt_without_space_for_the_lessons_is_answered_without_them(start: Start) -> None:
    site = start(settings={"engine.max_context": 64}, context_length=64)
    know(site, replace(SHORT, text="Keep answers short and to the point, whatever is asked. " * 8))
    answer, exchange = ask(site, [USER])
    assert not exchange.request.lessons
    assert "X-OpenClaw-Lessons" not in answer.headers


def test_a_prompt_has_the_heaviest_lessons_oldest_first(site: Site) -> None:
    many = [
        replace(SHORT, id=f"l{n}", text=f"Rule {n}.", made_at=float(n), weight=1.0 + n / 10)
        for n in range(12)
    ]
    know(
        site,
        *many,
        replace(SHORT, id="pinned", text="Pinned.", made_at=99.0, is_pinned=True, weight=0.1),
    )
    exchange = ask(site, [USER])[1]
    assert list(exchange.request.lessons) == ["l10", "l11", "pinned"], (
        "it is not measured how many the base carries"
    )
    question = question_hash([USER], lambda m: False, key=site.store.secret)
    fact = replace(
        SHORT,
        id="fact",
        scope_kind=LessonScope.QUESTION,
        scope_value=question,
        weight=0.1,
        made_at=98.0,
    )
    know(site, fact)
    assert list(ask(site, [USER])[1].request.lessons) == ["l11", "fact", "pinned"]
    with site.store.write() as conn:
        examinations.record_base_answers(conn, "test-identity", {})
        examinations.record_capacity(conn, "test-identity", 8)
    assert list(ask(site, [USER])[1].request.lessons) == [
        *(f"l{n}" for n in range(6, 12)),
        "fact",
        "pinned",
    ]


def test_redacted_exchanges_store_no_lessons(start: Start) -> None:
    site = start(settings={"serve.capture": "redacted"})
    know(site, SHORT)
    answer, exchange = ask(site, [USER])
    assert answer.headers["X-OpenClaw-Lessons"] == "aa"
    assert not exchange.request.lessons
    with site.store.read() as conn:
        assert conn.exec_driver_sql("SELECT lessons FROM bodies").scalar_one() is None


def test_a_stream_names_its_lessons_and_adds_them_to_a_message_in_parts(site: Site) -> None:
    know(site, SHORT)
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    answer = site.http.post(
        "/v1/chat/completions",
        {"model": site.config.model.name, "messages": [parts], "stream": True},
    )
    assert answer.headers["X-OpenClaw-Lessons"] == "aa"
    assert f"hi{HINT}" in prompt_text(site, site.last())


def test_a_wish_in_the_newest_message_overrides_a_lesson_once(site: Site) -> None:
    know(site, SHORT, FORMAL)
    wish = {"role": "user", "content": "What is photosynthesis? This time in detail, please."}
    answer, exchange = ask(site, [wish])
    assert list(exchange.request.lessons) == ["bb"]
    after = ask(site, continued([wish], answer, {"role": "user", "content": "And respiration?"}))[1]
    assert list(after.request.lessons) == ["aa", "bb"], "the wish was for one reply"
    with site.store.write() as conn:
        lessons.set_pinned(conn, "aa", True)
    assert list(ask(site, [wish])[1].request.lessons) == ["aa", "bb"], "a pinned lesson stays"


def test_the_reply_to_a_complaint_follows_it(site: Site) -> None:
    """The judge reads the complaint only after the reply to it was given."""
    answer, _ = ask(site, [USER])
    complaint = continued(
        [USER], answer, {"role": "user", "content": "Shorter, please. And what is 2 + 2?"}
    )
    answer, exchange = ask(site, complaint)
    assert exchange.request.lessons == {"wish/length/short": "Keep answers short."}
    assert answer.headers["X-OpenClaw-Lessons"] == "wish/length/short"
    assert f"what is 2 + 2?{HINT}" in prompt_text(site, exchange)
    assert list(exchange.request.messages) == complaint
    later = continued(complaint, answer, {"role": "user", "content": "And 3 + 3?"})
    assert not ask(site, later)[1].request.lessons, (
        "from now on, the lesson that the judge makes is in the prompt"
    )
    know(site, SHORT)
    assert list(ask(site, complaint)[1].request.lessons) == ["aa"], "the same is not said twice"
    know(
        site,
        replace(SHORT, id="cc", text="Give long answers.", topic="length/long", is_pinned=True),
    )
    assert list(ask(site, complaint)[1].request.lessons) == ["aa", "cc"], (
        "a pinned lesson is not opposed"
    )


def test_a_first_message_is_not_read_as_a_complaint(site: Site) -> None:
    assert not ask(
        site, [{"role": "user", "content": "Shorter, please: it was a long and stormy night."}]
    )[1].request.lessons


def test_damaged_rules_do_not_fail_a_request(start: Start, tmp_path: Path) -> None:
    """The judge reports them. The gateway reads no wishes then."""
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1\nrules: [")
    site = start(settings={"judge.rules_path": str(file)})
    know(site, SHORT)
    wish = {"role": "user", "content": "This time in detail, please."}
    assert list(ask(site, [wish])[1].request.lessons) == ["aa"]
