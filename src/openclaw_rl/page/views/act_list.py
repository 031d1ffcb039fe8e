"""The view of the acts of the owner: what was changed by hand, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from openclaw_rl.common.printable import cut_text
from openclaw_rl.page.view import ViewRequest
from openclaw_rl.status.conversations.turn_words import questions_of_turns
from openclaw_rl.store.acts import Act, ActKind, newest_acts
from openclaw_rl.store.lessons.cards import lesson_texts

ACTS_A_PAGE = 50
_TARGET_CHARS = 80
_LESSON_ACTS = frozenset(
    {
        ActKind.EDIT_LESSON,
        ActKind.PIN_LESSON,
        ActKind.UNPIN_LESSON,
        ActKind.SHARE_LESSON,
        ActKind.FORGET_LESSON,
    }
)
_VERSION_ACTS = frozenset(
    {ActKind.ROLL_BACK, ActKind.PROMOTE, ActKind.PIN_VERSION, ActKind.UNPIN_VERSION}
)
_TURN_ACTS = frozenset({ActKind.SCORE, ActKind.RETRACT_SCORE})
_OTHER_TARGETS = {
    ActKind.UNDO: "replies that were chosen",
    ActKind.FREEZE: "training",
    ActKind.UNFREEZE: "training",
    ActKind.SIGN_OUT: "all browsers",
}


def collect_acts(request: ViewRequest) -> Mapping[str, Any]:
    """Return one page of the acts of the owner, newest first, each with what it was done to."""
    before = request.integer("before")
    listed = list(newest_acts(request.conn, ACTS_A_PAGE + 1, before=before))
    shown = listed[:ACTS_A_PAGE]
    lessons = lesson_texts(request.conn, _targets(shown, _LESSON_ACTS))
    questions = questions_of_turns(request.conn, _targets(shown, _TURN_ACTS))
    rows = []
    for act in shown:
        rows.append(
            {
                "act": act,
                "target": _target_words(act, lessons, questions),
                "link": _act_link(act, lessons),
            }
        )
    return {
        "acts": rows,
        "is_first": before is None,
        "next": shown[-1].seq if len(listed) > ACTS_A_PAGE else None,
    }


def _targets(shown: Sequence[Act], kinds: frozenset[ActKind]) -> list[str]:
    return list(dict.fromkeys(act.target for act in shown if act.kind in kinds))


def _target_words(act: Act, lessons: Mapping[str, str], questions: Mapping[str, str]) -> str:
    """Return what an act was done to, as a person would name it."""
    if act.kind in _VERSION_ACTS:
        return f"version {act.target}"
    if act.kind in _LESSON_ACTS:
        text = lessons.get(act.target)
        return "a lesson that was forgotten" if text is None else _quoted(text)
    if act.kind in _TURN_ACTS:
        asked = questions.get(act.target, "")
        return f"the reply to {_quoted(asked)}" if asked else "a reply"
    return _OTHER_TARGETS[act.kind]


def _quoted(text: str) -> str:
    return f"“{cut_text(text, _TARGET_CHARS)}”"


def _act_link(act: Act, lessons: Mapping[str, str]) -> str:
    """Return the address that shows what an act was done to; "" if that does not exist any more."""
    if act.kind is ActKind.UNDO:
        return f"/ui/take-back/receipt?act={quote(act.id)}"
    if act.kind in _LESSON_ACTS:
        return f"/ui/learned/{quote(act.target)}" if act.target in lessons else ""
    if act.kind in _VERSION_ACTS:
        return f"/ui/versions/{quote(act.target)}"
    return f"/ui/turns/{quote(act.target, safe='')}" if act.kind in _TURN_ACTS else ""
