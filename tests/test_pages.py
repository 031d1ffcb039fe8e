"""Pages in Markdown: links between them, those that the Makefile names, and the size of the changelog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/results/*.md")]
)
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    return {anchor_of(heading) for heading in HEADING.findall(page.read_text(encoding="utf-8"))}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors_of(target)
        ):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `heading`\n[a](#one-heading) [b](absent.md) [c](page.md#two) [d](https://example.com)\n"
    )
    assert broken_links(page) == ["absent.md", "page.md#two"]


def test_pages_that_the_makefile_writes_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = set(re.findall(r"docs/[\w/]+\.md", makefile))
    assert [page for page in sorted(pages) if not (ROOT / page).is_file()] == []


def test_the_changelog_is_one_page() -> None:
    assert (ROOT / "CHANGELOG.md").stat().st_size <= 12_000
