"""State of the system now: work that waits and why, how content people are with each version, newest lessons."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.settings.load import Config
from openclaw_rl.status.health import training_queue_length
from openclaw_rl.status.sentences import WAITS, count_of
from openclaw_rl.store import turns
from openclaw_rl.store.lessons.cards import LessonCard, newest_cards
from openclaw_rl.store.lessons.lessons import LessonState
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

    `x`: the versions; a series has None for a version without such scores. `colour`: number of its colour, which does
    not depend on the other series.
    """
    counts = newest_scores(conn, COUNTED_TURNS)
    versions = sorted({count.version for count in counts})
    series = []
    for colour, label, is_explicit in ((1, PEOPLE, True), (2, JUDGES, False)):
        by_version = {
            count.version: _share(count) for count in counts if count.is_explicit is is_explicit
        }
        if by_version:
            rows = [by_version.get(version, _NO_SHARE) for version in versions]
            columns = {name: [_finite(row[name]) for row in rows] for name in _NO_SHARE}
            series.append({"label": label, "colour": colour} | columns)
    return {"label": "version", "x": versions, "series": series, "range": [0, 1]}


MIN_COMPARED = 10
"""Replies with a score that the newest versions need before they are compared with the base."""


def compare_with_base(satisfaction: Mapping[str, Any], lineage: Collection[int]) -> str:
    """Return a sentence on the newest versions beside the base; empty if no trained version has a score.

    `satisfaction`: of `satisfaction_data`; `lineage`: the versions of which the one in use consists. Of the two sources
    of scores, people's own are compared if they suffice, or else the verdicts of judges.
    """
    sentences = []
    for series in satisfaction["series"]:
        rows = list(zip(satisfaction["x"], series["values"], series["of"], strict=True))
        base = _pool_scores([row for row in rows if row[0] == 0], MIN_COMPARED)
        newest = _pool_scores([row for row in rows if row[0] in lineage and row[0]], MIN_COMPARED)
        if newest.of:
            sentences.append((min(base.of, newest.of), _comparison_sentence(base, newest)))
    enough = [text for least, text in sentences if least >= MIN_COMPARED]
    rest = [text for _, text in sentences[-1:]]
    return (enough or rest or [""])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PooledScores:
    """Scores of some versions together. `versions`: newest first."""

    versions: Sequence[int] = ()
    good: int = 0
    of: int = 0


def _pool_scores(
    rows: Sequence[tuple[int, float | None, int | None]], enough: int
) -> _PooledScores:
    """Return the scores of the newest versions, as many as are needed for `enough` scores."""
    versions = []
    good = 0
    of = 0
    for version, share, count in reversed(rows):
        if share is not None and count and of < enough:
            versions.append(version)
            good += round(share * count)
            of += count
    return _PooledScores(versions=versions, good=good, of=of)


def _comparison_sentence(base: _PooledScores, newest: _PooledScores) -> str:
    """Return whose replies people liked more; intervals that overlap do not say it."""
    first = newest.versions[-1]
    last = newest.versions[0]
    name = f"version {last}" if first == last else f"versions {first} to {last}"
    if not base.of:
        return f"People liked {newest.good} of {newest.of} replies of {name}. The base has no score to compare with."
    counts = f"People liked {base.good} of {base.of} replies of the base, and {newest.good} of {newest.of} of {name}"
    base_low, base_high = wilson_interval(base.good, base.of)
    low, high = wilson_interval(newest.good, newest.of)
    if low > base_high:
        return f"{counts}: better than the base."
    if high < base_low:
        return f"{counts}: worse than the base."
    return f"{counts}: not enough reactions yet to say which is better."


_NO_SHARE: Mapping[str, float | None] = dict.fromkeys(("values", "low", "high", "of"))


def _finite(value: float | None) -> float | None:
    """Return a number that JSON can hold; None in place of any other."""
    return value if value is not None and math.isfinite(value) else None


def _share(count: ScoreCount) -> Mapping[str, float | None]:
    low, high = wilson_interval(count.good, count.scored)
    share = count.good / count.scored
    return {"values": share, "low": low, "high": high, "of": count.scored}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestLearned:
    """Newest lessons and versions, newest first. `used`: number of turns by version."""

    lessons: Sequence[LessonCard]
    versions: Sequence[Policy]
    used: Mapping[int, int]


def newest_learned(conn: Connection) -> NewestLearned:
    """Return the lessons said last that no other one contradicts, and the newest versions besides the base."""
    states = [state for state in LessonState if state is not LessonState.SUPERSEDED]
    last = policies.next_version(conn) - 1
    numbers = range(max(1, last - MAX_SHOWN + 1), last + 1)
    versions = policies.get_many(conn, numbers)
    return NewestLearned(
        lessons=newest_cards(conn, states=states, limit=MAX_SHOWN),
        versions=versions[::-1],
        used=count_uses(conn, numbers),
    )
