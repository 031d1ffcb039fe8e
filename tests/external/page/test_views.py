"""Every view of the page, filled with what the demo's system has learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.external.page.conftest import SCREENSHOTS, OpenVisitor, Visitor, view_paths

from openclaw_rl.page.sections import SECTIONS

SIZES = [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")]


@pytest.fixture(scope="module")
def paths() -> list[str]:
    """Addresses that the first test has collected."""
    return []


def test_the_links_lead_to_every_section(visitor: Visitor, paths: list[str]) -> None:
    paths += view_paths(visitor)
    assert {section.path for section in SECTIONS} <= set(paths)
    visitor.check()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_view_is_sound(
    open_visitor: OpenVisitor,
    paths: list[str],
    request: pytest.FixtureRequest,
    width: int,
    scheme: str,
) -> None:
    """No error, nothing from elsewhere, no serious finding of axe, nothing wider than the screen; a screenshot."""
    axe: Path = request.config.getoption("--axe")
    assert paths
    visitor = open_visitor(width=width, scheme=scheme)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    problems = []
    for number, path in enumerate(paths):
        visitor.open(path)
        visitor.page.wait_for_load_state("load")
        name = path.partition("?")[0].removeprefix("/ui/").replace("/", "-")
        visitor.page.screenshot(
            path=SCREENSHOTS / f"{number:02}-{name}-{width}-{scheme}.png", full_page=True
        )
        wide = visitor.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if wide > 0:
            problems.append(f"{path}: {wide} px wider than the screen")
        # By the debugging protocol, as the page allows no other scripts.
        visitor.page.evaluate(axe.read_text(encoding="utf-8"))
        result = visitor.page.evaluate("axe.run()")
        for violation in result["violations"]:
            if violation["impact"] in ("serious", "critical"):
                places = [node["html"][:160] for node in violation["nodes"][:3]]
                problems.append(f"{path}: {violation['id']}: {places}")
    assert not problems
    visitor.check()


def test_every_view_can_be_reached_by_keyboard(visitor: Visitor) -> None:
    page = visitor.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    seen = []
    for _ in range(len(SECTIONS) + 2):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert {section.title for section in SECTIONS} <= set(seen)
    visitor.check()
