"""A person at the page, who clicks on words that are visible."""

from __future__ import annotations

import re
from dataclasses import dataclass

from playwright.sync_api import Locator, Page, expect
from tests.external.page.conftest import WAIT, Visitor

expect.set_options(timeout=WAIT)


@dataclass
class Walk:
    """Clicks of a person that start at Now."""

    visitor: Visitor
    clicks: int = 0

    def __post_init__(self) -> None:
        self.visitor.open("/ui/now")

    @property
    def page(self) -> Page:
        return self.visitor.page

    def follow(self, name: str | re.Pattern[str]) -> None:
        """Click on the first link with this text, and wait for the page to which it leads."""
        link = self.page.get_by_role("link", name=name, exact=isinstance(name, str)).first
        self._click(link)
        self.page.wait_for_load_state("load")

    def press(self, name: str) -> None:
        self._click(self.page.get_by_role("button", name=name, exact=True).first)

    def _click(self, place: Locator) -> None:
        expect(place).to_be_visible()
        place.click()
        self.clicks += 1

    def sees(self, text: str | re.Pattern[str]) -> None:
        """Wait until the text is visible."""
        expect(self.page.get_by_text(text).first).to_be_visible()


def open_dialog(page: Page, button: str | re.Pattern[str]) -> Locator:
    """Press a button that opens a dialog, and return the dialog when it is open."""
    page.get_by_role("button", name=button).first.click()
    return shown_dialog(page)


def shown_dialog(page: Page) -> Locator:
    dialog = page.locator("dialog[open]")
    expect(dialog.get_by_role("heading").first).to_be_visible()
    return dialog


def confirm(dialog: Locator, button: str) -> str:
    """Press the button that carries an act out. Return what the page says was done."""
    dialog.get_by_role("button", name=button, exact=True).click()
    expect(dialog.get_by_role("heading", name="Done")).to_be_visible()
    return dialog.locator("p").first.inner_text()


def close(dialog: Locator) -> None:
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
