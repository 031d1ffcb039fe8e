"""Output of `lessons list`: the lessons with their evidence, as text or as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.terminal import TerminalConsole, print_data
from openclaw_rl.errors import DamagedRow
from openclaw_rl.settings.load import Config
from openclaw_rl.status.inspect import shorten_line, turn_data
from openclaw_rl.status.report import read_store
from openclaw_rl.status.withdrawn_lessons import withdrawal_text
from openclaw_rl.store import exchanges
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope, scope_owner, scope_subject

MAX_SHOWN_TURNS = 3
"""Turns that are shown of each lesson, newest first."""


def lesson_rows(conn: Connection, *, with_superseded: bool, now: float) -> list[dict[str, Any]]:
    """Return the lessons as plain JSON, oldest first: fields, aged weight, and turns with what was asked and said."""
    states = [
        state for state in LessonState if with_superseded or state is not LessonState.SUPERSEDED
    ]
    return [_lesson_data(conn, lesson, now) for lesson in lessons.list_lessons(conn, states=states)]


def _lesson_data(conn: Connection, lesson: Lesson, now: float) -> dict[str, Any]:
    evidence = [
        {
            "turn": one.turn,
            "weight": one.weight,
            "at": one.at,
            "words": one.words or None,
            **_turn_comments(conn, one.turn),
        }
        for one in lessons.turns_of_lesson(conn, lesson.id)
    ]
    return asdict(lesson) | {"weight": lesson.weight_at(now), "turns": evidence}


def _turn_comments(conn: Connection, turn: str) -> dict[str, str | None]:
    """Return what was asked in a turn, what was said about the reply, and who said it; None if it is not stored."""
    try:
        data = turn_data(conn, turn)
        exchange = exchanges.get(conn, turn)
    except DamagedRow:
        exchange = None
    if exchange is None:
        return {"asked": None, "said": None, "user": None, "key": None, "session": None}
    reaction = data["reaction"] or {"messages": [], "feedback": []}
    messages = [message for message in reaction["messages"] if message.get("role") == "user"]
    comments = [message_text(message) for message in messages]
    for feedback in reaction["feedback"]:
        comments += filter(None, (feedback["comment"], feedback["correction"]))
    return {
        "asked": data["user"],
        "said": " / ".join(comments) or None,
        "user": exchange.request.user or None,
        "key": exchange.request.scope,
        "session": data["session"],
    }


def show_lessons(config: Config, *, with_superseded: bool, as_json: bool) -> None:
    """Print the lessons of the home."""
    with read_store(config) as conn:
        rows = lesson_rows(conn, with_superseded=with_superseded, now=time.time())

    def render(data: Mapping[str, Any]) -> Group:
        lines = [
            line for row in data["lessons"] for line in _lesson_lines(row, config.serve.lessons)
        ]
        return Group(*(lines or ["no lessons yet: they are made from what you say about replies"]))

    print_data({"lessons": rows}, render, as_json=as_json, highlight=False)


def _lesson_lines(row: Mapping[str, Any], mode: str) -> list[RenderableType]:
    """Return a lesson, where it is, and what was said. `mode`: `serve.lessons`."""
    width = TerminalConsole().width
    where = Text(f"{state_text(row, mode)}; {_scope_text(row)}", style="dim")
    lines: list[RenderableType] = [
        Text.assemble((row["id"], "bold"), f"  {row['text']}"),
        Padding(where, (0, 0, 0, 2), expand=False),
    ]
    for one in reversed(row["turns"][-MAX_SHOWN_TURNS:]):
        comment = f"said: {one['words'] or one['said'] or 'nothing'} ({_place_text(one)})"
        lines.append(Text("    " + shorten_line(comment, width - 4)))
    more = len(row["turns"]) - MAX_SHOWN_TURNS
    return [*lines, f"    and {more} more"] if more > 0 else lines


def _place_text(evidence: Mapping[str, Any]) -> str:
    """Return where the words of a lesson were said, and by which user if one was named."""
    user = f", user {evidence['user']}" if evidence["user"] else ""
    return f"{evidence['turn']}{user}"


def state_text(row: Mapping[str, Any], mode: str) -> str:
    """Return whether a lesson is in prompts or in the weights. `mode`: `serve.lessons`."""
    pinned = ", pinned" if row["is_pinned"] else ""
    if row["state"] == LessonState.SUPERSEDED:
        return f"superseded by {row['superseded_by']}{pinned}"
    if row["state"] == LessonState.WITHDRAWN:
        where = "withdrawn from prompts"
        if is_in_prompts(row, mode):
            where = "in prompts, because it is pinned"
        return f"{where}, not practised: {withdrawal_text(row['withdrawal'])}"
    prompts = "in prompts" if is_in_prompts(row, mode) else "not in prompts"
    weights = "not yet in the weights"
    if row["state"] == LessonState.LEARNED:
        weights = f"in the weights since version {row['learned_version']}"
    divergence = "" if row["divergence"] is None else f" (divergence {row['divergence']:.3g})"
    return f"{prompts}, {weights}{divergence}{pinned}"


def is_in_prompts(row: Mapping[str, Any], mode: str) -> bool:
    """Return whether a lesson is in prompts. `mode`: `serve.lessons`."""
    if mode == "off" or row["state"] == LessonState.SUPERSEDED:
        return False
    if row["state"] == LessonState.WITHDRAWN:
        return bool(row["is_pinned"])
    is_learned = row["state"] == LessonState.LEARNED
    return mode == "always" or not is_learned or bool(row["is_pinned"])


def scope_words(kind: LessonScope, value: str) -> str:
    """Return the prompts that a lesson is for."""
    if kind is LessonScope.QUESTION:
        return "for one question"
    if kind is LessonScope.SESSION:
        return "for one conversation"
    agent, user = scope_owner(kind, value)
    named = [f"user {user}"] if user else []
    named += [f"agent {agent}"] if agent else []
    owner = " of ".join(named) or "everything that is asked"
    subject = scope_subject(kind, value)
    return f"for {owner} about {subject}" if subject else f"for {owner}"


def _scope_text(row: Mapping[str, Any]) -> str:
    words = scope_words(row["scope_kind"], row["scope_value"])
    if row["scope_kind"] == LessonScope.QUESTION:
        questions = [one["asked"] for one in row["turns"] if one["asked"]]
        question = questions[-1] if questions else None
        words += f": {shorten_line(question, 60)}"
    if row["scope_kind"] == LessonScope.SESSION:
        words += f" ({row['scope_value']})"
    return f"{words}, weight {row['weight']:.2g}"
