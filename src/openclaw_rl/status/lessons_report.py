"""Output of `lessons list`: the lessons with their evidence, as text or as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.padding import Padding
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.terminal import TerminalConsole, print_json
from openclaw_rl.errors import DamagedRow
from openclaw_rl.settings.load import Config
from openclaw_rl.status.inspect import shorten_line, turn_data
from openclaw_rl.status.report import read_store
from openclaw_rl.status.withdrawn_lessons import withdrawal_text
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
        {"turn": one.turn, "weight": one.weight, "at": one.at, **_said(conn, one.turn)}
        for one in lessons.turns_of_lesson(conn, lesson.id)
    ]
    return asdict(lesson) | {"weight": lesson.weight_at(now), "turns": evidence}


def _said(conn: Connection, turn: str) -> dict[str, str | None]:
    """Return what was asked in a turn, and what was said about the reply; None if it is not stored."""
    try:
        data = turn_data(conn, turn)
    except DamagedRow:
        return {"asked": None, "said": None}
    reaction = data["reaction"] or {"messages": [], "feedback": []}
    said = [
        message_text(message) for message in reaction["messages"] if message.get("role") == "user"
    ]
    said += [
        text
        for given in reaction["feedback"]
        for text in (given["comment"], given["correction"])
        if text
    ]
    return {"asked": data["user"], "said": " / ".join(said) or None}


def show_lessons(config: Config, *, with_superseded: bool, as_json: bool) -> None:
    """Print the lessons of the home."""
    console = TerminalConsole()
    with read_store(config) as conn:
        rows = lesson_rows(conn, with_superseded=with_superseded, now=time.time())
    if as_json:
        print_json({"lessons": rows})
        return
    for row in rows:
        console.print(Text.assemble((row["id"], "bold"), f"  {row['text']}"))
        where = Text(f"{state_text(row, config.serve.lessons)}; {_scope_text(row)}", style="dim")
        console.print(Padding(where, (0, 0, 0, 2), expand=False))
        for one in reversed(row["turns"][-MAX_SHOWN_TURNS:]):
            said = f"said: {one['said'] or 'nothing'} ({one['turn']})"
            console.print(Text("    " + shorten_line(said, console.width - 4)))
        if (more := len(row["turns"]) - MAX_SHOWN_TURNS) > 0:
            console.print(f"    and {more} more")
    if not rows:
        console.print("no lessons yet: they are made from what you say about replies")


def state_text(row: Mapping[str, Any], mode: str) -> str:
    """Return whether a lesson is in prompts or in the weights. `mode`: `serve.lessons`."""
    pinned = ", pinned" if row["is_pinned"] else ""
    if row["state"] == LessonState.SUPERSEDED:
        return f"superseded by {row['superseded_by']}{pinned}"
    if row["state"] == LessonState.WITHDRAWN:
        where = (
            "in prompts, because it is pinned"
            if row["is_pinned"] and mode != "off"
            else "withdrawn from prompts"
        )
        return f"{where}, not practised: {withdrawal_text(row['withdrawal'])}"
    is_learned = row["state"] == LessonState.LEARNED
    in_prompts = mode != "off" and (not is_learned or mode == "always" or row["is_pinned"])
    learned = (
        f"in the weights since version {row['learned_version']}"
        if is_learned
        else "not yet in the weights"
    )
    divergence = "" if row["divergence"] is None else f" (divergence {row['divergence']:.3g})"
    return f"{'in prompts' if in_prompts else 'not in prompts'}, {learned}{divergence}{pinned}"


def _scope_text(row: Mapping[str, Any]) -> str:
    weight = f"weight {row['weight']:.2g}"
    if row["scope_kind"] == LessonScope.QUESTION:
        asked = next((one["asked"] for one in reversed(row["turns"]) if one["asked"]), None)
        return f"for one question: {shorten_line(asked, 60)}, {weight}"
    if row["scope_kind"] == LessonScope.SESSION:
        return f"for one conversation ({row['scope_value']}), {weight}"
    subject = scope_subject(row["scope_kind"], row["scope_value"])
    about = f" about {subject}" if subject else ""
    agent, user = scope_owner(row["scope_kind"], row["scope_value"])
    if user:
        return f"for user {user}{f' of agent {agent}' if agent else ''}{about}, {weight}"
    return f"for agent {agent or '(without a name)'}{about}, {weight}"
