"""Texts of strangers in every field that the page shows: they are shown, and do nothing."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Sequence
from typing import Any

from tests.external.page.conftest import OpenVisitor, call, view_paths
from tests.external.page.hostile import MARK, hostile_texts

from openclaw_rl.status.report import open_store
from openclaw_rl.store.lessons import lessons, removal
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem


def send(system: SubprocessSystem, method: str, path: str, body: object, **headers: str) -> Any:
    """Send a request that the gateway may refuse, as a text may not be allowed in a field. Return its answer."""
    try:
        return call(system, method, path, body, **headers)
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise
        return {}


def plant(system: SubprocessSystem, texts: Sequence[str]) -> None:
    """Put the texts into messages, names, feedback, and episodes."""
    for number, text in enumerate(texts):
        chat = {
            "model": system.config.model.name,
            "messages": [
                {"role": "system", "content": text},
                {"role": "user", "content": f"{number} {text}"},
                {"role": "assistant", "content": text},
                {"role": "user", "content": text},
            ],
            "max_tokens": 4,
            "user": text[:60],
        }
        header = text.encode("ascii", "ignore").decode().replace("\x00", "").strip()[:60]
        safe = "".join(character for character in header if character.isprintable())
        names = {"X-Agent-Id": safe, "X-Session-Id": f"{number}{safe}"}
        reply = send(system, "POST", "/v1/chat/completions", chat, **names)
        score = {"id": reply.get("id", ""), "score": number % 3 - 1, "by": text[:60]}
        send(system, "POST", "/v1/feedback", score | {"comment": text, "correction": text})
        name = f"hostile-{number}"
        episode = {"task": text, "group": {"id": f"g-{number}-{safe}", "size": 1}, "agent": safe}
        send(system, "PUT", f"/v1/episodes/{name}", episode)
        end = {"status": "void", "reason": text}
        send(system, "POST", f"/v1/episodes/{name}/outcome", end)


def plant_lessons(system: SubprocessSystem, texts: Sequence[str]) -> None:
    """Replace the texts of the lessons, as an edit does."""
    with open_store(system.config) as store, store.write() as conn:
        known = lessons.list_lessons(conn)
        for lesson, text in zip(known, texts, strict=False):
            shown = text.encode("utf-8", "ignore").decode()
            removal.replace_text(conn, lesson.id, shown, topic="", at=time.time())


def test_no_text_runs_loads_or_widens_anything(
    system: SubprocessSystem, open_visitor: OpenVisitor
) -> None:
    texts = hostile_texts()
    assert len(set(texts)) == 200
    plant(system, texts)
    plant_lessons(system, texts)
    visitor = open_visitor(width=360)
    page = visitor.page
    wide = []
    page.on("dialog", lambda dialog: visitor.problems.append(f"dialog: {dialog.message}"))
    for path in view_paths(visitor, each=12):
        visitor.open(path)
        assert page.evaluate(f"window.{MARK}") is None, path
        assert page.url.startswith(visitor.base)
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            wide.append(path)
    assert not wide
    visitor.check()
