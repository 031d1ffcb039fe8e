"""State of the system now: work that waits and why, how content people are with each version, newest lessons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.settings.load import Config
from openclaw_rl.status.health import training_queue_length
from openclaw_rl.status.sentences import WAITS, count_of
from openclaw_rl.store import turns
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.newest import newest_lessons
from openclaw_rl.store.lineage import policies, policy_marks
from openclaw_rl.store.lineage.trained_turns import count_uses
from openclaw_rl.store.lineage.version_stats import ScoreCount, newest_scores
from openclaw_rl.types import Policy

COUNTED_TURNS = 5000
"""Newest turns whose scores are counted by version."""
MAX_SHOWN = 5
"""Newest lessons and versions."""
PEOPLE = "people's own scores"
JUDGES = "verdicts of judges"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWork:
    """Work that waits. `since`: when the first of it began to wait, if that is known."""

    text: str
    since: float | None = None


def waiting_work(
    config: Config, conn: Connection, rows: Sequence[Mapping[str, Any]]
) -> list[WaitingWork]:
    """Return what waits and why. `rows`: of the workers."""
    waiting = []
    unanswered = turns.count_served(conn)
    if unanswered:
        text = f"{count_of(unanswered, 'reply', 'replies')} without a reaction so far"
        waiting.append(WaitingWork(text=text))
    unjudged, since = turns.count_unjudged(conn)
    if unjudged:
        text = f"{count_of(unjudged, 'reaction')} without a verdict so far"
        waiting.append(WaitingWork(text=text, since=since))
    trainable = training_queue_length(config, conn)
    if trainable:
        text = f"{count_of(trainable, 'verdict')} for the next training steps"
        waiting.append(WaitingWork(text=text))
    for row in rows:
        for wait in row["waits"]:
            waiting.append(WaitingWork(text=f"{row['name']} waits for {WAITS[wait]}"))
    frozen = policy_marks.frozen_since(conn)
    if frozen is not None:
        waiting.append(WaitingWork(text="Training is frozen", since=frozen))
    return waiting


def satisfaction_data(conn: Connection) -> dict[str, Any]:
    """Return the share of +1 by version with its interval, of people's own scores and of verdicts, as plain JSON.

    `x`: the versions; a series has None for a version without such scores.
    """
    counts = newest_scores(conn, COUNTED_TURNS)
    versions = sorted({count.version for count in counts})
    series = []
    for label, is_explicit in ((PEOPLE, True), (JUDGES, False)):
        by_version = {
            count.version: _share(count) for count in counts if count.is_explicit is is_explicit
        }
        if by_version:
            rows = [by_version.get(version, _NO_SHARE) for version in versions]
            columns = {name: [row[name] for row in rows] for name in _NO_SHARE}
            series.append({"label": label} | columns)
    return {"label": "version", "x": versions, "series": series, "range": [0, 1]}


_NO_SHARE: Mapping[str, float | None] = dict.fromkeys(("values", "low", "high", "of"))


def _share(count: ScoreCount) -> Mapping[str, float | None]:
    low, high = wilson_interval(count.good, count.scored)
    share = count.good / count.scored
    return {"values": share, "low": low, "high": high, "of": count.scored}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestLearned:
    """Newest lessons and versions, newest first. `used`: number of turns by version."""

    lessons: Sequence[Lesson]
    versions: Sequence[Policy]
    used: Mapping[int, int]


def newest_learned(conn: Connection) -> NewestLearned:
    """Return the newest lessons, and the newest versions besides the base."""
    last = policies.next_version(conn) - 1
    numbers = range(max(1, last - MAX_SHOWN + 1), last + 1)
    versions = policies.get_many(conn, numbers)
    return NewestLearned(
        lessons=newest_lessons(conn, MAX_SHOWN),
        versions=versions[::-1],
        used=count_uses(conn, numbers),
    )
