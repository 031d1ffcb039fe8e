"""The budget of practice: its hours, steps for each word, refused steps, and seconds of each hour."""

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

WORDS_FOR_ALL_STEPS = 3
"""Weight of a lesson from which all steps are taken: one word may be a mistake, which is not learned to the end."""
MAX_REFUSALS = 3
"""Refused steps in a row after which practice waits for new words."""
STALLED_STEPS, COMPARED_STEPS = 8, 4
"""Practice waits for new words if, after so many steps, the divergences of the newest ones are not below those of the
first ones. What the policy does not come nearer to only moves it away from right answers."""


def waiting_reason(conn: Connection, settings: PracticeConfig, plan: PracticePlan, head: Policy, now: float) -> str:
    """Return what the practice of a plan's targets waits for; empty if it has budget."""
    hours = settings.hours
    if hours is not None and not is_within_hours(hours, datetime.fromtimestamp(now).time()):
        return f"practice.hours ({hours})"
    return _missing_words(conn, settings, plan, head) or _missing_seconds(conn, settings, now)


def _missing_words(conn: Connection, settings: PracticeConfig, plan: PracticePlan, head: Policy) -> str:
    """Return why new words of the person are needed; empty if they are not.

    The divergence of a learned lesson is measured whatever was practised: that takes one step now and then.
    """
    ids = [lesson.id for lesson in plan.targets]
    last_word = max(lesson.reinforced_at for lesson in plan.targets)
    steps = practice_turns.steps_on_people(conn, head.name, since=last_word)
    is_measured = all(lesson.state is LessonState.LEARNED for lesson in plan.targets)
    words = max(1.0, *(lesson.weight for lesson in plan.targets))
    share = min(1.0, words / WORDS_FOR_ALL_STEPS)
    allowed = share * settings.step_limit * (2.0 - 0.5 ** len(steps))
    done = practice_turns.count_turns(conn, ids, since=last_word) / settings.replies
    if not is_measured and done >= allowed:
        limit = f"{share:.0%} of practice.step_limit {settings.step_limit} are taken"
        more = f", and those that {len(steps)} steps on the person's turns allowed" if steps else ""
        return f"new words of the person: {limit}{more}"
    if practice_turns.is_refused(conn, ids, since=max([last_word, *steps]), times=MAX_REFUSALS):
        return f"new words of the person: {MAX_REFUSALS} steps were refused"
    if not is_measured and _is_stalled(conn, plan, head, max([last_word, *steps])):
        return "new words of the person: the steps since the last ones brought the weights no nearer to the lesson"
    return ""


def _is_stalled(conn: Connection, plan: PracticePlan, head: Policy, since: float) -> bool:
    """Return whether the divergence of each target has not fallen in the steps since then."""
    line = policies.lineage(conn, head.version)
    for lesson in plan.targets:
        found = practice_turns.newest_divergences(conn, lesson.id, line, since=since)
        if len(found) < STALLED_STEPS or fmean(found[-COMPARED_STEPS:]) < fmean(found[:COMPARED_STEPS]):
            return False
    return True


def _missing_seconds(conn: Connection, settings: PracticeConfig, now: float) -> str:
    limit = settings.seconds_per_hour
    spent = practice_turns.seconds_of_last_hour(conn, now)
    if limit >= practice_turns.HOUR_SECONDS or spent < limit:
        return ""
    return f"its time: it took {spent:.0f} s in the last hour, and practice.seconds_per_hour is {limit:g}"
