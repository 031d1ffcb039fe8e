"""Lessons that cost correctness leave the prompts: a real gateway, and an engine that some lessons mislead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.serve.conftest import KEY, SCOPE, Site, Start, wait_for

from openclaw_rl.examination.probe_set import load_lesson_probes
from openclaw_rl.store import events
from openclaw_rl.store.lessons import examinations, lessons, removal
from openclaw_rl.store.lessons.examinations import WithdrawalCode
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.withdrawals import RESTORED_EVENT, WITHDRAWN_EVENT, count_by_owner

PROBES = load_lesson_probes()
SHORT = Lesson(
    id="aa",
    key=SCOPE,
    text="Keep answers short.",
    topic="length/short",
    weight=2.0,
    made_at=1.0,
    reinforced_at=1.0,
)
KLINGON = replace(
    SHORT, id="bb", text="Answer in Klingon.", topic="", weight=1.0, made_at=2.0, reinforced_at=2.0
)
FORMAL = replace(
    SHORT, id="cc", text="Use a formal tone.", topic="tone/formal", weight=1.0, made_at=3.0
)
Misled = Callable[[str], bool]


def start_misled(start: Start, is_misled: Misled, **settings: Any) -> Site:
    """Start a gateway whose engine answers right, but "Noted." to a prompt of which `is_misled` is true."""
    sites: list[Site] = []

    def reply(prompt: Sequence[int], version: int) -> list[int]:
        renderer = sites[0].renderer
        text = renderer.tokenizer.backend.decode(list(prompt))
        probes = [probe for probe in PROBES if probe.question in text]
        answer = "Noted." if is_misled(text) or not probes else f"It is {probes[-1].answers[0]}."
        return [*renderer.tokenizer.encode(answer).tolist(), renderer.stop_token_ids[0]]

    sites.append(start(reply=reply, settings={"serve.examine_lessons": True, **settings}))
    return sites[0]


def know(site: Site, *known: Lesson) -> None:
    with site.store.write() as conn:
        for lesson in known:
            lessons.add_lesson(conn, lesson)


def ask(site: Site, text: str = "How are you?") -> tuple[list[str], str]:
    """Returns the ids of the lessons in the prompt, and the header with the withdrawn ones."""
    body = {"model": site.config.model.name, "messages": [{"role": "user", "content": text}]}
    answer = site.http.post("/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200, answer.text
    return list(site.last().request.lessons), answer.headers.get("X-OpenClaw-Withdrawn-Lessons", "")


def states(site: Site) -> dict[str, LessonState]:
    with site.store.read() as conn:
        return {lesson.id: lesson.state for lesson in lessons.list_lessons(conn)}


def find(site: Site, id_: str) -> Lesson:
    with site.store.read() as conn:
        lesson = lessons.get(conn, id_)
    assert lesson is not None
    return lesson


def kinds_of_events(site: Site) -> list[tuple[str, str]]:
    with site.store.read() as conn:
        recorded = events.read_after(conn, 0, 100, kinds=[WITHDRAWN_EVENT, RESTORED_EVENT])
    return [(event.kind, event.ref) for event in recorded]


def wait_for_states(site: Site, **expected: str) -> None:
    wait_for(lambda: states(site), lambda current: current == expected, seconds=120)


def test_a_lesson_that_costs_correctness_is_withdrawn_and_named_in_a_header(start: Start) -> None:
    site = start_misled(start, lambda text: "Klingon" in text)
    know(site, SHORT, KLINGON)
    assert ask(site) == (["aa", "bb"], ""), "nobody has examined them"
    wait_for_states(site, aa="active", bb="withdrawn")
    assert ask(site) == (["aa"], "bb")
    withdrawal = find(site, "bb").withdrawal
    assert withdrawal is not None
    assert (withdrawal.code, withdrawal.right_with) == (WithdrawalCode.ALONE, 0)
    assert withdrawal.right_without == withdrawal.asked > 0
    assert kinds_of_events(site) == [(WITHDRAWN_EVENT, "bb")]
    with site.store.read() as conn:
        assert count_by_owner(conn, LessonState.WITHDRAWN) == {("default", SCOPE): 1}


def test_the_lightest_of_lessons_that_cost_together_is_withdrawn_until_the_other_is_learned(
    start: Start,
) -> None:
    site = start_misled(start, lambda text: "short" in text and "formal" in text)
    know(site, SHORT, FORMAL)
    ask(site)
    wait_for_states(site, aa="active", cc="withdrawn")
    withdrawal = find(site, "cc").withdrawal
    assert withdrawal is not None
    assert (withdrawal.code, withdrawal.beside) == (WithdrawalCode.BESIDE_OTHERS, ("aa",))
    assert ask(site) == (["aa"], "cc")
    with site.store.write() as conn:
        lessons.mark_learned(conn, "aa", 0)
    assert ask(site)[0] == [], "it is examined before it returns"
    wait_for_states(site, aa="learned", cc="active")
    assert ask(site) == (["cc"], "")
    assert kinds_of_events(site) == [(WITHDRAWN_EVENT, "cc"), (RESTORED_EVENT, "cc")]


def test_an_edited_lesson_is_examined_again(start: Start) -> None:
    site = start_misled(start, lambda text: "Klingon" in text)
    know(site, KLINGON)
    ask(site)
    wait_for_states(site, bb="withdrawn")
    with site.store.write() as conn:
        removal.replace_text(conn, "bb", "Answer in English.", at=time.time())
    assert ask(site) == (["bb"], "")
    with site.store.write() as conn:
        removal.replace_text(conn, "bb", "Answer in Klingon, please.", at=time.time())
    ask(site)
    wait_for_states(site, bb="withdrawn")


def test_a_reinforced_lesson_is_examined_before_it_returns(start: Start) -> None:
    misled = {"Klingon"}
    site = start_misled(start, lambda text: any(word in text for word in misled))
    know(site, KLINGON)
    ask(site)
    wait_for_states(site, bb="withdrawn")
    misled.clear()
    assert ask(site) == ([], "bb"), "what is known of it is not examined again by itself"
    with site.store.write() as conn:
        lessons.set_weight(conn, "bb", 2.0, at=time.time() + 1)
    assert ask(site) == ([], "bb")
    wait_for_states(site, bb="active")
    assert ask(site) == (["bb"], "")


def test_a_pin_keeps_a_withdrawn_lesson_in_prompts(start: Start) -> None:
    site = start_misled(start, lambda text: "Klingon" in text)
    know(site, SHORT, replace(KLINGON, is_pinned=True))
    ask(site)
    wait_for_states(site, aa="active", bb="withdrawn")
    assert ask(site) == (["aa", "bb"], "bb")
    with site.store.write() as conn:
        lessons.set_pinned(conn, "bb", False)
    assert ask(site) == (["aa"], "bb")


def test_a_wish_in_the_newest_message_is_examined(start: Start) -> None:
    """It is no lesson yet; when the judge has made one of it, that one is known to cost correctness."""
    site = start_misled(start, lambda text: "Keep answers short." in text)
    messages = [
        {"role": "user", "content": "Where is the Louvre?"},
        {"role": "assistant", "content": "It is in Paris."},
        {"role": "user", "content": "Too long. And the Prado?"},
    ]
    body = {"model": site.config.model.name, "messages": messages}

    def lessons_in_prompt() -> list[str]:
        answer = site.http.post("/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 200, answer.text
        return list(site.last().request.lessons)

    assert lessons_in_prompt() == ["wish/length/short"]
    wait_for(lessons_in_prompt, lambda in_prompt: in_prompt == [], seconds=120)
    know(site, SHORT)
    assert ask(site) == ([], "aa"), "not once"
    wait_for_states(site, aa="withdrawn")


def test_the_serving_version_is_examined(start: Start, tmp_path: Path) -> None:
    """The base is right with the lesson, and the version that was trained is not."""
    sites: list[Site] = []

    def reply(prompt: Sequence[int], version: int) -> list[int]:
        renderer = sites[0].renderer
        text = renderer.tokenizer.backend.decode(list(prompt))
        probes = [probe for probe in PROBES if probe.question in text]
        is_misled = version == 1 and "short" in text
        answer = "Noted." if is_misled or not probes else f"It is {probes[-1].answers[0]}."
        return [*renderer.tokenizer.encode(answer).tolist(), renderer.stop_token_ids[0]]

    sites.append(start(reply=reply, settings={"serve.examine_lessons": True}))
    site = sites[0]
    site.publish(tmp_path / "p")
    wait_for(lambda: ask(site), lambda _: site.last().request.version == 1)
    know(site, SHORT)
    ask(site)
    wait_for_states(site, aa="withdrawn")


def test_the_capacity_of_the_base_is_measured_once(start: Start) -> None:
    def is_misled(text: str) -> bool:
        _, _, hint = text.partition("\n\n")
        return hint.count(".") > 4

    site = start_misled(start, is_misled)

    def capacity() -> int | None:
        with site.store.read() as conn:
            return examinations.measured_capacity(conn, "test-identity")

    assert wait_for(capacity, lambda measured: measured is not None, seconds=120) == 4
    many = [
        replace(SHORT, id=f"l{n}", text=f"Say word{n}.", topic="", weight=1.0 + n) for n in range(6)
    ]
    know(site, *many)
    assert ask(site)[0] == ["l2", "l3", "l4", "l5"]


def test_the_examination_can_be_switched_off(start: Start) -> None:
    site = start_misled(start, lambda text: "Klingon" in text, **{"serve.examine_lessons": False})
    know(site, KLINGON)
    assert [ask(site), ask(site)] == [(["bb"], ""), (["bb"], "")]
    assert len(site.engine.calls) == 2, "the engine was asked by the person alone"
