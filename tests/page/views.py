"""Views as the page shows them, from a store alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

from openclaw_rl.page.sections import SECTIONS
from openclaw_rl.page.templating import TemplateRenderer
from openclaw_rl.page.view import View, ViewRequest
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store


class LetterTokens:
    """A tokenizer whose ids are letters."""

    def split(self, ids: Sequence[int]) -> list[str] | None:
        return [chr(ord("a") + id_ % 26) for id_ in ids]


def view_of(path: str) -> View:
    return next(view for section in SECTIONS for view in section.views if view.path == path)


def collect(
    store: Store,
    path: str,
    params: Mapping[str, str] | None = None,
    *,
    now: float | None = None,
    zone: tzinfo = UTC,
) -> Mapping[str, Any]:
    """Return the data of a view."""
    config = from_flat({"home": str(store.path.parent)})
    with store.read() as conn:
        return view_of(path).collect(
            ViewRequest(
                conn=conn,
                config=config,
                params=params or {},
                now=time.time() if now is None else now,
                tokens=LetterTokens(),
                cache={},
                zone=zone,
            )
        )


def show(store: Store, path: str, params: Mapping[str, str] | None = None) -> str:
    """Return the HTML of a view."""
    everywhere = {"sections": SECTIONS, "path": path, "message": ""}
    data = {**everywhere, **collect(store, path, params)}
    return TemplateRenderer().render(view_of(path).template, data)


def open_store(tmp_path: Path) -> Store:
    """Return a new store in a home of its own."""
    return Store.open(tmp_path / "store.db")
