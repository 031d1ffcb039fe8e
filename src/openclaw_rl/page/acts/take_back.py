"""The act that takes turns back, and what a person has chosen for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.undo import take_back
from openclaw_rl.page.view import ActPlan, ActRequest, ActResult, InvalidForm, PageAct, ViewRequest
from openclaw_rl.status.undo_report import count_text, describe_plan
from openclaw_rl.train.undo import check_safe_files, plan_undos, select_turns

PATH = "/ui/acts/take-back"
RECEIPT_PATH = "/ui/take-back/receipt"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoSelection:
    """Turns that a person has chosen: by themselves, by a session, by a lesson, or since a time."""

    turns: tuple[str, ...] = ()
    session: str = ""
    lesson: str = ""
    since: float | None = None

    @property
    def is_empty(self) -> bool:
        return self == UndoSelection()

    @property
    def query(self) -> str:
        """The selection as the query of an address."""
        pairs = [("turn", turn) for turn in self.turns]
        pairs += [("session", self.session)] if self.session else []
        pairs += [("lesson", self.lesson)] if self.lesson else []
        pairs += [("since", str(self.since))] if self.since is not None else []
        return urlencode(pairs)

    def find_turns(self, conn: Connection) -> list[str]:
        """Return the turns, oldest first. Raises `OpenClawError` if a part of the selection fits no turn."""
        return select_turns(
            conn,
            ids=self.turns,
            names=[self.session] if self.session else (),
            since=self.since,
            lesson=self.lesson or None,
        )

    def to_field(self) -> str:
        """Return the selection as a field of a form."""
        values = {
            "turns": self.turns,
            "session": self.session,
            "lesson": self.lesson,
            "since": self.since,
        }
        return json.dumps(values)


def selection_from_field(text: str) -> UndoSelection:
    """Return the selection that `to_field` wrote. Raises `InvalidForm`."""
    try:
        values: Mapping[str, Any] = json.loads(text)
        since = values["since"]
        return UndoSelection(
            turns=tuple(str(turn) for turn in values["turns"]),
            session=str(values["session"]),
            lesson=str(values["lesson"]),
            since=None if since is None else float(since),
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
        session=request.text("session"),
        lesson=request.text("lesson"),
        since=at,
    )


def turns_digest(selected: Sequence[str]) -> str:
    """Return a digest, so that only turns are taken back that the person has seen in the plan."""
    return hashlib.sha256("\n".join(selected).encode(errors="surrogatepass")).hexdigest()


def plan_take_back(request: ViewRequest) -> ActPlan:
    selection = read_selection(request)
    selected = selection.find_turns(request.conn)
    if not selected:
        raise OpenClawError("nothing is selected. Choose what to take back")
    plans = plan_undos(request.conn, selected)
    details = [line for plan in plans for line in describe_plan(plan)]
    return ActPlan(
        title=f"Take back {count_text(len(selected), 'reply', 'replies')}?",
        details=[*details, "They are never trained on again."],
        button="Take it back",
        is_dangerous=True,
        fields={"selection": selection.to_field(), "digest": turns_digest(selected)},
    )


def apply_take_back(request: ActRequest) -> ActResult:
    selection = selection_from_field(request.text("selection"))
    with request.store.read() as conn:
        selected = selection.find_turns(conn)
    if not selected or turns_digest(selected) != request.text("digest"):
        raise OpenClawError(
            "other replies are selected now than the plan has said, so nothing was taken back. Look at the plan again"
        )
    agreed = check_safe_files(request.store, selected)
    outcome = take_back(
        request.store,
        agreed,
        selected,
        model=request.config.model.name,
        origin=request.origin,
    )
    return ActResult(
        message=outcome,
        follow=f"{RECEIPT_PATH}?act={request.act_id}",
        follow_text="See the receipt",
    )


ACT = PageAct(path=PATH, plan=plan_take_back, apply=apply_take_back)
