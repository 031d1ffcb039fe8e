"""The sentences on what was noted of a conversation, in the chat of the terminal and on the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.status.readable_turns import readable_verdicts
from openclaw_rl.status.understanding import is_understood
from openclaw_rl.status.withdrawn_lessons import withdrawal_text
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope
from openclaw_rl.store.lineage.trained_turns import (
    live_versions_of,
    practised_among,
    uses_of_versions,
)
from openclaw_rl.types import Verdict

NOT_UNDERSTOOD = "the judge made nothing of that"


class LearningSource(Enum):
    """What a version was trained on, as seen from one conversation."""

    CONVERSATION = auto()
    OTHERS = auto()
    PRACTICE = auto()
    NOTHING = auto()


_LEARNED = {
    LearningSource.CONVERSATION: "it learned from you",
    LearningSource.OTHERS: "it learned from other conversations",
    LearningSource.PRACTICE: "it practised what was said before",
}
_MOODS = {1: "good", -1: "not good", 0: "neither good nor bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatNote:
    """One thing that was noted.

    `turn`: the reply that a verdict is about; "" for a lesson or version. `unclear_turn`: the reply to which the
    reaction was not understood; "" otherwise.
    """

    key: str
    text: str
    turn: str = ""
    unclear_turn: str = ""


def says_something(verdict: Verdict) -> bool:
    """Return whether a verdict is worth a line: a reaction that says nothing of the reply is not."""
    return verdict.reason_code is not ReasonCode.NO_EVIDENCE or bool(verdict.hints)


def verdict_text(score: int | None, hints: Sequence[str]) -> str:
    mood = _MOODS.get(score or 0, "")
    opinion = "understood as a wish" if score is None else f"verdict on that turn: {mood}"
    return opinion + (f" (hint: {hints[0]})" if hints else "")


def lesson_text(lesson: Lesson, *, is_learned: bool) -> str:
    """Return the line for a lesson that was noted or learned."""
    if is_learned:
        return f"learned: {lesson.text}"
    is_of_conversation = lesson.scope_kind is LessonScope.SESSION
    noted = "noted for this conversation" if is_of_conversation else "noted"
    return f"{noted}: {lesson.text}"


def withdrawn_text(lesson: Lesson, withdrawal: Mapping[str, Any] | None) -> str:
    """Return the line for a lesson that was withdrawn. `withdrawal`: the fields of a `Withdrawal`."""
    place = "left the prompts"
    if lesson.is_pinned:
        place = "stays in prompts, because it is pinned, but is not learned"
    return f"{place}: {lesson.text} ({withdrawal_text(withdrawal)})"


def restored_text(lesson: Lesson) -> str:
    return f"in prompts again: {lesson.text}"


def learning_source(conn: Connection, version: int, reply_ids: Collection[str]) -> LearningSource:
    """Return what a version was trained on. `reply_ids`: of the conversation in which it is asked."""
    turns = {turn for _, turn in uses_of_versions(conn, [version])}
    if not turns.isdisjoint(reply_ids):
        return LearningSource.CONVERSATION
    if not turns:
        return LearningSource.NOTHING
    practised = practised_among(conn, turns)
    return LearningSource.PRACTICE if practised == turns else LearningSource.OTHERS


def live_text(version: int, source: LearningSource) -> str:
    """Return the line for a version that is served now."""
    reason = _LEARNED.get(source)
    return f"version {version} is live" + (f": {reason}" if reason else "")


def notes_on_turns(conn: Connection, ids: Sequence[str]) -> list[ChatNote]:
    """Return what was noted of these turns: verdicts in their order, then lessons, then versions."""
    notes = []
    verdicts = readable_verdicts(conn, ids)
    for turn in ids:
        verdict = verdicts.get(turn)
        if verdict is None or not says_something(verdict):
            continue
        if is_understood(verdict):
            text = verdict_text(verdict.score, verdict.hints)
            notes.append(ChatNote(key=f"verdict-{turn}", text=text, turn=turn))
        else:
            note = ChatNote(
                key=f"verdict-{turn}", text=NOT_UNDERSTOOD, turn=turn, unclear_turn=turn
            )
            notes.append(note)
    for lesson in lessons.lessons_of_turns(conn, ids):
        notes.append(ChatNote(key=f"lesson-{lesson.id}", text=_state_text(lesson)))
    source = LearningSource.CONVERSATION
    for version in live_versions_of(conn, ids):
        notes.append(ChatNote(key=f"version-{version}", text=live_text(version, source)))
    return notes


def _state_text(lesson: Lesson) -> str:
    if lesson.state is LessonState.WITHDRAWN:
        withdrawal = None if lesson.withdrawal is None else asdict(lesson.withdrawal)
        return withdrawn_text(lesson, withdrawal)
    return lesson_text(lesson, is_learned=lesson.state is LessonState.LEARNED)
