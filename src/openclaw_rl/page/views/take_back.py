"""Views on what would be lost by taking something back, and on what was taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.page.acts.take_back import UndoSelection, read_selection
from openclaw_rl.page.view import NotFound, View, ViewRequest
from openclaw_rl.status.conversations.turn_words import asked_words, reaction_words
from openclaw_rl.status.lessons_report import scope_words
from openclaw_rl.status.readable_turns import readable_reactions
from openclaw_rl.status.undo_report import (
    blocked_text,
    count_taken_out,
    describe_plan,
    policy_label,
    retraining_state,
)
from openclaw_rl.store import exchanges
from openclaw_rl.store.acts import (
    Act,
    ActKind,
    acts_after,
    details_of_act,
    get_act,
    newest_acts,
)
from openclaw_rl.store.lessons import cards
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lineage import policies, policy_names
from openclaw_rl.train.undo import UndoPlan, plan_undos

SHOWN_TURNS = 30
_SHOWN_LESSONS = 100
_OFFERED_LESSONS = 10
_SHOWN_RECEIPTS = 10
_LATER_ACTS = 50
_HOUR = 3600.0
_PERIODS = ((1, "The last hour"), (24, "The last 24 hours"), (24 * 7, "The last 7 days"))


def collect_take_back(request: ViewRequest) -> Mapping[str, Any]:
    selection = _read_form(request)
    data: dict[str, Any] = {
        "selection": selection,
        "problem": "",
        "turns": [],
        "hidden_turns": 0,
        "lessons": [],
        "hidden_lessons": 0,
        "plans": [],
        "selected": 0,
        "scope_words": scope_words,
    }
    if selection.is_empty:
        return {**data, **_choices(request)}
    try:
        selected = selection.find_turns(request.conn)
    except OpenClawError as error:
        return {**data, "problem": str(error)}
    data |= {
        "selected": len(selected),
        "turns": _turn_rows(request.conn, selected[-SHOWN_TURNS:][::-1]),
        "hidden_turns": max(0, len(selected) - SHOWN_TURNS),
        **_lessons_of(request.conn, selected),
    }
    try:
        plans = plan_undos(request.conn, selected)
    except OpenClawError as error:
        return {**data, "problem": str(error)}
    return {**data, "plans": [_plan_data(plan, selected) for plan in plans]}


def _read_form(request: ViewRequest) -> UndoSelection:
    """Return the selection; a time of the form is one of the browser's clock."""
    day = request.text("when")
    if not day:
        return read_selection(request)
    try:
        moment = datetime.fromisoformat(day).replace(tzinfo=request.zone)
        return UndoSelection(since=moment.timestamp())
    except (ValueError, OverflowError):
        raise NotFound(f"{day[:40]!r} is no time: expected one such as 2026-03-01T12:00") from None


def _choices(request: ViewRequest) -> Mapping[str, Any]:
    """Return what can be chosen, and what was taken back before."""
    state = retraining_state(request.conn, request.now)
    return {
        "periods": [(request.now - hours * _HOUR, title) for hours, title in _PERIODS],
        "known_lessons": cards.newest_cards(
            request.conn, states=tuple(LessonState), limit=_OFFERED_LESSONS
        ),
        "receipts": list(newest_acts(request.conn, _SHOWN_RECEIPTS, ActKind.UNDO)),
        "left": state.left,
    }


def _turn_rows(conn: Connection, ids: Sequence[str]) -> list[dict[str, Any]]:
    read = exchanges.get_readable(conn, ids)
    reactions = readable_reactions(conn, ids)
    rows = []
    for id_ in ids:
        exchange = read.get(id_)
        reaction = reactions.get(id_)
        rows.append(
            {
                "id": id_,
                "asked": "" if exchange is None else asked_words(exchange.request),
                "at": None if exchange is None else exchange.request.admitted_at,
                "reaction": "" if reaction is None else reaction_words(reaction),
            }
        )
    return rows


def _lessons_of(conn: Connection, selected: Sequence[str]) -> dict[str, Any]:
    """Return the lessons with these turns as evidence, each with whether it is all its evidence."""
    shown = cards.cards_of_turns(conn, selected, _SHOWN_LESSONS)
    evidence = cards.count_evidence(conn, selected)
    rows = [(card, card.turns <= evidence.get(card.lesson.id, 0)) for card in shown]
    return {"lessons": rows, "hidden_lessons": len(evidence) - len(shown)}


def _plan_data(plan: UndoPlan, selected: Sequence[str]) -> dict[str, Any]:
    return {
        "lines": describe_plan(plan, selected),
        "taken_out": count_taken_out(plan, selected),
        "undone": len(plan.undone_versions),
        "safe": plan.safe,
        "batches": len(plan.work.sizes),
    }


def collect_receipt(request: ViewRequest) -> Mapping[str, Any]:
    id_ = request.text("act")
    act = get_act(request.conn, id_)
    if act is None or act.kind is not ActKind.UNDO:
        raise NotFound(f"nothing was taken back under {id_[:60]!r}")
    details = details_of_act(request.conn, id_) or {"turns": [], "plans": []}
    selected = details["turns"]
    names = [plan["name"] for plan in details["plans"]]
    total = sum(plan["batches"] for plan in details["plans"])
    state = retraining_state(request.conn, request.now, names)
    left = min(state.left, total)
    return {
        "act": act,
        "plans": [{**plan, "label": policy_label(plan["name"])} for plan in details["plans"]],
        "selected": len(selected),
        "turns": _turn_rows(request.conn, selected[-SHOWN_TURNS:][::-1]),
        "hidden_turns": max(0, len(selected) - SHOWN_TURNS),
        "total": total,
        "done": total - left,
        "left": left,
        "later": _find_later(request.conn, act, names) if total else None,
        "blocked": blocked_text(state) if left else "",
        "answers": _answering_versions(request.conn, names),
    }


def _find_later(conn: Connection, act: Act, names: Sequence[str]) -> Act | None:
    """Return the next act that took versions of one of these policies back, and so took over what was left."""
    for later in acts_after(conn, act.id, ActKind.UNDO, _LATER_ACTS):
        details = details_of_act(conn, later.id) or {"plans": []}
        for plan in details["plans"]:
            if plan["undone"] and plan["name"] in names:
                return later
    return None


def _answering_versions(conn: Connection, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return (label of the policy, version that answers)."""
    heads = policy_names.read_heads(conn)
    default = policy_names.DEFAULT_NAME
    return [(policy_label(name), heads[name]) for name in names or [default] if name in heads] or [
        ("", policies.head(conn).version)
    ]


VIEWS: Sequence[View] = (
    View(path="/ui/take-back", template="take_back.html", collect=collect_take_back),
    View(path="/ui/take-back/receipt", template="take_back_receipt.html", collect=collect_receipt),
)
