"""The view of what happens now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.page.view import View, ViewRequest
from openclaw_rl.status.report import collect_status


def collect_now(request: ViewRequest) -> Mapping[str, Any]:
    return {"status": collect_status(request.conn, request.now)}


VIEWS: Sequence[View] = (View(path="/ui/now", template="now.html", collect=collect_now),)
