"""The act that takes turns back, and what a person has chosen for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.undo import PLAN_CHANGED, plan_key, take_back
from openclaw_rl.page.view import ActPlan, ActRequest, ActResult, InvalidForm, PageAct, ViewRequest
from openclaw_rl.status.undo_report import count_text, describe_plan
from openclaw_rl.store import sessions
from openclaw_rl.train.undo import UndoPlan, check_safe_files, plan_undos, select_turns

PATH = "/ui/acts/take-back"
RECEIPT_PATH = "/ui/take-back/receipt"
MAX_LISTED_TURNS = 2000
"""Turns that a form names; a larger selection is made again at the click, up to the newest turn of the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoSelection:
    """Turns that a person has chosen: by themselves, by a conversation, by a lesson, or since a time.

    `conversation`: any turn of it, as sessions of several API keys may have one name. `until`: the number of the newest
    turn that is selected.
    """

    turns: tuple[str, ...] = ()
    conversation: str = ""
    lesson: str = ""
    since: float | None = None
    until: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == UndoSelection()

    @property
    def query(self) -> str:
        """The selection as the query of an address."""
        pairs = [("turn", turn) for turn in self.turns]
        pairs += [("conversation", self.conversation)] if self.conversation else []
        pairs += [("lesson", self.lesson)] if self.lesson else []
        pairs += [("since", str(self.since))] if self.since is not None else []
        return urlencode(pairs)

    def find_turns(self, conn: Connection) -> list[str]:
        """Return the turns, oldest first. Raises `OpenClawError` if a part of the selection fits no turn."""
        selected = select_turns(conn, ids=self.turns, since=self.since, lesson=self.lesson or None)
        of_conversation = self._turns_of_conversation(conn)
        return sessions.sort_turns(conn, {*selected, *of_conversation}, until=self.until)

    def _turns_of_conversation(self, conn: Connection) -> list[str]:
        if not self.conversation:
            return []
        places = sessions.sessions_of_turns(conn, [self.conversation])
        if not places:
            raise OpenClawError("there is no such conversation, or it was erased")
        return sessions.turns_of_session(conn, places[0])

    def fixed(self, conn: Connection, selected: Sequence[str]) -> UndoSelection:
        """Return a selection of these turns alone, which later turns do not change."""
        if len(selected) <= MAX_LISTED_TURNS:
            return UndoSelection(turns=tuple(selected))
        return replace(self, until=sessions.newest_turn_number(conn))

    def to_field(self) -> str:
        """Return the selection as a field of a form."""
        values = {
            "turns": self.turns,
            "conversation": self.conversation,
            "lesson": self.lesson,
            "since": self.since,
            "until": self.until,
        }
        return json.dumps(values)


def selection_from_field(text: str) -> UndoSelection:
    """Return the selection that `to_field` wrote. Raises `InvalidForm`."""
    try:
        values: Mapping[str, Any] = json.loads(text)
        since = values["since"]
        until = values["until"]
        return UndoSelection(
            turns=tuple(str(turn) for turn in values["turns"]),
            conversation=str(values["conversation"]),
            lesson=str(values["lesson"]),
            since=None if since is None else float(since),
            until=None if until is None else int(until),
        )
    except (ValueError, KeyError, TypeError):
        raise InvalidForm("the form does not say what to take back. Load the page again") from None


def read_selection(request: ViewRequest) -> UndoSelection:
    """Return what the address selects; `since` in seconds since the epoch. Raises `OpenClawError`."""
    since = request.text("since")
    try:
        at = float(since) if since else None
    except ValueError:
        raise OpenClawError(
            f"since in the address is {since[:40]!r}: expected seconds since the epoch"
        ) from None
    return UndoSelection(
        turns=tuple(request.texts("turn")),
        conversation=request.text("conversation"),
        lesson=request.text("lesson"),
        since=at,
    )


def plan_digest(selected: Sequence[str], plans: Sequence[UndoPlan]) -> str:
    """Return a digest, so that only that is taken back and rolled back which the person has seen."""
    agreed = json.dumps([list(selected), [plan_key(plan) for plan in plans]])
    return hashlib.sha256(agreed.encode()).hexdigest()


def plan_take_back(request: ViewRequest) -> ActPlan:
    selection = read_selection(request)
    selected = selection.find_turns(request.conn)
    if not selected:
        raise OpenClawError("nothing is selected. Choose what to take back")
    plans = plan_undos(request.conn, selected)
    details = [line for plan in plans for line in describe_plan(plan, selected)]
    return ActPlan(
        title=f"Take back {count_text(len(selected), 'reply', 'replies')}?",
        details=[*details, "They are never trained on again."],
        button="Take it back",
        is_dangerous=True,
        fields={
            "selection": selection.fixed(request.conn, selected).to_field(),
            "digest": plan_digest(selected, plans),
        },
    )


def apply_take_back(request: ActRequest) -> ActResult:
    selection = selection_from_field(request.text("selection"))
    with request.store.read() as conn:
        selected = selection.find_turns(conn)
    agreed = check_safe_files(request.store, selected)
    if not selected or plan_digest(selected, agreed) != request.text("digest"):
        raise OpenClawError(PLAN_CHANGED)
    outcome = take_back(
        request.store,
        agreed,
        selected,
        model=request.config.model.name,
        origin=request.origin,
        is_exact=True,
    )
    return ActResult(
        message=outcome,
        follow=f"{RECEIPT_PATH}?act={request.act_id}",
        follow_text="See the receipt",
    )


ACT = PageAct(path=PATH, plan=plan_take_back, apply=apply_take_back)
