"""The time zone of the browser, by the cookie that its script writes."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from tests.page.conftest import Browser

from openclaw_rl.page.time_zone import ZONE_COOKIE, find_zone


def test_a_known_zone_is_found() -> None:
    assert find_zone("America/New_York") == ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    "name",
    ["", "Moon/Base", "../../etc/passwd", "/etc/passwd", "Europe", "a\0b", "\ud800", "x" * 9000],
)
def test_any_other_name_is_utc(name: str) -> None:
    assert find_zone(name) is UTC


def test_the_views_read_days_in_the_zone_of_the_browser(browser: Browser) -> None:
    assert "Day (UTC)" in browser.get("/ui/conversations").text
    cookies = f"{browser.cookie}; {ZONE_COOKIE}=Europe/Berlin"
    shown = browser.get("/ui/conversations", {"Cookie": cookies})
    assert shown.status_code == 200
    assert "Day (Europe/Berlin)" in shown.text
