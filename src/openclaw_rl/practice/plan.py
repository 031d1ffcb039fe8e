"""Choose the lessons that are practised now, and those that are in the teacher's prompt beside them."""

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
"""A lesson is practised if its weight is more than this times that of a lesson that it superseded."""
CLEAR_MAJORITY = 2.0
"""A lesson is practised if its weight is more than this times that of what others who share the weights want instead.
"""
REMEASURED_VERSIONS = 8
"""Versions after which the divergence of a learned lesson is measured again, by one step of practice. Steps on single
turns make the weights forget it."""
NOTED_LESSONS = 3
"""Lessons in a status note."""
NOTED_CHARS = 60
"""Characters of each lesson in a status note."""
_TOLERANCE = 1e-3
"""Relative tolerance of weights, which fall as lessons age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticePlan:
    """`waiting`: lessons that are not learned; `targets`: those to practise; `beside`: ids that the teacher follows."""

    waiting: Sequence[Lesson]
    targets: Sequence[Lesson]
    beside: frozenset[str]


def quote_lessons(noted: Sequence[Lesson]) -> str:
    """Return the texts of lessons for a status note: the first ones, each of them cut."""
    quoted = ", ".join(
        f'"{cut_text(lesson.text, NOTED_CHARS)}"' for lesson in noted[:NOTED_LESSONS]
    )
    if len(noted) > NOTED_LESSONS:
        quoted += f" and {len(noted) - NOTED_LESSONS} more"
    return quoted


def plan_practice(
    conn: Connection, head: Policy, now: float, *, is_alone: bool = True
) -> PracticePlan:
    """Return the plan of the next round. A contested lesson is neither practised nor in the teacher's prompt.

    `is_alone`: whether the policy answers one person alone. Else a lesson that is not shared stays in its prompts.
    """
    active = lessons.list_lessons(conn, policy=head.name, states=[LessonState.ACTIVE])
    learned = lessons.list_lessons(conn, policy=head.name, states=[LessonState.LEARNED])
    settled = _settled_lessons(conn, active, learned, now)
    if not is_alone:
        settled = _shared(settled)
        learned = _shared(learned)
        active = _shared(active)
    beside = frozenset(lesson.id for lesson in (*settled, *learned))
    waiting = _practised(active)
    targets = _practised(settled)
    if targets:
        return PracticePlan(waiting=waiting, targets=targets, beside=beside)
    lineage = policies.lineage(conn, head.version)
    due = [lesson for lesson in learned if _is_due(conn, lesson, lineage)]
    return PracticePlan(waiting=waiting or due, targets=due, beside=beside)


def _shared(some: Sequence[Lesson]) -> list[Lesson]:
    return [lesson for lesson in some if lesson.is_shared]


def _practised(some: Sequence[Lesson]) -> list[Lesson]:
    return [lesson for lesson in some if lesson.is_practised]


def _settled_lessons(
    conn: Connection, active: Sequence[Lesson], learned: Sequence[Lesson], now: float
) -> list[Lesson]:
    """Return the active lessons that are neither contested nor outweighed by another one in force."""
    in_force = [*active, *learned]
    settled = []
    for lesson in active:
        if _is_contested(conn, lesson, now):
            continue
        if not _is_outweighed(lesson, in_force, now):
            settled.append(lesson)
    return settled


def _is_contested(conn: Connection, lesson: Lesson, now: float) -> bool:
    """Return whether a lesson that it superseded still has nearly its weight.

    The prompt follows the newest word at once. The weights wait for more words, as single ones may be mistaken.
    """
    if lesson.is_pinned:
        return False
    strongest = 0.0
    for rival in lessons.superseded_lessons(conn, lesson.id):
        if rival.is_practised:
            strongest = max(strongest, rival.weight_at(now))
    return lesson.weight_at(now) <= SETTLED_FACTOR * strongest * (1 + _TOLERANCE)


def _is_outweighed(lesson: Lesson, in_force: Sequence[Lesson], now: float) -> bool:
    """Return whether others who share the weights want something else, unless they are clearly fewer."""
    if not lesson.subject or lesson.is_pinned:
        return False
    rivals = [other for other in in_force if _is_rival(lesson, other)]
    agreed = sum(rival.weight_at(now) for rival in rivals if rival.topic == lesson.topic)
    opposed = sum(rival.weight_at(now) for rival in rivals if rival.topic != lesson.topic)
    return opposed > 0 and agreed <= CLEAR_MAJORITY * opposed * (1 + _TOLERANCE)


def _is_rival(lesson: Lesson, other: Lesson) -> bool:
    """Return whether a lesson of the same API key and agent is about the same subject."""
    if not other.is_practised or other.subject != lesson.subject:
        return False
    agent, _ = lesson.owner
    other_agent, _ = other.owner
    return (other.key, other_agent) == (lesson.key, agent)


def _is_due(conn: Connection, lesson: Lesson, lineage: Sequence[int]) -> bool:
    """Return whether the divergence of a learned lesson is measured again. `lineage`: newest first.

    It is when it was measured many versions ago, or when the person has said the lesson again since then, about a reply
    of the time since it was learned. One of the versions since has to be trained on people's turns: measurements make
    versions, too, and those of many users would cause one another without end.
    """
    measured = practice_turns.measured_versions(conn, lesson.id, lineage)
    if not measured:
        return False
    newest = measured[-1]
    is_old = lineage.index(newest) >= REMEASURED_VERSIONS
    if not is_old and not practice_turns.is_said_again(conn, lesson):
        return False
    (policy,) = policies.get_many(conn, {newest})
    return bool(practice_turns.steps_on_people(conn, lesson.policy, since=policy.created_at))
