"""The budget of practice: its hours, its steps for each lesson, refused steps, and seconds of each hour."""

from __future__ import annotations

from datetime import datetime
from statistics import fmean

from sqlalchemy import Connection

from openclaw_rl.common.clock_hours import is_within_hours
from openclaw_rl.practice.plan import PracticePlan
from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.store.lessons import practice_turns
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Policy

WEIGHT_FOR_ALL_STEPS = 3
"""Weight of a lesson from which all steps are taken: one word may be a mistake, which is not learned to the end."""
MAX_REFUSALS = 3
"""Refused steps in a row after which practice waits for new words."""
STALLED_STEPS = 8
"""Steps after which practice waits for new words if the policy has come no nearer to the lesson.

Further steps would only move it away from right answers."""
COMPARED_STEPS = 4
"""How many of the newest and of the first divergences are compared for it."""


def waiting_reason(
    conn: Connection, settings: PracticeConfig, plan: PracticePlan, head: Policy, now: float
) -> str:
    """Return what the practice of a plan's targets waits for; empty if it has budget."""
    hours = settings.hours
    if hours is not None and not is_within_hours(hours, datetime.fromtimestamp(now).time()):
        return f"practice.hours ({hours})"
    return _missing_words(conn, settings, plan, head) or _missing_seconds(conn, settings, now)


def _missing_words(
    conn: Connection, settings: PracticeConfig, plan: PracticePlan, head: Policy
) -> str:
    """Return why new words of the person are needed; empty if they are not.

    The divergence of a learned lesson is measured whatever was practised: that takes one step now and then.
    """
    ids = [lesson.id for lesson in plan.targets]
    last_word_at = max(lesson.reinforced_at for lesson in plan.targets)
    steps_on_people = practice_turns.steps_on_people(conn, head.name, since=last_word_at)
    is_measured = all(lesson.state is LessonState.LEARNED for lesson in plan.targets)
    weight = max(1.0, *(lesson.weight for lesson in plan.targets))
    share = min(1.0, weight / WEIGHT_FOR_ALL_STEPS)
    # Each step on people's turns allows half as many more as the one before.
    allowed = share * settings.step_limit * (2.0 - 0.5 ** len(steps_on_people))
    taken = practice_turns.count_turns(conn, ids, since=last_word_at) / settings.replies
    if not is_measured and taken >= allowed:
        limit = f"{share:.0%} of practice.step_limit {settings.step_limit} are taken"
        if steps_on_people:
            limit += f", and those that {len(steps_on_people)} steps on the person's turns allowed"
        return f"new words of the person: {limit}"
    since = max([last_word_at, *steps_on_people])
    if practice_turns.is_refused(conn, ids, since=since, times=MAX_REFUSALS):
        return f"new words of the person: {MAX_REFUSALS} steps were refused"
    if not is_measured and _is_stalled(conn, plan, head, since):
        return "new words of the person: the steps since the last ones brought the weights no nearer to the lesson"
    return ""


def _is_stalled(conn: Connection, plan: PracticePlan, head: Policy, since: float) -> bool:
    """Return whether the divergence of each target has not fallen in the steps since then."""
    lineage = policies.lineage(conn, head.version)
    for lesson in plan.targets:
        divergences = practice_turns.newest_divergences(conn, lesson.id, lineage, since=since)
        if len(divergences) < STALLED_STEPS:
            return False
        if fmean(divergences[-COMPARED_STEPS:]) < fmean(divergences[:COMPARED_STEPS]):
            return False
    return True


def _missing_seconds(conn: Connection, settings: PracticeConfig, now: float) -> str:
    limit = settings.seconds_per_hour
    spent = practice_turns.seconds_of_last_hour(conn, now)
    if limit >= practice_turns.HOUR_SECONDS or spent < limit:
        return ""
    return f"its time: it took {spent:.0f} s in the last hour, and practice.seconds_per_hour is {limit:g}"
