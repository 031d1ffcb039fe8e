"""The views of what was learned in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Connection, event
from tests.page.learned_home import NOON, SHORT, ReadyAnswers, make_home, view_request
from tests.store.world import request, serve

from openclaw_rl.page.templating import TemplateRenderer
from openclaw_rl.page.version_replies import CACHE_NAME, AnswerState, VersionAnswer
from openclaw_rl.page.view import NotFound, ViewRequest
from openclaw_rl.page.views import answers, learned
from openclaw_rl.page.views.learned import lesson_tags
from openclaw_rl.page.word_diff import TextRun, compare_words
from openclaw_rl.settings.load import Config
from openclaw_rl.status.lessons_report import scope_words
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import cards, lessons, withdrawals
from openclaw_rl.store.lessons.examinations import Withdrawal, WithdrawalCode
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope, subject_scope, user_scope

HOSTILE = "<script>x()</script> \u202e {{ 7*7 }} 'a' \"b\" \x1b[31m"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_home(tmp_path / "home")


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    with Store.open(config.store_path) as opened:
        yield opened


def add_many(conn: Connection, number: int) -> None:
    for index in range(number):
        lesson = replace(SHORT, id=f"m{index:03}", text=f"Lesson {index}.", made_at=NOON - index)
        lessons.add_lesson(conn, lesson)


def render(template: str, data: Any, block: str | None = None) -> str:
    everywhere = {"sections": (), "path": "/ui/learned", "message": ""}
    return TemplateRenderer().render(template, {**everywhere, **data}, block=block)


def test_the_first_screen_says_what_was_learned_today_in_the_persons_words(
    store: Store, config: Config
) -> None:
    with store.read() as conn:
        data = learned.collect_cards(view_request(conn, config, state="all"))
        first = learned.collect_cards(view_request(conn, config))
    assert [day["title"] for day in data["days"]] == ["Today", "Yesterday"]
    assert [item["lesson"].id for day in first["days"] for item in day["cards"]] == ["aa"]
    assert (first["said_today"], first["new_today"]) == (1, 1)
    html = render("learned.html", first)
    assert 'Today it learned <data value="1"' in html
    assert "superseded since" not in html
    assert "“shorter, please”" in html
    assert 'href="/ui/turns/turn-1"' in html
    assert "✓ in prompts" in html
    assert 'hx-get="/ui/acts/forget-lesson?lesson=aa"' in html
    part = render("learned.html", first, "learned_list")
    assert "Keep answers short." in part
    assert "<h1>" not in part


def test_today_is_a_day_of_the_browsers_calendar(store: Store, config: Config) -> None:
    """The lesson was said at 14:13 in UTC, which is in the next day of Auckland."""
    with store.read() as conn:
        request = replace(view_request(conn, config), now=NOON - 86400 + 13 * 3600)
        for zone, title in ((UTC, "Yesterday"), (ZoneInfo("Pacific/Auckland"), "Today")):
            data = learned.collect_cards(
                replace(request, zone=zone, params={"state": "superseded"})
            )
            assert [day["title"] for day in data["days"]] == [title]


def test_a_lesson_of_today_that_was_superseded_is_counted_and_said(
    store: Store, config: Config
) -> None:
    with store.write() as conn:
        for id_ in ("old", "new"):
            lesson = Lesson(id=id_, text=f"Be {id_}.", made_at=NOON, reinforced_at=NOON)
            lessons.add_lesson(conn, lesson)
        lessons.supersede(conn, "old", "new")
    with store.read() as conn:
        data = learned.collect_cards(view_request(conn, config))
    assert (data["new_today"], data["superseded_today"]) == (3, 1)
    shown = [item["lesson"].id for day in data["days"] for item in day["cards"]]
    assert sorted(shown) == ["aa", "new"]
    assert "</data> of the new ones was superseded since." in render("learned.html", data)


def test_a_curve_leaves_out_what_is_no_number(store: Store, config: Config) -> None:
    with store.write() as conn:
        for version, value in enumerate((0.5, float("inf"), 0.25), 1):
            lessons.record_divergence(conn, "aa", version, value, at=NOON)
    with store.read() as conn:
        curve = learned.collect_lesson(view_request(conn, config, lesson="aa"))["curve"]
        cards = learned.collect_cards(view_request(conn, config))
    assert (curve["x"], curve["series"][0]["values"]) == ([1, 3], [0.5, 0.25])
    assert "inf" not in render("learned.html", cards)


def test_lessons_are_filtered_and_searched(store: Store, config: Config) -> None:
    def shown(**params: str) -> list[str]:
        with store.read() as conn:
            data = learned.collect_cards(view_request(conn, config, **params))
        assert render("learned.html", data)
        return [item["lesson"].id for day in data["days"] for item in day["cards"]]

    assert shown(state="superseded") == ["bb"]
    assert shown(state="learned") == []
    assert shown(state="all", search="DETAIL") == ["bb"]
    assert shown(state="all", search="shorter, please") == ["aa"]
    assert shown(search="%") == []
    with pytest.raises(NotFound):
        shown(state="nothing")


def test_pages_of_lessons_show_each_lesson_once(store: Store, config: Config) -> None:
    with store.write() as conn:
        add_many(conn, 45)
    seen = []
    params: dict[str, str] = {}
    with store.read() as conn:
        while True:
            data = learned.collect_cards(view_request(conn, config, **params))
            seen += [item["lesson"].id for day in data["days"] for item in day["cards"]]
            if data["next"] is None:
                break
            params = {"before": repr(data["next"].said_at), "row": str(data["next"].row)}
    assert len(seen) == len(set(seen)) == 46
    assert seen[:2] == ["m000", "aa"]


def test_the_number_of_statements_does_not_grow_with_the_lessons(
    store: Store, config: Config
) -> None:
    def count_statements() -> int:
        statements: list[str] = []
        with store.read() as conn:

            def note(*arguments: Any) -> None:
                statements.append(arguments[2])

            event.listen(conn, "before_cursor_execute", note)
            learned.collect_cards(view_request(conn, config))
        return len(statements)

    few = count_statements()
    with store.write() as conn:
        add_many(conn, 19)
    assert count_statements() == few


def test_a_page_of_a_lesson_shows_words_practice_and_curve(store: Store, config: Config) -> None:
    with store.read() as conn:
        data = learned.collect_lesson(view_request(conn, config, lesson="aa"))
        with pytest.raises(NotFound, match="forgotten"):
            learned.collect_lesson(view_request(conn, config, lesson="zz"))
    assert data["curve"]["x"] == [1, 3]
    assert data["curve"]["series"][0]["values"] == [0.5, 0.25]
    html = render("lesson.html", data)
    assert "<q>more detail, please</q>, you, <time" in html.partition("Superseded by it")[2]
    assert "answered by the base model and by version 3" in html
    assert "It was not practised yet." in html
    assert "Give long, detailed answers." in html


def test_tags_say_where_a_lesson_is(store: Store, config: Config) -> None:
    withdrawal = Withdrawal(
        code=WithdrawalCode.ALONE, asked=20, right_with=12, right_without=19, at=NOON
    )

    def tags(id_: str, mode: str = "until_learned") -> list[str]:
        with store.read() as conn:
            card = cards.find_card(conn, id_)
        assert card is not None
        return [tag.text for tag in lesson_tags(card, mode)]

    assert tags("aa") == ["✓ in prompts"]
    assert tags("aa", "off") == ["not in prompts"]
    assert tags("bb") == ["superseded by a later one"]
    with store.write() as conn:
        lessons.mark_learned(conn, "aa", 3, at=NOON)
    assert tags("aa") == ["not in prompts", "✓ in the weights since version 3"]
    assert tags("aa", "always")[0] == "✓ in prompts"
    with store.write() as conn:
        withdrawals.withdraw(conn, "aa", SHORT.text, withdrawal)
    assert tags("aa") == ["✗ withdrawn"]
    with store.read() as conn:
        data = learned.collect_lesson(view_request(conn, config, lesson="aa"))
    assert data["withdrawal"] == "12 of 20 answers were right with it, 19 without"
    with store.write() as conn:
        lessons.set_pinned(conn, "aa", True)
    assert tags("aa") == ["✓ in prompts", "✗ withdrawn", "pinned"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (LessonScope.AGENT, "", "for everything that is asked"),
        (LessonScope.AGENT, "coder", "for agent coder"),
        (LessonScope.USER, user_scope("", "ann"), "for user ann"),
        (
            LessonScope.SUBJECT,
            subject_scope("", "", "money"),
            "for everything that is asked about money",
        ),
        (LessonScope.SESSION, "s1", "for one conversation"),
        (LessonScope.QUESTION, "q1", "for one question"),
    ],
)
def test_scopes_are_said_in_words(kind: LessonScope, value: str, expected: str) -> None:
    assert scope_words(kind, value) == expected


def test_hostile_texts_are_only_text(store: Store, config: Config) -> None:
    with store.write() as conn:
        lessons.add_lesson(conn, replace(SHORT, id="hh", text=HOSTILE))
        lessons.reinforce(conn, "hh", "turn-3", at=NOON, words=HOSTILE)
    with store.read() as conn:
        pages = [
            render(
                "learned.html", learned.collect_cards(view_request(conn, config, search=HOSTILE))
            ),
            render("learned.html", learned.collect_cards(view_request(conn, config))),
            render("lesson.html", learned.collect_lesson(view_request(conn, config, lesson="hh"))),
        ]
    for html in pages:
        assert "<script>x" not in html
        assert "\u202e" not in html
        assert "\x1b" not in html
    assert "&lt;script&gt;x()" in pages[1]


def answer(text: str = "", state: AnswerState = AnswerState.READY, note: str = "") -> VersionAnswer:
    return VersionAnswer(state=state, token_ids=tuple(map(ord, text)), note=note)


def ask(conn: Connection, config: Config, ready: ReadyAnswers, turn: str = "turn-1") -> Any:
    made = view_request(conn, config, turn=turn, version="3")
    asked = ViewRequest(**{**made.__dict__, "cache": {CACHE_NAME: ready}})
    return answers.collect_answers(asked)


def test_replies_of_both_versions_come_one_after_the_other(store: Store, config: Config) -> None:
    pending = answer(state=AnswerState.PENDING)
    ready = ReadyAnswers({0: pending, 3: pending})
    with store.read() as conn:
        html = render("answers.html", ask(conn, config, ready))
        assert ready.asked == [0]
        assert 'hx-trigger="load delay:700ms"' in html
        assert "generating the reply" in html
        ready.answers = {0: answer("It is blue, my friend."), 3: answer("It is blue.")}
        data = ask(conn, config, ready)
    html = render("answers.html", data)
    assert data["asked"] == "this is turn-1"
    assert "hx-trigger" not in html
    assert '<del><span class="unseen">[only before: </span>, my friend' in html
    assert not data["is_same"]


def test_a_failed_reply_says_why_and_can_be_asked_for_again(store: Store, config: Config) -> None:
    failed = answer(state=AnswerState.FAILED, note="no gateway runs on this home")
    with store.read() as conn:
        html = render("answers.html", ask(conn, config, ReadyAnswers({0: answer("a"), 3: failed})))
        with pytest.raises(NotFound):
            ask(conn, config, ReadyAnswers({}), turn="nothing")
    assert "No reply: no gateway runs on this home." in html
    assert "Try again" in html


def test_the_prompts_of_a_lesson_are_its_own_and_then_those_of_the_person(
    store: Store, config: Config
) -> None:
    with store.write() as conn:
        serve(conn, "turn-7")
    with store.read() as conn:
        data = learned.collect_comparison(view_request(conn, config, lesson="aa"))
    assert data["turns"] == ["turn-1", "turn-7", "turn-6"]
    assert data["version"] == 3
    assert len(request("a").prompt_ids)


def test_differences_are_marked_word_by_word() -> None:
    before, after = compare_words("It is red, he said.", "It is blue, he said.")
    assert before == [TextRun("It is ", False), TextRun("red", True), TextRun(", he said.", False)]
    assert "".join(run.text for run in after) == "It is blue, he said."
    assert compare_words("今日は雨", "今日は雪")[0][-1] == TextRun("雨", True)
    assert compare_words("", "") == ([], [])
    assert compare_words("a " * 3000, "b") == ([TextRun("a " * 3000, True)], [TextRun("b", True)])


def test_all_states_have_a_filter() -> None:
    shown = {state for _, states in learned.FILTERS.values() for state in states}
    assert shown == set(LessonState)
