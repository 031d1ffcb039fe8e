"""Parts of views that update themselves: the server sends each of them alone."""

from __future__ import annotations

import html
import re
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from tests.page.conftest import Browser, OpenPage
from tests.page.learned_home import make_home
from tests.serve.conftest import Start

from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.page import templating
from openclaw_rl.page.sections import SECTIONS
from openclaw_rl.store.acts import ActKind
from openclaw_rl.store.db import Store

RECEIPT = "e" * 24
_TAG = re.compile(r"<[a-z]+ [^<>]*hx-get=[^<>]*>")
_PAGES_OF_A_VIEW = 3


def updated_parts(page: str) -> dict[str, str]:
    """Ids of the elements that load themselves or another part again -> address."""
    parts = {}
    for tag in _TAG.findall(page):
        values = dict(re.findall(r'([a-z-]+)="([^"]*)"', tag))
        target = values.get("hx-target", "").removeprefix("#") or values.get("id", "")
        if target and target not in ("dialog-content", "comparison"):
            parts[target] = html.unescape(values["hx-get"])
    return parts


def kind_of(path: str) -> str:
    """First words of an address, which are those of its view."""
    return "/".join(path.split("/")[:3]) + "/" * (path.count("/") - 2)


def look_at_all_views(browser: Browser) -> dict[str, str]:
    """Open the views that links lead to, some of each. Return the parts with their addresses."""
    waiting = [section.path for section in SECTIONS]
    waiting.append(f"/ui/take-back/receipt?act={RECEIPT}")
    seen = set(waiting)
    looks = Counter[str]()
    parts: dict[str, str] = {}
    while waiting:
        address = waiting.pop(0)
        answer = browser.get(address)
        assert answer.status_code == 200, (address, answer.text)
        parts |= updated_parts(answer.text)
        for link in re.findall(r'href="(/ui/[^"#]*)', answer.text):
            path = urlsplit(html.unescape(link)).path
            if path.startswith("/ui/static") or link in seen:
                continue
            seen.add(link)
            looks[kind_of(path)] += 1
            if looks[kind_of(path)] <= _PAGES_OF_A_VIEW:
                waiting.append(html.unescape(link))
    return parts


def record_receipt(store: Store) -> None:
    """Record an act that took a turn back, for the view of its receipt."""
    plan = {"name": "default", "safe": 0, "taken_out": 1, "undone": [5], "batches": 1}
    with store.write() as conn:
        origin = ActOrigin(id=RECEIPT)
        details = {"turns": ["turn-1"], "plans": [{**plan, "repeated_turns": 1}]}
        origin.record(conn, ActKind.UNDO, "turn-1", "taken back", details)


def test_each_part_that_updates_itself_is_sent_alone(
    tmp_path: Path, start: Start, open_page: OpenPage
) -> None:
    config = make_home(tmp_path)
    store = Store.open(config.store_path)
    record_receipt(store)
    browser = open_page(start(store=store))
    parts = look_at_all_views(browser)
    for part, address in parts.items():
        answer = browser.get(address, {"HX-Request": "true", "HX-Target": part})
        assert answer.status_code == 200, (part, address, answer.text)
        assert "<!doctype" not in answer.text.lower(), part
    templates = (templating.FOLDER / "templates").glob("*.html")
    blocks = set()
    for template in templates:
        blocks |= set(re.findall(r"{% block (\w+_\w+) %}", template.read_text("utf-8")))
    assert {part.replace("-", "_") for part in parts} >= blocks - {"turn_tokens"}
