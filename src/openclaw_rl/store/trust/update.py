"""Updates trust and set-aside evidence from the scores in the store: for all, and for single people."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from openclaw_rl.store.person_scores import Person
from openclaw_rl.store.trust import evidence, judge_trust
from openclaw_rl.store.trust.judge_trust import JudgeTrust, read_trust
from openclaw_rl.store.trust.score_pairs import read_own_pairs, read_pairs

MAX_REVISED = 500
"""People whose earlier decisions are revised at once."""


def update_trust(
    conn: Connection, min_kappa: float, now: float, people: Collection[Person] | None = None
) -> JudgeTrust:
    """Store whose verdicts are trained on, for whom, and whose evidence is set aside; return the former.

    `now`: seconds since the epoch. `people`: who have new scores; None: everyone among the newest scores. With a
    `min_kappa` of -1 all judges are trusted for all people.
    """
    before = read_trust(conn)
    pairs_by_judge = read_pairs(conn)
    judge_trust.update_common(conn, min_kappa, pairs_by_judge)
    evidence.update_floods(conn, now)
    trust = read_trust(conn)
    scored = {pair.person for pairs in pairs_by_judge.values() for pair in pairs}
    affected = scored if people is None else set(people)
    if people is None or trust.common != before.common:
        affected |= _people_with_decisions(conn, before)
    for person in sorted(affected):
        own = read_own_pairs(conn, person)
        judge_trust.update_own(conn, min_kappa, person, own)
        evidence.update_contradiction(conn, person, own, trust, people=len(scored), now=now)
    return read_trust(conn)


def _people_with_decisions(conn: Connection, trust: JudgeTrust) -> set[Person]:
    """Return people with earlier decisions, which depend on the judges that are trusted in common.

    Of more than `MAX_REVISED`, the others are revised with their next score.
    """
    people = {one.person for one in evidence.read_set_aside(conn)}
    people |= {person for person, _ in trust.own}
    return set(sorted(people)[:MAX_REVISED])
