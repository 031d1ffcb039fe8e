"""Acts of a person in the browser: each is carried out once, and the audit shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from tests.external.page.conftest import OpenVisitor, Visitor
from tests.external.page.walk import Walk, close, confirm, open_dialog

from openclaw_rl.store.acts import Act, ActActor, ActKind, newest_acts
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import policies, version_list
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem

RETRAINING = 15 * 60_000
"""Milliseconds for which training again may take."""
NEW_WORDS = "Keep answers to one short sentence."


@pytest.fixture(scope="module")
def store(system: SubprocessSystem) -> Iterator[Store]:
    with Store.open(system.config.store_path, create=False) as opened:
        yield opened


def acts_of(store: Store, kind: ActKind) -> list[Act]:
    with store.read() as conn:
        return list(newest_acts(conn, 100, kind))


def check_audit(visitor: Visitor, kind: ActKind, outcome: str) -> None:
    """Fail unless the list of acts has this one as the newest, done on the page."""
    walk = Walk(visitor)
    walk.follow("Versions")
    walk.follow("What you changed")
    newest = walk.page.locator("tbody tr").first
    expect(newest.locator("th")).to_have_text(kind.value)
    expect(newest).to_contain_text(outcome)
    expect(newest.locator("td").last).to_have_text("page")
    visitor.check()


def lesson_card(page: Page, text: str) -> Locator:
    return page.locator("article.lesson").filter(
        has=page.get_by_role("heading", name=text, exact=True)
    )


def first_lesson(page: Page) -> str:
    """Return the words of the first lesson in the list."""
    return page.locator("article.lesson h3").first.inner_text()


def open_unclear(visitor: Visitor) -> Locator:
    """Open the list of reactions that were not understood, and return its items."""
    Walk(visitor).follow("Not understood")
    items = visitor.page.locator("ol.unclear > li")
    expect(items.first).to_be_visible()
    return items


def score_of(store: Store, turn: str) -> list[int | None]:
    with store.read() as conn:
        return [item.score for item in records.feedback_on(conn, turn) if item.given_by == "page"]


def test_a_reaction_is_scored_by_keyboard(visitor: Visitor, store: Store) -> None:
    page = visitor.page
    items = open_unclear(visitor)
    count = items.count()
    turn = items.first.get_attribute("data-turn") or ""
    page.keyboard.press("j")
    expect(items.first).to_be_focused()
    page.keyboard.press("g")
    expect(page.locator("#score-note")).to_contain_text("Noted: good.")
    expect(items).to_have_count(count - 1)
    assert score_of(store, turn) == [1]
    check_audit(visitor, ActKind.SCORE, "noted: good")


def test_a_reaction_is_scored_by_click(visitor: Visitor, store: Store) -> None:
    items = open_unclear(visitor)
    turn = items.first.get_attribute("data-turn") or ""
    items.first.get_by_role("button", name="Not good", exact=True).click()
    expect(visitor.page.locator("#score-note")).to_contain_text("Noted: not good.")
    assert score_of(store, turn) == [-1]
    check_audit(visitor, ActKind.SCORE, "noted: not good")


def test_a_score_is_taken_back(visitor: Visitor, store: Store) -> None:
    items = open_unclear(visitor)
    count = items.count()
    turn = items.first.get_attribute("data-turn") or ""
    items.first.get_by_role("button", name="Neither", exact=True).click()
    expect(items).to_have_count(count - 1)
    dialog = open_dialog(visitor.page, "Take that back")
    outcome = confirm(dialog, "Take it back")
    close(dialog)
    expect(visitor.page.locator("#score-note")).to_be_empty()
    expect(items).to_have_count(count)
    assert items.first.get_attribute("data-turn") == turn
    assert score_of(store, turn) == []
    check_audit(visitor, ActKind.RETRACT_SCORE, outcome)


def test_an_item_that_came_back_is_scored_again(visitor: Visitor, store: Store) -> None:
    items = open_unclear(visitor)
    turn = items.first.get_attribute("data-turn") or ""
    items.first.get_by_role("button", name="Neither", exact=True).click()
    dialog = open_dialog(visitor.page, "Take that back")
    confirm(dialog, "Take it back")
    close(dialog)
    items.first.get_by_role("button", name="Good", exact=True).click()
    expect(visitor.page.locator("#score-note")).to_contain_text("Noted: good.")
    assert score_of(store, turn) == [1]
    visitor.check()


def test_a_note_leaves_when_the_reader_is_not_at_it(visitor: Visitor) -> None:
    page = visitor.page
    page.clock.install()
    items = open_unclear(visitor)
    items.first.get_by_role("button", name="Neither", exact=True).click()
    note = page.locator("#score-note")
    expect(note).to_contain_text("Noted: neither.")
    note.get_by_role("button").focus()
    page.clock.fast_forward(31_000)
    expect(note).to_contain_text("Noted: neither.")
    page.locator("h1").click()
    note.get_by_role("button").blur()
    page.clock.fast_forward(31_000)
    expect(note).to_be_empty()
    visitor.check()


def test_a_lesson_is_pinned_and_the_other_browser_shows_it(
    open_visitor: OpenVisitor, store: Store
) -> None:
    first = open_visitor()
    second = open_visitor()
    for each in (first, second):
        Walk(each).follow("What it learned")
    text = first_lesson(first.page)
    seen = lesson_card(second.page, text).first
    expect(seen.get_by_role("button", name=re.compile("^Pin"))).to_be_visible()
    second.page.evaluate("window.wasLoadedOnce = true")
    dialog = open_dialog(first.page, re.compile(f"^Pin “{re.escape(text[:20])}"))
    confirm(dialog, "Pin")
    close(dialog)
    expect(seen.get_by_role("button", name=re.compile("^Unpin"))).to_be_visible()
    assert second.page.evaluate("window.wasLoadedOnce")
    second.check()
    check_audit(first, ActKind.PIN_LESSON, "the lesson is pinned")


def test_an_act_that_takes_long_is_shown_as_being_carried_out(visitor: Visitor) -> None:
    """An act may wait for the store, or for rules that are compiled when the first lesson is edited."""
    page = visitor.page
    held: list[Route] = []
    visitor.open("/ui/versions")
    dialog = open_dialog(page, "Freeze training")
    page.route("**/ui/acts/freeze-training", lambda route: held.append(route), times=1)
    button = dialog.get_by_role("button", name="Freeze training")
    button.click()
    expect(button).to_be_disabled()
    ending = "button => getComputedStyle(button, '::after').content"
    expect(dialog.locator("form.htmx-request")).to_have_count(1)
    assert button.evaluate(ending) == '" …"'
    held[0].abort()
    expect(dialog.get_by_role("heading", name="The connection ended")).to_be_visible()


def test_a_lesson_is_edited(visitor: Visitor) -> None:
    Walk(visitor).follow("What it learned")
    page = visitor.page
    dialog = open_dialog(page, re.compile("^Edit"))
    dialog.get_by_label("What it learns").fill(NEW_WORDS)
    confirm(dialog, "Save")
    close(dialog)
    expect(lesson_card(page, NEW_WORDS)).to_have_count(1)
    check_audit(visitor, ActKind.EDIT_LESSON, "the lesson has other words")


def test_a_lesson_is_forgotten(visitor: Visitor) -> None:
    Walk(visitor).follow("What it learned")
    page = visitor.page
    lesson = page.locator("article.lesson").first.get_attribute("id")
    assert lesson
    dialog = open_dialog(page, re.compile("^Forget"))
    confirm(dialog, "Forget it")
    close(dialog)
    expect(page.locator(f"#{lesson}")).to_have_count(0)
    check_audit(visitor, ActKind.FORGET_LESSON, "the lesson is forgotten")


def test_a_form_that_is_sent_twice_is_carried_out_once(visitor: Visitor, store: Store) -> None:
    with store.read() as conn:
        version = policies.head(conn).version
    visitor.open(f"/ui/versions/{version}")
    dialog = open_dialog(visitor.page, "Pin its files")
    form = dialog.locator("form[data-act]")
    send = """form => {
        const body = new URLSearchParams(new FormData(form));
        const send = () => fetch(form.getAttribute("hx-post"), {method: "POST", body});
        return Promise.all([send(), send()].map(async answer => (await answer).text()));
    }"""
    answers = [*form.evaluate(send), *form.evaluate(send)]
    assert sum("This was done already" in answer for answer in answers) == 3
    assert len(acts_of(store, ActKind.PIN_VERSION)) == 1
    visitor.check()


def test_it_is_rolled_back(visitor: Visitor, store: Store) -> None:
    with store.read() as conn:
        head = policies.head(conn)
    walk = Walk(visitor)
    walk.follow("Versions")
    walk.follow(f"Version {head.parent}")
    dialog = open_dialog(walk.page, "Roll back to it")
    outcome = confirm(dialog, "Roll back")
    assert f"Version {head.parent} is in use again" in outcome
    close(dialog)
    with store.read() as conn:
        assert head.version not in policies.lineage(conn, policies.head(conn).version)
    check_audit(visitor, ActKind.ROLL_BACK, "")
    assert acts_of(store, ActKind.ROLL_BACK)[0].actor is ActActor.PAGE


def test_a_session_is_taken_back_and_the_rest_is_learned_again(
    visitor: Visitor, store: Store
) -> None:
    """The conversation of a turn on which a version was trained, and others after it."""
    turn = trained_turn(store)
    page = visitor.page
    walk = Walk(visitor)
    visitor.open(f"/ui/turns/{turn}")
    walk.follow(re.compile("this conversation"))
    walk.follow("Take this conversation back")
    walk.sees("Nothing has changed yet. This is what would happen:")
    dialog = open_dialog(page, "Take it back …")
    outcome = confirm(dialog, "Take it back")
    dialog.get_by_role("link", name="See the receipt").click()
    expect(page.get_by_role("heading", name="Taken back")).to_be_visible()
    progress = page.get_by_role("progressbar")
    expect(progress).to_be_visible()
    total = progress.get_attribute("max") or "0"
    assert int(total) > 0
    page.evaluate("window.wasLoadedOnce = true")
    done = f"Learned again: {total} of {total} batches"
    expect(page.locator("#take-back-progress")).to_contain_text(done, timeout=RETRAINING)
    assert page.evaluate("window.wasLoadedOnce")
    check_audit(visitor, ActKind.UNDO, outcome)


def trained_turn(store: Store) -> str:
    """Return a turn that a person was answered in, and on which a version was trained after which others came."""
    with store.read() as conn:
        line = policies.lineage(conn, policies.head(conn).version)
        for version in line[1:]:
            batch = version_list.batch_turns(conn, version, 20)
            for item in batch:
                if item.source is None:
                    return item.turn
    raise AssertionError("no version was trained on replies to a person")
