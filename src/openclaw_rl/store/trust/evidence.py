"""People whose evidence is set aside in what is common to all: trends, baselines, held-out turns, rollbacks.

Their own turns are trained on as before, by their own scores. Nobody is set aside on a home of fewer than `MIN_PEOPLE`,
and nobody for contradicting a judge that the common estimate does not trust.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, insert, select

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.person_scores import Person
from openclaw_rl.store.trust import tables
from openclaw_rl.store.trust.judge_trust import JudgeTrust, training_kappa
from openclaw_rl.store.trust.people import count_replies
from openclaw_rl.store.trust.score_pairs import ScorePair, as_scores

MIN_PEOPLE = 3
"""People from which on one of them can stand out."""
MIN_SCORES = 12
"""Scores of a person, on turns that a judge scored too, from which on they are compared with it."""
MIN_OPPOSED = 4
MIN_OPPOSED_SHARE = 0.2
"""Of scores that are all the same, those that a judge contradicts: number and share."""
MIN_SIDE = 8
"""Scores before, and scores after a change of sides."""
MIN_CHANGE = 0.5
MIN_DEVIATIONS = 3.0
MAX_OTHER_SIDE = 0.4
"""Change of the share of scores that agree with the judge, the same in standard errors, and the smaller share."""
FLOOD_FACTOR = 5
"""Replies in a day, as a multiple of those of the person in the middle, from which on the rest counts as a flood."""
MIN_FLOOD = 100
"""Replies of a person in a day that are never a flood."""
# Seconds.
DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Evidence of a person that does not count in what is common. `part` of `whole` turns."""

    person: Person
    reason: Reason
    part: int
    whole: int

    @property
    def weight(self) -> float:
        """The weight that is left to each of the person's turns, from 0 to 1."""
        return 1.0 - self.part / self.whole if self.whole else 1.0


def find_contradiction(
    person: Person, pairs_by_judge: Mapping[str, Sequence[ScorePair]], trust: JudgeTrust
) -> SetAside | None:
    """Return that the evidence of a person is set aside for the scores that the person gave. Pure.

    `pairs_by_judge`: of that person. Only judges count that are trusted in common.
    """
    judged: dict[str, ScorePair] = {}
    for judge, pairs in sorted(pairs_by_judge.items()):
        if judge not in trust.common and not is_signal(judge):
            for pair in pairs:
                if pair.judge:
                    judged.setdefault(pair.turn, pair)
    reason = contradiction_of(list(judged.values()))
    if reason is None:
        return None
    return SetAside(person=person, reason=reason, part=len(judged), whole=len(judged))


def contradiction_of(pairs: Sequence[ScorePair]) -> Reason | None:
    """Return how a person's scores contradict those of a judge, or None. `pairs`: newest first, without abstentions."""
    if len(pairs) < MIN_SCORES:
        return None
    opposed = sum(pair.judge != pair.user for pair in pairs)
    figures = f"{opposed} of {len(pairs)} scores contradict the judge"
    change = _change_of_sides([pair.judge == pair.user for pair in reversed(pairs)])
    if change is not None:
        before, after = change
        detail = f"changes sides: {before:.0%} of the scores agreed with the judge, then {after:.0%}; {figures}"
        return Reason(ReasonCode.CHANGES_SIDES, detail)
    if len({pair.user for pair in pairs}) == 1:
        is_enough = opposed >= max(MIN_OPPOSED, MIN_OPPOSED_SHARE * len(pairs))
        return _one_sided(pairs[0].user, figures) if is_enough else None
    kappa = training_kappa(as_scores(pairs))
    if kappa is None or kappa.high >= 0:
        return None
    return Reason(ReasonCode.CONTRADICTS_JUDGE, f"{figures} (kappa {kappa.value:.2f})")


def _one_sided(score: int, figures: str) -> Reason:
    kind = "praises" if score > 0 else "blames"
    return Reason(ReasonCode.ONE_SIDED, f"{kind} every reply; {figures}")


def _change_of_sides(agreed: Sequence[bool]) -> tuple[float, float] | None:
    """Return the shares of scores that agreed before and after the largest change, if there is one; oldest first."""
    count = len(agreed)
    share = sum(agreed) / count
    largest = None
    most = MIN_DEVIATIONS
    for first in range(MIN_SIDE, count - MIN_SIDE + 1):
        before = sum(agreed[:first]) / first
        after = sum(agreed[first:]) / (count - first)
        error = math.sqrt(share * (1 - share) * (1 / first + 1 / (count - first)))
        is_other_side = min(before, after) <= MAX_OTHER_SIDE
        if is_other_side and abs(before - after) >= max(MIN_CHANGE, most * error):
            most = abs(before - after) / error
            largest = (before, after)
    return largest


def find_floods(replies: Mapping[Person, int]) -> list[SetAside]:
    """Return who asked for far more replies than the person in the middle, and how many are too many."""
    if len(replies) < MIN_PEOPLE:
        return []
    usual = max(MIN_FLOOD, FLOOD_FACTOR * statistics.median_low(replies.values()))
    out = []
    for person, count in replies.items():
        if count > usual:
            detail = f"{count} replies in a day; {usual} are {FLOOD_FACTOR} times what others ask for, or {MIN_FLOOD}"
            reason = Reason(ReasonCode.FLOODS, detail)
            out.append(SetAside(person=person, reason=reason, part=count - usual, whole=count))
    return out


def update_floods(conn: Connection, now: float) -> None:
    """Store who floods. `now`: seconds since the epoch."""
    a = tables.evidence_set_aside
    conn.execute(delete(a).where(a.c.code == ReasonCode.FLOODS.value))
    _save(conn, find_floods(count_replies(conn, now - DAY)), now)


def update_contradiction(
    conn: Connection,
    person: Person,
    pairs_by_judge: Mapping[str, Sequence[ScorePair]],
    trust: JudgeTrust,
    *,
    people: int,
    now: float,
) -> None:
    """Store whether the evidence of a person is set aside for the scores given.

    `pairs_by_judge`: of that person. `people`: who gave scores. `now`: seconds since the epoch.
    """
    a = tables.evidence_set_aside
    conn.execute(
        delete(a).where(
            a.c.scope == person[0], a.c.user == person[1], a.c.code != ReasonCode.FLOODS.value
        )
    )
    found = find_contradiction(person, pairs_by_judge, trust) if people >= MIN_PEOPLE else None
    _save(conn, [] if found is None else [found], now)


def _save(conn: Connection, found: Sequence[SetAside], now: float) -> None:
    rows = [
        {
            "scope": one.person[0],
            "user": one.person[1],
            "code": one.reason.code.value,
            "part": one.part,
            "whole": one.whole,
            "detail": one.reason.detail,
            "at": now,
        }
        for one in found
    ]
    if rows:
        conn.execute(insert(tables.evidence_set_aside), rows)


def read_set_aside(conn: Connection) -> list[SetAside]:
    """Return whose evidence is set aside, as it was last updated."""
    return _read_rows(conn, _all, {})


_a = tables.evidence_set_aside.c
_all = select(tables.evidence_set_aside).order_by(_a.scope, _a.user, _a.code)
_of_person = _all.where(_a.scope == bindparam("of_scope"), _a.user == bindparam("of_user"))
_floods = _all.where(_a.code == ReasonCode.FLOODS.value)
_any = select(_a.code).limit(1)


def _read_rows(conn: Connection, query: Select[Any], values: Mapping[str, str]) -> list[SetAside]:
    return [
        SetAside(
            person=(row.scope, row.user),
            reason=Reason(ReasonCode(row.code), row.detail),
            part=row.part,
            whole=row.whole,
        )
        for row in conn.execute(query, values)
    ]


def common_weights(conn: Connection, people: Collection[Person]) -> dict[Person, float]:
    """Return the weight of the evidence of each of these people in what is common, of those who weigh less than 1."""
    if not _is_any_set_aside(conn):
        return {}
    weights: dict[Person, float] = {}
    for person in people:
        for one in _read_rows(conn, _of_person, {"of_scope": person[0], "of_user": person[1]}):
            weights[person] = min(one.weight, weights.get(person, 1.0))
    return weights


def read_floods(conn: Connection) -> list[Person]:
    """Return who floods."""
    return [one.person for one in _read_rows(conn, _floods, {})]


def _is_any_set_aside(conn: Connection) -> bool:
    return conn.execute(_any).first() is not None


def is_common_condition(
    conn: Connection, scope: ColumnElement[str], user: ColumnElement[str]
) -> ColumnElement[bool] | None:
    """Return the condition that no evidence of a person is set aside, not even in part; None: that of all counts."""
    a = tables.evidence_set_aside.c
    if not _is_any_set_aside(conn):
        return None
    return ~select(a.code).where(a.scope == scope, a.user == user).exists()
