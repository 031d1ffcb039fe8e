"""Lessons that left the prompts because they cost correctness, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import LessonState


def withdrawn_rows(conn: Connection) -> list[dict[str, Any]]:
    """Return the withdrawn lessons as plain JSON: id, text, policy, key and the figures of the examination."""
    withdrawn = lessons.list_lessons(conn, states=[LessonState.WITHDRAWN])
    names = ("id", "text", "policy", "key", "is_pinned", "withdrawal")
    return [
        {name: value for name, value in asdict(lesson).items() if name in names}
        for lesson in withdrawn
    ]


def withdrawal_text(withdrawal: Mapping[str, Any] | None) -> str:
    """Return why a lesson is withdrawn, with the figures. `withdrawal`: the fields of a `Withdrawal`."""
    if withdrawal is None:
        return "it costs correctness"
    beside = f" beside {', '.join(withdrawal['beside'])}" if withdrawal["beside"] else ""
    with_it = withdrawal["right_with"]
    without = withdrawal["right_without"]
    return (
        f"{with_it} of {withdrawal['asked']} answers were right with it{beside}, {without} without"
    )
