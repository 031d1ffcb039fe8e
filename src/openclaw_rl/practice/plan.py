"""Choose the lessons that are practised now, and those that stand in the teacher's prompt beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from openclaw_rl.common.printable import cut_text
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Policy

SETTLED_FACTOR = 3.0
"""A lesson is practised if it weighs more than this times a lesson that it superseded: three words against one that
was often said."""
CLEAR_MAJORITY = 2.0
"""A lesson is practised if those who want it weigh more than this times those who share the weights and want another.
"""
REMEASURED_VERSIONS = 8
"""Versions after which the divergence of a learned lesson is measured again, by one step of practice. Steps on single
turns make the weights forget it."""
NOTED_LESSONS, NOTED_CHARS = 3, 60
"""Lessons in a status note, and characters of each."""
_TOLERANCE = 1e-3  # of weights, as lessons age


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticePlan:
    """`waiting`: lessons that are not learned; `targets`: those to practise; `beside`: ids that the teacher follows."""

    waiting: Sequence[Lesson]
    targets: Sequence[Lesson]
    beside: frozenset[str]


def quote_lessons(found: Sequence[Lesson]) -> str:
    """Return the texts of lessons for a status note: the first ones, each of them cut."""
    quoted = [f'"{cut_text(one.text, NOTED_CHARS)}"' for one in found[:NOTED_LESSONS]]
    return ", ".join(quoted) + (f" and {len(found) - NOTED_LESSONS} more" if len(found) > NOTED_LESSONS else "")


def plan_practice(conn: Connection, head: Policy, now: float) -> PracticePlan:
    """Plan the next round. A lesson that is contested is neither practised nor in the teacher's prompt."""
    active = lessons.list_lessons(conn, policy=head.name, states=[LessonState.ACTIVE])
    learned = lessons.list_lessons(conn, policy=head.name, states=[LessonState.LEARNED])
    in_force = [*active, *learned]
    settled = [
        lesson
        for lesson in active
        if not _is_contested(conn, lesson, now) and not _is_outweighed(lesson, in_force, now)
    ]
    waiting, targets = ([lesson for lesson in found if lesson.is_practised] for found in (active, settled))
    line = policies.lineage(conn, head.version)
    due = [] if targets else [lesson for lesson in learned if _is_due(conn, lesson, line)]
    beside = frozenset(lesson.id for lesson in (*settled, *learned))
    return PracticePlan(waiting=waiting or due, targets=targets or due, beside=beside)


def _is_contested(conn: Connection, lesson: Lesson, now: float) -> bool:
    """Return whether a lesson that it superseded still has nearly its weight.

    The prompt follows the newest word at once. The weights wait for more words, as single ones may be mistaken.
    """
    rivals = [rival for rival in lessons.superseded_lessons(conn, lesson.id) if rival.is_practised]
    strongest = max((rival.weight_at(now) for rival in rivals), default=0.0)
    return not lesson.is_pinned and lesson.weight_at(now) <= SETTLED_FACTOR * strongest * (1 + _TOLERANCE)


def _is_outweighed(lesson: Lesson, in_force: Sequence[Lesson], now: float) -> bool:
    """Return whether others who share the weights want something else, unless they are clearly fewer."""
    if not lesson.subject or lesson.is_pinned:
        return False
    place = lesson.key, lesson.owner[0]
    beside = [
        one
        for one in in_force
        if one.is_practised and one.subject == lesson.subject and (one.key, one.owner[0]) == place
    ]
    agreed = sum(one.weight_at(now) for one in beside if one.topic == lesson.topic)
    opposed = sum(one.weight_at(now) for one in beside if one.topic != lesson.topic)
    return opposed > 0 and agreed <= CLEAR_MAJORITY * opposed * (1 + _TOLERANCE)


def _is_due(conn: Connection, lesson: Lesson, line: Sequence[int]) -> bool:
    """Return whether the divergence of a learned lesson is measured again. `line`: newest first.

    It is when it was measured many versions ago, or when the person has said the lesson again since then, of a reply
    since it was learned. One of the versions since has to be trained on people's turns: measurements make versions,
    too, and those of many users would ask for one another for good.
    """
    measured = practice_turns.measured_versions(conn, lesson.id, line)
    if not measured:
        return False
    is_old = line.index(measured[-1]) >= REMEASURED_VERSIONS
    if not (is_old or practice_turns.is_said_again(conn, lesson)):
        return False
    (last,) = policies.get_many(conn, {measured[-1]})
    return bool(practice_turns.steps_on_people(conn, lesson.policy, since=last.created_at))
