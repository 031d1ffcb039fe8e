"""Pairs of scores, by a judge and by the person, of turns that both scored."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, select, tuple_

from openclaw_rl.store import schema as t
from openclaw_rl.store.person_scores import Person

MAX_SCORED_TURNS = 1000
"""Feedback that is read at once, newest first."""
MAX_PERSON_TURNS = 100
"""Newest scored turns of a person that are compared."""
LEAST_SHARE = 10
"""Pairs of a person, or of a key, that always count in the common estimate."""
# A person with more feedback than `MAX_SCORED_TURNS` does not hide that of the others: it is read without him.
_MAX_READS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePair:
    """The scores of one turn: -1, 0 or +1 by the judge, -1 or +1 by the person."""

    turn: str
    person: Person
    judge: int
    user: int


def read_pairs(conn: Connection) -> dict[str, list[ScorePair]]:
    """Return the pairs of each judge and signal, newest feedback first; at most `MAX_PERSON_TURNS` of a person.

    Of several verdicts by the same side, the one on the newest revision of the reaction counts. Abstaining does not
    count as a score. Feedback that was taken back does not count.
    """
    return _read_scores(conn, _scored_turns(conn))


def read_own_pairs(conn: Connection, person: Person) -> dict[str, list[ScorePair]]:
    """Return the newest pairs of one person, as `read_pairs` does."""
    rows = conn.execute(
        _feedback()
        .where(t.feedback.c.scope == person[0], t.exchanges.c.scope == person[0])
        .where(t.exchanges.c.user == person[1])
        .order_by(t.feedback.c.seq.desc())
        .limit(MAX_PERSON_TURNS)
    )
    return _read_scores(conn, {row.target: person for row in rows})


def _read_scores(conn: Connection, people: Mapping[str, Person]) -> dict[str, list[ScorePair]]:
    """Return the pairs of these turns. `people`: whose they are, newest turns first."""
    user_scores: dict[str, int] = {}
    # Judge -> turn -> score.
    judge_scores: dict[str, dict[str, int]] = {}
    for row in _verdict_scores(conn, list(people)):
        scores = user_scores if row.explicit else judge_scores.setdefault(row.judge, {})
        scores[row.turn] = row.score
    pairs_by_judge = {}
    for judge, scores in judge_scores.items():
        both = [turn for turn in people if turn in scores and turn in user_scores]
        if both:
            pairs_by_judge[judge] = [
                ScorePair(
                    turn=turn, person=people[turn], judge=scores[turn], user=user_scores[turn]
                )
                for turn in both
            ]
    return pairs_by_judge


def _verdict_scores(conn: Connection, turns: Sequence[str]) -> Iterator[Any]:
    """Yield the scores of all verdicts on these turns, of each turn the newest last."""
    v = t.verdicts.c
    query = select(v.turn, v.judge, v.explicit, v.score).order_by(v.revision, v.at)
    for first in range(0, len(turns), MAX_SCORED_TURNS):
        part = turns[first : first + MAX_SCORED_TURNS]
        yield from conn.execute(query.where(v.turn.in_(part), v.score.is_not(None)))


def _scored_turns(conn: Connection) -> dict[str, Person]:
    """Return the newest scored turns, newest first, and whose they are."""
    people: dict[str, Person] = {}
    counts: Counter[Person] = Counter()
    read_whole = set[Person]()
    for _ in range(_MAX_READS):
        rows = _newest_feedback(conn, read_whole)
        for row in rows:
            person = (row.scope, row.user)
            if row.target not in people and counts[person] < MAX_PERSON_TURNS:
                people[row.target] = person
                counts[person] += 1
        full = {person for person, count in counts.items() if count >= MAX_PERSON_TURNS}
        if len(rows) < MAX_SCORED_TURNS or full <= read_whole:
            break
        read_whole = full
    return people


def _newest_feedback(conn: Connection, without: set[Person]) -> Sequence[Any]:
    query = _feedback()
    if without:
        e = t.exchanges.c
        query = query.where(tuple_(e.scope, e.user).not_in(sorted(without)))
    return conn.execute(query.order_by(t.feedback.c.seq.desc()).limit(MAX_SCORED_TURNS)).all()


def _feedback() -> Select[Any]:
    f = t.feedback.c
    e = t.exchanges.c
    query = select(f.target, e.scope, e.user).join(t.exchanges, e.id == f.target)
    return query.where(f.score.is_not(None), f.revision.is_not(None), f.retracted_at.is_(None))


def common_pairs(pairs: Sequence[ScorePair]) -> list[ScorePair]:
    """Return those of the pairs that count in the common estimate, in their order.

    Of a person, at most as many as the person in the middle has, and of a key the same among the keys: `LEAST_SHARE` at
    least. Pairs of one person alone all count.
    """
    of_people = _capped(pairs, lambda pair: pair.person)
    return _capped(of_people, lambda pair: pair.person[0])


def _capped(pairs: Sequence[ScorePair], group: Callable[[ScorePair], Any]) -> list[ScorePair]:
    counts = Counter(group(pair) for pair in pairs)
    if not counts:
        return []
    cap = max(LEAST_SHARE, statistics.median_low(counts.values()))
    used: Counter[Any] = Counter()
    out = []
    for pair in pairs:
        if used[group(pair)] < cap:
            used[group(pair)] += 1
            out.append(pair)
    return out


def by_person(pairs: Sequence[ScorePair]) -> Mapping[Person, list[ScorePair]]:
    """Return the pairs of each person, in their order."""
    out: dict[Person, list[ScorePair]] = {}
    for pair in pairs:
        out.setdefault(pair.person, []).append(pair)
    return out


def as_scores(pairs: Sequence[ScorePair]) -> list[tuple[int, int]]:
    """Return the scores of pairs, by judge and person."""
    return [(pair.judge, pair.user) for pair in pairs]
