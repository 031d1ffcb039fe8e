"""Habits of a good page: what is typed stays while parts are updated, and times are those of the reader."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from playwright.sync_api import Page, expect
from tests.external.page.conftest import OpenVisitor, Visitor
from tests.external.page.walk import open_dialog

ZONE = "Australia/Eucla"
"""A zone that is three quarters of an hour off, as no other default is."""
TYPED = "words that nobody has sent"
FIELDS = "input[type=search], input[type=text], input:not([type]), textarea"
UPDATE = """() => new Promise(done => {
    const parts = document.querySelectorAll("[hx-trigger*='changed-']").length;
    let settled = 0;
    document.body.addEventListener("htmx:afterSettle", () => {
        settled += 1;
        if (settled === parts) {
            done(parts);
        }
    });
    refreshAll();
})"""
"""Updates all parts that an event of the server updates. Resolves to their number."""


def type_everywhere(page: Page) -> int:
    """Type into every visible field. Return their number."""
    fields = page.locator(FIELDS).locator("visible=true")
    for field in fields.all():
        field.fill(TYPED)
    return fields.count()


def test_typed_words_stay_while_parts_are_updated(visitor: Visitor) -> None:
    page = visitor.page
    for path in ("/ui/conversations", "/ui/learned", "/ui/episodes", "/ui/chat"):
        visitor.open(path)
        number = type_everywhere(page)
        assert number
        assert page.evaluate(UPDATE)
        values = [
            field.input_value() for field in page.locator(FIELDS).locator("visible=true").all()
        ]
        assert values == [TYPED] * number, path
    visitor.open("/ui/not-understood")
    page.get_by_role("button", name="It meant").first.click()
    assert type_everywhere(page) == 1
    assert page.evaluate(UPDATE)
    expect(page.locator("ol.unclear textarea").first).to_have_value(TYPED)
    visitor.check()


def test_typed_words_in_a_dialog_stay_while_parts_are_updated(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("/ui/learned")
    dialog = open_dialog(page, "Edit")
    dialog.get_by_label("What it learns").fill(TYPED)
    assert page.evaluate(UPDATE)
    expect(dialog.get_by_label("What it learns")).to_have_value(TYPED)
    visitor.check()


def test_exact_times_and_days_are_those_of_the_browser(open_visitor: OpenVisitor) -> None:
    visitor = open_visitor(zone=ZONE)
    page = visitor.page
    for path in ("/ui/now", "/ui/learned", "/ui/versions", "/ui/conversations"):
        visitor.open(path)
        times = page.locator("time[data-time]").all()
        assert times, path
        for shown in times:
            moment = datetime.fromisoformat(shown.get_attribute("datetime") or "")
            local = moment.astimezone(ZoneInfo(ZONE))
            title = shown.get_attribute("title") or ""
            assert f"{local:%M:%S}" in title
            assert f"{local.hour % 12 or 12}:" in title or f"{local:%H}:" in title
    expect(page.get_by_label(f"Day ({ZONE})")).to_be_visible()
    visitor.check()
