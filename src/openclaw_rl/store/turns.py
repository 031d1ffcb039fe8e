"""Turns, their current reactions, and the verdicts on them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Text,
    TextClause,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.errors import DamagedRow
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import exchanges, turn_states
from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import BEHAVIOUR_JUDGE, observations_of
from openclaw_rl.store.page_tables import IS_DROPPED, IS_UNFIT, IS_UNLINKED, OF_PEOPLE
from openclaw_rl.store.rows import (
    from_row,
    reaction_from_row,
    to_json,
    to_row,
    turn_from_row,
    verdict_from_row,
    votes_from_row,
)
from openclaw_rl.types import (
    Feedback,
    FinishReason,
    JudgeInput,
    Kind,
    Reaction,
    Turn,
    TurnState,
    Verdict,
    Vote,
)

PRACTICE_JUDGE = "practice"
"""Judge of the turns of practice (`store/lessons/practice_turns.py`), which has no opinion of them."""
SCORE_SIGNAL = 1
HINT_SIGNAL = 2
"""Bits of a turn's `signal`: the training signals of its current verdict."""
EPISODE_SIGNAL = 4
"""`signal` of the turns of a complete group of episodes. Verdicts never set the `signal` of an episode's turn."""

_get = select(t.turns).where(t.turns.c.id == bindparam("id"))
_reaction = (
    select(t.reactions)
    .join(
        t.turns,
        (t.turns.c.id == t.reactions.c.turn) & (t.turns.c.revision == t.reactions.c.revision),
    )
    .where(t.turns.c.id.in_(bindparam("ids", expanding=True)))
)
_feedback = (
    select(t.feedback)
    .where(
        t.feedback.c.target.in_(bindparam("ids", expanding=True)),
        t.feedback.c.revision.is_not(None),
        t.feedback.c.retracted_at.is_(None),
    )
    .order_by(t.feedback.c.seq)
)
_closed = (
    select(t.turns.c.id)
    .where(t.equals_literal(t.turns.c.state, TurnState.CLOSED))
    .order_by(t.turns.c.seq)
    .limit(bindparam("limit"))
)
# A correction without a score does not take precedence over a judge's score.
_explicit_score = case((t.verdicts.c.score.is_not(None), t.verdicts.c.explicit), else_=0)
VERDICT_PRECEDENCE = (
    _explicit_score.desc(),
    t.verdicts.c.revision.desc(),
    t.verdicts.c.at.desc(),
    t.verdicts.c.judge,
)
_BY_JUDGES = (
    t.verdicts.c.explicit == 0,
    t.verdicts.c.judge.not_like(f"{BEHAVIOUR_JUDGE}%"),
    t.verdicts.c.judge != PRACTICE_JUDGE,
)
_verdict = (
    select(t.verdicts)
    .where(t.verdicts.c.turn == bindparam("turn"))
    .order_by(*VERDICT_PRECEDENCE)
    .limit(1)
)
_verdicts = (
    select(t.verdicts)
    .where(t.verdicts.c.turn.in_(bindparam("ids", expanding=True)))
    .order_by(*VERDICT_PRECEDENCE)
)
_select_revision = (
    select(t.turns.c.state, t.turns.c.revision, t.exchanges.c.finish_reason, t.exchanges.c.episode)
    .join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    .where(t.turns.c.id == bindparam("id"))
)
_insert_verdict = insert(t.verdicts).on_conflict_do_nothing()
_set_signal = (
    update(t.turns).where(t.turns.c.id == bindparam("turn")).values(signal=bindparam("new_signal"))
)
_set_untrainable = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("turn"))
    .values(
        untrainable=func.coalesce(t.turns.c.untrainable, bindparam("new_reason")),
        untrainable_code=func.coalesce(t.turns.c.untrainable_code, bindparam("new_code")),
    )
)


def get(conn: Connection, id: str) -> Turn | None:
    row = conn.execute(_get, {"id": id}).one_or_none()
    return None if row is None else turn_from_row(row)


def get_many(conn: Connection, ids: Sequence[str]) -> dict[str, Turn]:
    """Return the turns of `ids` that exist, by id."""
    rows = conn.execute(select(t.turns).where(t.turns.c.id.in_(list(ids))))
    return {row.id: turn_from_row(row) for row in rows}


def current_reaction(conn: Connection, turn_id: str) -> Reaction | None:
    """Return the current reaction: the highest revision, with all feedback that it includes."""
    return current_reactions(conn, [turn_id]).get(turn_id)


def current_reactions(conn: Connection, ids: Sequence[str]) -> dict[str, Reaction]:
    """Return `current_reaction` of those turns that have one, by turn."""
    feedback: dict[str, list[Feedback]] = {}
    for row in conn.execute(_feedback, {"ids": list(ids)}):
        feedback.setdefault(row.target, []).append(from_row(Feedback, row))
    rows = conn.execute(_reaction, {"ids": list(ids)})
    return {row.turn: reaction_from_row(row, feedback.get(row.turn, ())) for row in rows}


def current_verdict(conn: Connection, turn_id: str) -> Verdict | None:
    """Return the current verdict: explicit scores first, then the highest revision, then the newest."""
    row = conn.execute(_verdict, {"turn": turn_id}).one_or_none()
    return None if row is None else verdict_from_row(row)


def current_verdicts(conn: Connection, ids: Sequence[str]) -> dict[str, Verdict]:
    """Return `current_verdict` of those turns that have one, by turn."""
    verdicts: dict[str, Verdict] = {}
    for row in conn.execute(_verdicts, {"ids": list(ids)}):
        if row.turn not in verdicts:
            verdicts[row.turn] = verdict_from_row(row)
    return verdicts


def closed_turns(conn: Connection, limit: int) -> list[JudgeInput]:
    """Return turns whose current reaction has no verdict yet, oldest first. Raises `DamagedRow`."""
    ids = list(conn.execute(_closed, {"limit": limit}).scalars())
    if not ids:
        return []
    exchanges_by_id = exchanges.get_many(conn, ids)
    answers = current_reactions(conn, ids)
    observed = observations_of(conn, ids)
    out = []
    for id_ in ids:
        if id_ not in exchanges_by_id or id_ not in answers:
            raise DamagedRow(id_, "its request or its reaction is missing")
        request = exchanges_by_id[id_].request
        reply = exchanges_by_id[id_].reply
        assert reply is not None, f"turn {id_} was closed while its exchange is running"
        item = JudgeInput(
            turn=id_, messages=request.messages, reply=reply.message, reaction=answers[id_]
        )
        out.append(replace(item, observed=observed.get(id_, frozenset())))
    return out


def awaits_verdict(conn: Connection, turn_id: str, revision: int) -> bool:
    """Return whether the turn is CLOSED with this revision of its reaction. False if it was erased."""
    row = conn.execute(_select_revision, {"id": turn_id}).one_or_none()
    return row is not None and row.state == TurnState.CLOSED and row.revision == revision


def add_verdict(conn: Connection, verdict: Verdict) -> bool:
    """Store a verdict and set the turn to JUDGED, with an event "turn.judged". Idempotent.

    Returns False without a change if the reaction has another revision by now, or the turn was dropped.
    Raises `KeyError` for an unknown turn.
    """
    now = conn.execute(_select_revision, {"id": verdict.turn}).one_or_none()
    if now is None:
        raise KeyError(verdict.turn)
    if now.revision != verdict.revision or now.state not in (TurnState.CLOSED, TurnState.JUDGED):
        return False
    votes = to_json(verdict.votes)
    hints = to_json(verdict.hints)
    conn.execute(_insert_verdict, to_row(t.verdicts, verdict, votes=votes, hints=hints))
    if now.episode is None:
        truncated = now.finish_reason == FinishReason.LENGTH
        conn.execute(
            _set_signal,
            {"turn": verdict.turn, "new_signal": _current_signal(conn, verdict.turn, truncated)},
        )
    if now.state == TurnState.CLOSED:
        turn_states.transition(conn, verdict.turn, TurnState.JUDGED, at=verdict.at)
    return True


def add_comparison(conn: Connection, verdict: Verdict) -> None:
    """Store a verdict on a turn that has an explicit score, which stays in force. Without one, do nothing."""
    explicit = select(func.count()).where(t.verdicts.c.turn == verdict.turn, _explicit_score == 1)
    if conn.execute(explicit).scalar_one():
        add_verdict(conn, verdict)


def judged_without_feedback(conn: Connection, ids: Sequence[str]) -> set[str]:
    """Return those of the turns on which a judge has given a verdict."""
    verdicts = select(t.verdicts.c.turn).where(t.verdicts.c.turn.in_(ids), *_BY_JUDGES)
    return set(conn.execute(verdicts).scalars())


def cached_votes(conn: Connection, key: bytes) -> tuple[Vote, ...] | None:
    """Return the votes that were kept under this key. Damaged ones count as missing."""
    row = conn.execute(select(t.cached_votes).where(t.cached_votes.c.key == key)).one_or_none()
    with contextlib.suppress(DamagedRow):
        return None if row is None else votes_from_row(row)
    return None


def cache_votes(
    conn: Connection, key: bytes, turn_id: str, votes: Sequence[Vote], *, limit: int
) -> None:
    """Keep the votes under this key until the turn is erased, or until `limit` newer ones have been kept.

    Nothing is kept of an unknown turn.
    """
    if get(conn, turn_id) is None:
        return
    row = {"key": key, "turn": turn_id, "votes": to_json(tuple(votes))}
    conn.execute(insert(t.cached_votes).values(row).prefix_with("OR REPLACE"))
    newest = select(func.max(t.cached_votes.c.seq)).scalar_subquery()
    conn.execute(delete(t.cached_votes).where(t.cached_votes.c.seq <= newest - limit))


def mark_untrainable(conn: Connection, reasons: Mapping[str, Reason]) -> None:
    """Remove turns from the training queue for good, for example because they are too stale or have no gradient.

    `reasons`: why, by turn. An earlier reason is kept.
    """
    for turn_id, reason in reasons.items():
        values = {"new_reason": reason.detail, "new_code": reason.code.value}
        conn.execute(_set_untrainable, {"turn": turn_id} | values)


def set_aside(conn: Connection, turn_id: str, reason: Reason, *, at: float) -> None:
    """Remove a turn from all queues for good: it is damaged, or a stage died on it again and again."""
    mark_untrainable(conn, {turn_id: reason})
    turn_states.drop(conn, turn_id, reason.code, reason.detail, at=at)


def _current_signal(conn: Connection, turn: str, truncated: bool) -> int:
    """Return the signal bits. A truncated reply has no score signal, as the model did not choose its end."""
    verdict = current_verdict(conn, turn)
    assert verdict is not None, f"turn {turn} has no verdict, although one was just stored"
    signal = 0
    if verdict.score and not truncated:
        signal |= SCORE_SIGNAL
    if verdict.hints:
        signal |= HINT_SIGNAL
    return signal


def count_rows(
    conn: Connection, column: ColumnElement[Any], *where: ColumnElement[bool] | TextClause
) -> dict[Any, int]:
    """Return the number of rows for each value of the column, most frequent first."""
    number = func.count().label("number")
    rows = conn.execute(
        select(column, number).where(*where).group_by(column).order_by(number.desc())
    )
    return {value: int(n) for value, n in rows}


def count_by_state(conn: Connection) -> dict[TurnState, int]:
    """Return the number of turns in each state, without those of practice."""
    return {
        TurnState(state): n for state, n in count_rows(conn, t.turns.c.state, OF_PEOPLE).items()
    }


def count_dropped(conn: Connection) -> dict[Reason, int]:
    """Return the number of dropped turns for each reason, most frequent first; without practice."""
    return _count_reasons(conn, t.turns.c.cause, t.turns.c.reason, IS_DROPPED)


def count_untrainable(conn: Connection) -> dict[Reason, int]:
    """Return the number of untrainable turns for each reason, most frequent first; without practice."""
    return _count_reasons(conn, t.turns.c.untrainable_code, t.turns.c.untrainable, IS_UNFIT)


def _count_reasons(
    conn: Connection, code: Column[str], detail: Column[str], condition: TextClause
) -> dict[Reason, int]:
    number = func.count().label("number")
    query = select(code, detail, number).where(condition, OF_PEOPLE).group_by(code, detail)
    rows = conn.execute(query.order_by(number.desc()))
    return {_to_reason(row[0], row[1]): int(row.number) for row in rows}


def _to_reason(code: str | None, detail: str | None) -> Reason:
    return Reason(ReasonCode.STATED if code is None else ReasonCode(code), detail or "")


def count_unlinked(conn: Connection) -> dict[Reason, int]:
    """Return for each reason the number of turns whose history has replies of which no turn is known."""
    return _count_reasons(conn, t.turns.c.unlinked_code, t.turns.c.unlinked, IS_UNLINKED)


def trainable_by_agent(conn: Connection, limit: int) -> dict[str, dict[Reason | None, int]]:
    """Return agent -> reason -> number of its main turns that were served here; reason None: they can train.

    Of the newest `limit` turns.
    """
    columns = t.exchanges.c.agent, t.turns.c.untrainable_code, t.turns.c.untrainable
    newest = select(func.coalesce(func.max(t.turns.c.seq), 0)).scalar_subquery()
    query = (
        select(*columns, func.count())
        .join(t.turns, t.turns.c.seq == t.exchanges.c.seq)
        .where(
            t.turns.c.seq > newest - limit,
            t.equals_literal(t.turns.c.kind, Kind.MAIN),
            t.exchanges.c.origin.is_(None),
        )
        .group_by(*columns)
    )
    out: dict[str, dict[Reason | None, int]] = {}
    for agent, code, detail, count in conn.execute(query):
        reason = None if detail is None else _to_reason(code, detail)
        out.setdefault(agent, {})[reason] = count
    return out


def count_by_score(conn: Connection) -> dict[int | None, int]:
    """Return the number of verdicts with each score, without practice and comparisons of signals; None: no opinion."""
    v = t.verdicts.c
    counts: Counter[int | None] = Counter()
    of_judges = select(v.judge, v.score, func.count().label("number")).group_by(v.judge, v.score)
    for row in conn.execute(of_judges):
        if row.judge != PRACTICE_JUDGE:
            counts[row.score] += row.number
    # The names of signals are next to one another in the index of judges.
    is_signal = v.judge >= BEHAVIOUR_JUDGE, v.judge < BEHAVIOUR_JUDGE + "\uffff"
    explicit = t.verdicts.alias("explicit")
    is_scored = select(explicit.c.turn).where(explicit.c.turn == v.turn, explicit.c.explicit == 1)
    counts.subtract(count_rows(conn, v.score, *is_signal, is_scored.exists()))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0] is not None, item[0] or 0))
    return {score: number for score, number in ordered if number}


def count_unjudged(conn: Connection) -> tuple[int, float | None]:
    """Return the number of turns that wait for a verdict, and when the first of them began to wait."""
    here = (t.reactions.c.turn == t.turns.c.id) & (t.reactions.c.revision == t.turns.c.revision)
    query = select(func.count(), func.min(t.reactions.c.at)).select_from(
        t.turns.join(t.reactions, here)
    )
    count, since = conn.execute(
        query.where(t.equals_literal(t.turns.c.state, TurnState.CLOSED))
    ).one()
    return int(count), since


def count_served(conn: Connection) -> int:
    """Return the number of turns that wait for a reaction."""
    is_served = t.equals_literal(t.turns.c.state, TurnState.SERVED)
    return int(conn.execute(select(func.count(t.turns.c.seq)).where(is_served)).scalar_one())


def newest_judge_verdicts(conn: Connection, limit: int) -> list[Verdict]:
    """Return verdicts of the judge, newest turn first, without those from feedback or behaviour and damaged ones."""
    # The sign keeps SQLite from reading all verdicts and sorting them.
    turn = literal_column("+turns.id", Text)
    query = select(t.verdicts).join(t.turns, turn == t.verdicts.c.turn).where(*_BY_JUDGES)
    rows = conn.execute(
        query.order_by(t.turns.c.seq.desc(), t.verdicts.c.revision.desc()).limit(limit)
    )
    out = []
    for row in rows:
        with contextlib.suppress(DamagedRow):
            out.append(verdict_from_row(row))
    return out


def newest_main_links(conn: Connection, limit: int) -> list[tuple[str | None, Reason | None, int]]:
    """Return (parent, why none was found, revision of the reaction) of the newest main turns that were served here."""
    columns = (t.turns.c.unlinked_code, t.turns.c.unlinked)
    query = select(t.turns.c.parent, *columns, t.turns.c.revision)
    query = query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    main = t.equals_literal(t.turns.c.kind, Kind.MAIN), t.exchanges.c.origin.is_(None)
    rows = conn.execute(query.where(*main).order_by(t.turns.c.seq.desc()).limit(limit))
    links = []
    for row in rows:
        reason = None if row.unlinked is None else _to_reason(row.unlinked_code, row.unlinked)
        links.append((row.parent, reason, row.revision))
    return links
