"""Labels that people gave themselves: scores, corrections and undos, with the reactions to which they belong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store import schema as t
from openclaw_rl.types import JudgeInput

Person = tuple[str, str]
"""Scope of the key, and user; an empty user is everyone who uses the key without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonScore:
    """A reaction that its person has labelled. `score`: +1 or -1; None: taken back, so no evidence."""

    turn: str
    score: int | None


def person_of(conn: Connection, turn: str) -> Person | None:
    """Return the person who had the turn; None for an unknown turn."""
    query = select(t.exchanges.c.scope, t.exchanges.c.user).where(t.exchanges.c.id == turn)
    row = conn.execute(query).one_or_none()
    return None if row is None else (row.scope, row.user)


def scores_by_person(conn: Connection, limit: int) -> dict[Person, list[PersonScore]]:
    """Return the newest `limit` scores of each person, oldest first.

    The newest score of a turn counts. A correction without a score is -1, and a turn that was undone is no evidence.
    """
    query = (
        select(
            t.feedback.c.target,
            t.feedback.c.score,
            t.feedback.c.correction,
            t.exchanges.c.scope,
            t.exchanges.c.user,
        )
        .join(t.exchanges, t.exchanges.c.id == t.feedback.c.target)
        .where(t.feedback.c.revision.is_not(None))
        .order_by(t.feedback.c.seq)
    )
    scores: dict[str, int] = {}
    people: dict[str, Person] = {}
    for row in conn.execute(query):
        people[row.target] = (row.scope, row.user)
        if row.score is not None:
            scores[row.target] = row.score
        elif row.correction:
            scores.setdefault(row.target, -1)
    labels: dict[str, int | None] = {turn: score for turn, score in scores.items() if score}
    for turn, person in _undone_turns(conn).items():
        people[turn] = person
        labels.setdefault(turn, None)
    by_person: dict[Person, list[PersonScore]] = {}
    for turn, score in labels.items():
        rows = by_person.setdefault(people[turn], [])
        rows.append(PersonScore(turn=turn, score=score))
    return {person: rows[-limit:] for person, rows in by_person.items()}


def _undone_turns(conn: Connection) -> dict[str, Person]:
    query = (
        select(t.turns.c.id, t.exchanges.c.scope, t.exchanges.c.user)
        .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(t.turns.c.cause == ReasonCode.TAKEN_BACK.value)
        .order_by(t.turns.c.seq)
    )
    return {row.id: (row.scope, row.user) for row in conn.execute(query)}


def last_score(conn: Connection) -> int:
    """Return the number of the newest feedback; it grows with each."""
    return int(conn.execute(select(func.coalesce(func.max(t.feedback.c.seq), 0))).scalar_one())


def judge_inputs(conn: Connection, ids: Sequence[str]) -> Mapping[str, JudgeInput]:
    """Return what a judge reads of turns; those that are erased or damaged are left out."""
    readable = exchanges.get_readable(conn, ids)
    reactions = turns.current_reactions(conn, ids)
    out = {}
    for id_, exchange in readable.items():
        if id_ in reactions and exchange.reply is not None:
            reaction = reactions[id_]
            out[id_] = JudgeInput(
                turn=id_,
                messages=exchange.request.messages,
                reply=exchange.reply.message,
                reaction=reaction,
            )
    return out
