"""Lessons: what people said about replies in words, with the turns that are their evidence.

`judge/lessons/` makes them from verdicts, `serve` adds their text to prompts, and the trainer decides from the
divergence between the two prompts when the weights have learned them. `policy` names the policy that learns a lesson
(`policy_names`). `key` is the id of the API key whose conversations gave it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import permutations
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.conflicts import conflicts_among
from openclaw_rl.store.lessons.examinations import (
    Withdrawal,
    withdrawal_from_json,
    withdrawal_to_json,
)
from openclaw_rl.store.lessons.scopes import (
    PRACTISED_SCOPES,
    LessonScope,
    PromptContext,
    in_scope,
    is_readable_scope,
    scope_owner,
    scope_rank,
)
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.store.rows import from_row, to_row
from openclaw_rl.types import Kind

log = logging.getLogger("openclaw_rl.store")

MADE_EVENT = "lesson.made"
"""Event: a turn, `data["turn"]`, put a lesson into force."""
SUPERSEDED_EVENT = "lesson.superseded"
"""Event: a lesson that was in force is so no longer, because of another one."""
MAX_LESSON_CHARS = 1200
"""A longer text makes no lesson, as it would stand in every prompt."""
HALF_LIFE_SECONDS = 30 * 86400.0
"""Time in which the weight of a lesson halves."""
MAX_WEIGHT = 4.0
"""Most weight that evidence adds up to, so that a taste that changes is followed after a few words."""
REPEATED_TURNS = 8
"""A wish counts as repeated if it was said before within so many turns of the same conversation."""

_OLDEST_FIRST: tuple[ColumnElement[Any], ...] = (
    t.lessons.c.made_at,
    literal_column("lessons.rowid"),
)


class LessonState(StrEnum):
    """Active: not yet in the weights. Learned: in the weights. Superseded: another lesson contradicts it.

    Withdrawn: answers are not right with it in the prompt. It stands in none, unless it is pinned, and never teaches.
    """

    ACTIVE = "active"
    LEARNED = "learned"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One lesson. `weight`: as of `reinforced_at`; times are seconds since the epoch."""

    id: str
    policy: str = DEFAULT_NAME
    key: str = ""
    text: str
    # "subject/value", e.g. "length/short": lessons with another value contradict it; "": not known.
    topic: str = ""
    scope_kind: LessonScope = LessonScope.AGENT
    scope_value: str = ""
    weight: float = 1.0
    state: LessonState = LessonState.ACTIVE
    superseded_by: str | None = None
    is_pinned: bool = False
    made_at: float
    reinforced_at: float
    learned_version: int | None = None  # the version since which it is in the weights
    # Plain prompt against the prompt with the lesson, as measured last.
    divergence: float | None = None
    withdrawal: Withdrawal | None = None  # of a withdrawn lesson
    # Whether it may reach others than the person who said it: other users of the key, and weights that others share.
    is_shared: bool = True

    def weight_at(self, now: float) -> float:
        """Return the aged weight."""
        age = max(0.0, now - self.reinforced_at)
        return float(self.weight * 0.5 ** (age / HALF_LIFE_SECONDS))

    @property
    def subject(self) -> str:
        """Subject of the topic, e.g. "length"; "" if it is not known."""
        return self.topic.partition("/")[0]

    @property
    def owner(self) -> tuple[str, str]:
        """The (agent, user) whose prompts it is for, "" for any user; of a session or question, two empty names."""
        return scope_owner(self.scope_kind, self.scope_value)

    @property
    def is_practised(self) -> bool:
        """Whether it is to get into the weights."""
        return self.scope_kind in PRACTISED_SCOPES

    @property
    def is_examined(self) -> bool:
        """Whether it is for other questions than one, on which it must not cost correctness."""
        return self.scope_kind is not LessonScope.QUESTION

    def covers(self, other: Lesson) -> bool:
        """Return whether this lesson is for every prompt that the other one, of the same policy and key, is for."""
        is_same_scope = (self.scope_kind, self.scope_value) == (other.scope_kind, other.scope_value)
        is_of_agent = (
            self.scope_kind is LessonScope.AGENT
            and self.is_shared
            and bool(other.owner[1])
            and self.owner[0] == other.owner[0]
        )
        return is_same_scope or is_of_agent


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonTurn:
    """One turn that is evidence of a lesson. `weight`: how much it counts, in (0, 1].

    `words`: what the person said, which supports the lesson; "" for evidence of an older version.
    """

    lesson: str
    turn: str
    weight: float
    at: float
    words: str = ""


_select_for_context = (
    select(t.lessons)
    .where(
        t.lessons.c.policy == bindparam("policy"), t.lessons.c.key == bindparam("key"), in_scope()
    )
    .order_by(*_OLDEST_FIRST)
)


_select_any_of_owner: Select[Any] = (
    select(literal_column("1"))
    .select_from(t.lessons)
    .where(t.lessons.c.policy == bindparam("policy"), t.lessons.c.key == bindparam("key"))
    .limit(literal_column("1"))
)


def has_lessons(store: Store, policy: str, key: str) -> bool:
    """Return whether there is any lesson of a policy and a key, in any state. Takes some microseconds."""
    return store.has_row(_select_any_of_owner, {"policy": policy, "key": key})


def new_lesson_id() -> str:
    """Return a new id: eight hexadecimal digits."""
    return secrets.token_hex(4)


def add_lesson(conn: Connection, lesson: Lesson) -> None:
    """Store a new lesson."""
    conn.execute(
        insert(t.lessons).values(
            to_row(t.lessons, lesson, withdrawal=withdrawal_to_json(lesson.withdrawal))
        )
    )


def get(conn: Connection, id: str) -> Lesson | None:
    return next(iter(_lessons(conn, select(t.lessons).where(t.lessons.c.id == id))), None)


def list_lessons(
    conn: Connection,
    *,
    policy: str | None = None,
    states: Collection[LessonState] = tuple(LessonState),
) -> list[Lesson]:
    """Return the lessons in these states, oldest first. `policy`: only those of this policy."""
    query = select(t.lessons).where(t.lessons.c.state.in_([state.value for state in states]))
    if policy is not None:
        query = query.where(t.lessons.c.policy == policy)
    return _lessons(conn, query.order_by(*_OLDEST_FIRST))


def lessons_for(
    conn: Connection,
    context: PromptContext,
    *,
    states: Collection[LessonState] = (LessonState.ACTIVE,),
) -> list[Lesson]:
    """Return the lessons for a prompt in these states, oldest first.

    Of several that contradict each other, or are about the same, the one with the narrower scope counts, unless another
    one alone is pinned.
    """
    lessons = _lessons(conn, _select_for_context, context.bound_values())
    about = []
    for lesson in lessons:
        if context.is_about(lesson.scope_kind, lesson.scope_value, is_shared=lesson.is_shared):
            about.append(lesson)
    overruled = _overruled(conn, about)
    return [lesson for lesson in about if lesson.state in states and lesson.id not in overruled]


def _overruled(conn: Connection, lessons: Sequence[Lesson]) -> set[str]:
    """Return the ids of those that a lesson of another scope contradicts, or whose subject it decides."""

    in_force = [lesson for lesson in lessons if lesson.state is not LessonState.SUPERSEDED]
    conflicts = conflicts_among(conn, [lesson.id for lesson in in_force])
    wishes = [lesson for lesson in in_force if lesson.scope_kind is not LessonScope.QUESTION]
    return {
        lesson.id
        for lesson, other in permutations(wishes, 2)
        if _is_conflict(lesson, other, conflicts) and _yields(lesson, other)
    }


def _is_conflict(lesson: Lesson, other: Lesson, conflicts: Collection[frozenset[str]]) -> bool:
    """Return whether two lessons contradict each other, or decide the same subject."""
    is_same = lesson.subject != "" and lesson.subject == other.subject
    return is_same or frozenset((lesson.id, other.id)) in conflicts


def _yields(lesson: Lesson, other: Lesson) -> bool:
    """Return whether a lesson yields to one of another scope: to a pinned, a narrower or a newer one, in this order."""
    scope = (lesson.scope_kind, lesson.scope_value)
    return scope != (other.scope_kind, other.scope_value) and _strength(lesson) < _strength(other)


def _strength(lesson: Lesson) -> tuple[bool, int, float]:
    return lesson.is_pinned, scope_rank(lesson.scope_kind), lesson.reinforced_at


def lessons_in_scope(
    conn: Connection, policy: str, key: str, kind: LessonScope, value: str
) -> list[Lesson]:
    """Return the lessons of exactly this scope, oldest first, in any state."""
    c = t.lessons.c
    here = (c.policy == policy, c.key == key, c.scope_kind == kind.value, c.scope_value == value)
    return _lessons(conn, select(t.lessons).where(*here).order_by(*_OLDEST_FIRST))


def superseded_lessons(conn: Connection, id: str) -> list[Lesson]:
    """Return the lessons that this one superseded, oldest first."""
    c = t.lessons.c
    return _lessons(conn, select(t.lessons).where(c.superseded_by == id).order_by(c.made_at, c.id))


def lessons_of_turns(conn: Connection, turns: Collection[str]) -> list[Lesson]:
    """Return the lessons that have one of these turns as evidence, oldest first."""
    # Not `exists`, which would read the list of turns again for every lesson.
    evidence = select(t.lesson_turns.c.lesson).where(t.lesson_turns.c.turn.in_(turns))
    query = select(t.lessons).where(t.lessons.c.id.in_(evidence))
    return _lessons(conn, query.order_by(*_OLDEST_FIRST))


def turns_of_lesson(conn: Connection, id: str) -> list[LessonTurn]:
    """Return the evidence of a lesson, oldest first."""
    c = t.lesson_turns.c
    rows = conn.execute(select(t.lesson_turns).where(c.lesson == id).order_by(c.at, c.turn))
    return [from_row(LessonTurn, row) for row in rows]


def count_repeats(conn: Connection, id: str, turn: str) -> int:
    """Return how many of the last few turns before this one in its conversation are evidence of the lesson as well."""
    this_turn = t.turns.alias()
    earlier = t.turns.c
    before = (
        select(earlier.id)
        .join(
            this_turn,
            and_(
                this_turn.c.scope == earlier.scope,
                this_turn.c.session == earlier.session,
                this_turn.c.seq > earlier.seq,
            ),
        )
        .where(this_turn.c.id == turn, t.equals_literal(earlier.kind, Kind.MAIN))
        .order_by(earlier.seq.desc())
        .limit(REPEATED_TURNS)
    )
    c = t.lesson_turns.c
    return conn.execute(select(func.count()).where(c.lesson == id, c.turn.in_(before))).scalar_one()


def reinforce(
    conn: Connection, id: str, turn: str, *, weight: float = 1.0, at: float, words: str = ""
) -> bool:
    """Add a turn to the evidence of a lesson, and its weight to the aged one. False if it was evidence already.

    `words`: what the person said in it.
    """
    evidence = LessonTurn(lesson=id, turn=turn, weight=weight, at=at, words=words)
    added = conn.execute(
        insert(t.lesson_turns).values(to_row(t.lesson_turns, evidence)).on_conflict_do_nothing()
    )
    lesson = get(conn, id)
    if not added.rowcount or lesson is None:
        return False
    new = min(MAX_WEIGHT, lesson.weight_at(at) + weight)
    _update(conn, id, weight=new, reinforced_at=max(at, lesson.reinforced_at))
    return True


def set_weight(conn: Connection, id: str, weight: float, *, at: float) -> None:
    """Set the weight as of this time, from which it ages."""
    _update(conn, id, weight=weight, reinforced_at=at)


def renew(conn: Connection, id: str, *, at: float) -> None:
    """Date the aged weight of a lesson to this time. Its practice has as many steps again as after a new word."""
    lesson = get(conn, id)
    if lesson is not None:
        set_weight(conn, id, lesson.weight_at(at), at=max(at, lesson.reinforced_at))


def supersede(conn: Connection, id: str, by: str) -> None:
    """Take a lesson out of force because another one contradicts it."""
    _update(
        conn,
        id,
        state=LessonState.SUPERSEDED.value,
        superseded_by=by,
        learned_version=None,
        withdrawal=None,
    )


def mark_learned(conn: Connection, id: str, version: int, *, at: float | None = None) -> None:
    """Record that the weights follow an active lesson since this version, with an event "lesson.learned".

    `at`: seconds since the epoch, by default now. A lesson in another state is left as it is.
    """
    is_active = t.lessons.c.state == LessonState.ACTIVE.value
    new = {"state": LessonState.LEARNED.value, "learned_version": version}
    if conn.execute(update(t.lessons).where(t.lessons.c.id == id, is_active).values(new)).rowcount:
        events.append(
            conn, "lesson.learned", id, {"version": version}, time.time() if at is None else at
        )


def unlearn_versions(conn: Connection, versions: Collection[int], *, at: float) -> None:
    """Put the lessons into force that the weights follow only since one of these versions.

    They are practised as if they had been said again at this time.
    """
    learned = t.lessons.c.learned_version.in_(versions)
    for id_ in list(conn.execute(select(t.lessons.c.id).where(learned)).scalars()):
        renew(conn, id_, at=at)
    conn.execute(
        update(t.lessons)
        .where(learned)
        .values(state=LessonState.ACTIVE.value, learned_version=None)
    )


def mark_active(conn: Connection, id: str) -> None:
    """Put a lesson into force, as one that the weights do not follow by themselves."""
    _update(
        conn,
        id,
        state=LessonState.ACTIVE.value,
        superseded_by=None,
        learned_version=None,
        withdrawal=None,
    )


def record_divergence(conn: Connection, id: str, version: int, value: float, *, at: float) -> None:
    """Store the divergence that was measured with this version: mean KL in nats per token."""
    row = {"lesson": id, "version": version, "value": value, "at": at}
    conn.execute(insert(t.lesson_divergences).values(row).prefix_with("OR REPLACE"))
    _update(conn, id, divergence=value)


def divergences_of(conn: Connection, id: str, *, since: float = 0.0) -> list[tuple[int, float]]:
    """Return (version, divergence), oldest version first. `since`: only those measured after it."""
    c = t.lesson_divergences.c
    rows = conn.execute(
        select(c.version, c.value).where(c.lesson == id, c.at > since).order_by(c.version)
    )
    return [(row.version, row.value) for row in rows]


def edit_text(conn: Connection, id: str, text: str, *, topic: str = "", at: float) -> None:
    """Replace the text, and the topic if one is given: else the same wish stays the same lesson.

    The weights have not learned the text. It is practised like a lesson that was said again at this time. A withdrawn
    one is in force again until the new text is examined.
    """
    _update(conn, id, text=text, divergence=None, **({"topic": topic} if topic else {}))
    renew(conn, id, at=at)
    conn.execute(delete(t.lesson_divergences).where(t.lesson_divergences.c.lesson == id))
    is_settled = t.lessons.c.state.in_([LessonState.LEARNED.value, LessonState.WITHDRAWN.value])
    active = {"state": LessonState.ACTIVE.value, "learned_version": None, "withdrawal": None}
    conn.execute(update(t.lessons).where(t.lessons.c.id == id, is_settled).values(active))


def set_policy(conn: Connection, id: str, name: str) -> None:
    """Make this policy the one that learns a lesson, and whose prompts have it."""
    _update(conn, id, policy=name)


def share(conn: Connection, id: str) -> None:
    """Let a lesson reach others than the person who said it."""
    _update(conn, id, is_shared=1)


def set_pinned(conn: Connection, id: str, is_pinned: bool) -> None:
    """Pin or unpin a lesson. A pinned lesson is never superseded and stays in prompts after it is learned."""
    _update(conn, id, is_pinned=int(is_pinned))


def _lessons(
    conn: Connection, query: Select[tuple[object, ...]], values: Mapping[str, str] | None = None
) -> list[Lesson]:
    """Return the lessons of a query. A row that cannot be read is left out: else no prompt of its policy is built."""
    lessons = (read_lesson(row) for row in conn.execute(query, values))
    return [lesson for lesson in lessons if lesson is not None]


def read_lesson(row: Any) -> Lesson | None:
    """Return the lesson of a row; None if the row is damaged, which is logged."""
    texts = (row.policy, row.key, row.text, row.topic)
    numbers = (row.weight, row.made_at, row.reinforced_at, row.divergence or 0.0)
    readable = all(isinstance(text, str) for text in texts) and all(
        isinstance(number, float) for number in numbers
    )
    if (
        not readable
        or row.state not in tuple(LessonState)
        or not is_readable_scope(row.scope_kind, row.scope_value)
    ):
        _report_damage(row.id)
        return None
    kind = LessonScope(row.scope_kind)
    state = LessonState(row.state)
    try:
        withdrawal = withdrawal_from_json(row.withdrawal)
    except (ValueError, TypeError, LookupError):
        _report_damage(row.id)
        return None
    return from_row(
        Lesson,
        row,
        scope_kind=kind,
        state=state,
        is_pinned=bool(row.is_pinned),
        is_shared=bool(row.is_shared),
        withdrawal=withdrawal,
    )


@cache
def _report_damage(id: str) -> None:
    """Log the damage of a lesson once, and not for each prompt."""
    log.warning("lesson %s is left out: its row in the store is damaged", id)


def _update(conn: Connection, id: str, **values: object) -> None:
    conn.execute(update(t.lessons).where(t.lessons.c.id == id).values(values))
