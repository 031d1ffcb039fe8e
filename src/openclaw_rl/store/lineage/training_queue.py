"""Queries for the judged turns that the child of a given head may be trained on: fresh ones and replays."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    func,
    or_,
    select,
    true,
    tuple_,
)

from openclaw_rl.errors import DamagedRow
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.episodes.credit import episode_steps, groups_before_judge, with_group
from openclaw_rl.store.lessons.taste_changes import NO_CHANGES, read_taste_changes
from openclaw_rl.store.lineage.policy_names import (
    HAS_LOST_ALL_USES,
    HAS_LOST_USE,
    IS_CLAIMABLE,
    OwnerFilter,
)
from openclaw_rl.store.person_scores import Person
from openclaw_rl.store.rows import turn_from_row
from openclaw_rl.store.trust import evidence
from openclaw_rl.store.trust.judge_trust import JudgeTrust, is_trusted_condition, read_trust
from openclaw_rl.types import JudgedTurn, Kind, PolicyState, TurnState, Use, Verdict

MAX_REJECTED_USES = 2
"""A turn that this many rejected candidates used is not replayed again."""
MAX_CONSIDERED = 4096
"""The newest scored turns of a policy among which held-out turns are found."""


def ancestors(
    version: int | BindParameter[int], *, above: int | BindParameter[int] | None = None
) -> CTE:
    """Return `version` and its ancestors as a recursive CTE. `above`: only those with a higher number."""
    p = t.policies
    is_above = true() if above is None else p.c.version > above
    first = select(p.c.version, p.c.parent).where(p.c.version == version, is_above)
    lineage = first.cte("line", recursive=True)
    parents = select(p.c.version, p.c.parent).join(lineage, p.c.version == lineage.c.parent)
    return lineage.union_all(parents.where(is_above))


def trainable_turns(
    conn: Connection,
    *,
    limit: int,
    max_uses: int,
    need_score: bool,
    need_hint: bool,
    owner: OwnerFilter | None = None,
) -> list[JudgedTurn]:
    """Return fresh judged turns with a signal for the method, oldest first; with both needs either signal suffices.

    Turns of episodes are for methods with neither need alone (`trainable_groups`).

    Fresh means that neither the head nor an ancestor used the turn. Policies that were rolled back may have used it, at
    most `max_uses` times, and damaged ones any number of times. Rejected ones may have used it, too, if all rejected
    batches with the turn differ in size: trying ever smaller batches finds out whether this turn makes them fail. A
    reply cut at its token limit has only hints as a signal, no score. Verdicts of a judge that is not trusted for the
    turn's person (`trust.judge_trust`) train nothing, except a person's correction that became their hint. Turns of
    people who flood come after those of all others. `owner`: only turns of this agent, user or key. Raises
    `DamagedRow`.
    """
    ids = trainable_ids(
        conn,
        limit=limit,
        max_uses=max_uses,
        need_score=need_score,
        need_hint=need_hint,
        owner=owner,
    )
    return load_judged_turns(conn, ids)


def trainable_ids(
    conn: Connection,
    *,
    limit: int,
    max_uses: int,
    need_score: bool,
    need_hint: bool,
    owner: OwnerFilter | None = None,
) -> list[str]:
    """Return the ids of the turns of `trainable_turns`."""
    has_trusted_signal = _has_trusted_signal(conn, need_score, need_hint)
    floods = _of_floods(conn)
    if has_trusted_signal is None and floods is None:
        usual_queries = _usual_queries(need_score, need_hint, owner is not None)
        values: dict[str, int | str] = {"max_uses": max_uses, "limit": limit}
        if owner is not None:
            values["owner"] = owner.name
        return _sort_by_age(conn, usual_queries, values)[:limit]
    queries = _trainable_queries(
        max_uses, _ready_turns(has_trusted_signal, need_score, need_hint, owner)
    )
    if floods is None:
        return _oldest(conn, queries, limit)
    usual = _oldest(conn, [query.where(~floods) for query in queries], limit)
    rest = limit - len(usual)
    return usual + (_oldest(conn, [query.where(floods) for query in queries], rest) if rest else [])


@cache
def _usual_queries(
    need_score: bool, need_hint: bool, has_owner: bool
) -> tuple[Select[tuple[int, str]], ...]:
    """Return the queries where all judges are trusted and nobody floods: making them takes longer than asking them.

    Parameters: `limit`, `max_uses`, and `owner` if there is one.
    """
    ready = _of_signals(select(t.turns.c.seq, t.turns.c.id), need_score, need_hint)
    if has_owner:
        ready = [query.where(t.turns.c.owner == bindparam("owner")) for query in ready]
    queries = _trainable_queries(bindparam("max_uses"), ready)
    return tuple(query.order_by(t.turns.c.seq).limit(bindparam("limit")) for query in queries)


def _oldest(conn: Connection, queries: list[Select[tuple[int, str]]], limit: int) -> list[str]:
    bounded = [query.order_by(t.turns.c.seq).limit(limit) for query in queries]
    return _sort_by_age(conn, bounded)[:limit]


def _of_floods(conn: Connection) -> ColumnElement[bool] | None:
    """Condition: the turn's person floods; None: nobody does."""
    people = evidence.read_floods(conn)
    if not people:
        return None
    e = t.exchanges.c
    return (
        select(e.seq)
        .where(e.seq == t.turns.c.seq, tuple_(e.scope, e.user).in_(people))
        .correlate(t.turns)
        .exists()
    )


def trainable_groups(
    conn: Connection, *, limit: int, max_uses: int, owner: OwnerFilter | None = None
) -> list[list[str]]:
    """Return the ids of the fresh turns of complete groups of episodes, oldest group first; at most `limit` groups.

    Fresh as in `trainable_turns`. A group with a turn that still waits for the judge is left out.
    """
    queries = _trainable_queries(max_uses, _ready_turns(None, False, False, owner))
    rows = sorted(
        {
            (row.seq, row.id, row.group_id)
            for query in queries
            for row in conn.execute(with_group(query))
        }
    )
    waiting = groups_before_judge(conn)
    turns_by_group: dict[str, list[str]] = {}
    for _, turn, group in rows:
        if group not in waiting:
            turns_by_group.setdefault(group, []).append(turn)
    return list(turns_by_group.values())[:limit]


def count_trainable(
    conn: Connection,
    *,
    max_uses: int,
    need_score: bool,
    need_hint: bool,
    owner: OwnerFilter | None = None,
) -> int:
    """Return the number of turns that `trainable_turns` finds without a limit."""
    has_trusted_signal = _has_trusted_signal(conn, need_score, need_hint)
    ready = _ready_turns(has_trusted_signal, need_score, need_hint, owner)
    queries = _trainable_queries(max_uses, ready)
    return sum(
        conn.execute(select(func.count()).select_from(query.subquery())).scalar_one()
        for query in queries
    )


def _trainable_queries(
    max_uses: int | BindParameter[int], ready_queries: Sequence[Select[tuple[int, str]]]
) -> list[Select[tuple[int, str]]]:
    """Return queries for turns that no version used, and for those of which all uses are lost."""
    p = t.policies.c
    excused = _count_uses(or_(p.state == PolicyState.REJECTED.value, p.damage.is_not(None)))
    queries = []
    for ready in ready_queries:
        again = ready.where(
            HAS_LOST_USE,
            HAS_LOST_ALL_USES,
            t.turns.c.uses - excused <= max_uses,
            _has_distinct_batch_sizes(),
        )
        queries += [ready.where(t.turns.c.uses == 0), again]
    return queries


def replay_turns(
    conn: Connection,
    *,
    limit: int,
    max_uses: int,
    need_score: bool,
    need_hint: bool,
    skip: Collection[str] = (),
    owner: OwnerFilter | None = None,
) -> list[JudgedTurn]:
    """Return the newest judged turns that the head or its ancestors used, but fewer than `max_uses` times.

    They are sorted oldest first and exclude those in `skip`. Uses by other policies count only towards two bounds: at
    most `max_uses` in total, and fewer than `MAX_REJECTED_USES` by rejected candidates. Raises `DamagedRow`.
    """
    c = t.turns.c
    rejections = _count_uses(_is_rejected)
    queries = []
    has_trusted_signal = _has_trusted_signal(conn, need_score, need_hint)
    for ready in _ready_turns(has_trusted_signal, need_score, need_hint, owner):
        newest = ready.where(c.id.not_in(list(skip))).order_by(c.seq.desc()).limit(limit)
        # One query for each number of uses: the index has the newest turns of each.
        queries += [newest.where(c.uses == uses, c.lost == 0) for uses in range(1, max_uses)]
        tried = newest.where(
            HAS_LOST_USE,
            # The sum keeps SQLite from the index that begins with the uses.
            (c.uses + 0).between(2, max_uses),
            _uses_of_lineage.between(1, max_uses - 1),
            rejections < MAX_REJECTED_USES,
        )
        queries.append(tried)
    return load_judged_turns(conn, _sort_by_age(conn, queries)[-limit:])


def held_out_turns(
    conn: Connection,
    *,
    version: int,
    limit: int,
    owner: OwnerFilter | None = None,
    any_taste: bool = False,
) -> list[JudgedTurn]:
    """Return the newest turns that were scored +1 or -1 and that `version` was not trained on, newest first.

    Only whole replies of main traffic with token ids count, scored by a person or a trusted judge. Damaged rows are
    left out, and turns whose prompts were asked again in practice that `version` was trained on. So are turns from
    before a change of taste, when other replies were liked (`read_taste_changes`), and those of people whose evidence
    is set aside, for a policy that is not theirs alone. Each key has a share of them, and of that each of its users:
    the newest turn of everyone comes before the second one of anybody. Of all these, only the newest `MAX_CONSIDERED`
    scored turns are looked at. `owner`: only turns that train this policy. `any_taste`: also the turns from before.
    """
    used = select(t.uses.c.turn).where(t.uses.c.policy == version)
    asked_again = select(t.practice_turns.c.source).where(t.practice_turns.c.turn.in_(used))
    beside = and_(t.turns.c.id.not_in(used), t.turns.c.id.not_in(asked_again))
    scored = [signal for signal in (1, 2, 3) if signal & turns.SCORE_SIGNAL]
    e = t.exchanges.c
    is_common = None
    if owner is None or owner.may_be_several:
        is_common = evidence.is_common_condition(conn, e.scope, e.user)
    # The place of a turn among those of its person, newest first.
    place = func.row_number().over(partition_by=(e.scope, e.user), order_by=t.turns.c.seq.desc())
    considered = (
        select(t.turns.c.id)
        .where(
            t.equals_literal(t.turns.c.state, TurnState.JUDGED),
            t.equals_literal(t.turns.c.kind, Kind.MAIN),
            t.turns.c.signal.in_(scored),
            *(() if owner is None else (owner.condition(),)),
        )
        .order_by(t.turns.c.seq.desc())
        .limit(max(MAX_CONSIDERED, 4 * limit))
    )
    of_people = (
        select(t.turns.c.id, t.turns.c.seq, e.scope, place.label("place"))
        .join(t.exchanges, e.seq == t.turns.c.seq)
        .where(
            t.turns.c.id.in_(considered),
            beside,
            *(() if is_common is None else (is_common,)),
        )
        .subquery()
    )
    p = of_people.c
    # And among those of its key, where the newest turn of each person comes first.
    key_place = func.row_number().over(partition_by=p.scope, order_by=(p.place, p.seq.desc()))
    query = select(p.id, p.seq, key_place.label("key_place"))
    query = query.order_by("key_place", p.seq.desc())
    held_out: list[tuple[int, JudgedTurn]] = []
    changes = NO_CHANGES if any_taste else read_taste_changes(conn, version, ancestors(version))
    for row in conn.execute(query.limit(2 * limit)).all():
        with contextlib.suppress(DamagedRow):
            item = load_judged_turns(conn, [row.id])[0]
            reply = item.exchange.reply
            if is_signal(item.verdict.judge) or changes.is_outdated(item.exchange):
                continue
            if item.verdict.score and reply is not None and len(reply.response_ids):
                held_out.append((row.seq, item))
        if len(held_out) >= limit:
            break
    newest_first = sorted(held_out, key=lambda placed: placed[0], reverse=True)
    return [item for _, item in newest_first]


def fresh_turns_of(conn: Connection, *, version: int, head: int) -> list[JudgedTurn]:
    """Return the turns that `version` was trained on and that neither the head nor an ancestor of it was, oldest first.

    Raises `DamagedRow`.
    """
    lineage = ancestors(head)
    of_version = select(t.uses.c.turn).where(t.uses.c.policy == version)
    earlier = select(t.uses.c.turn).where(t.uses.c.policy.in_(select(lineage.c.version)))
    query = select(t.turns.c.id).where(t.turns.c.id.in_(of_version), t.turns.c.id.not_in(earlier))
    return load_judged_turns(conn, list(conn.execute(query).scalars()))


def next_uses(conn: Connection, version: int, ids: Collection[str]) -> list[Use]:
    """Return the use of each of these turns by `version`, numbered after the uses that it has."""
    rows = conn.execute(select(t.turns.c.id, t.turns.c.uses).where(t.turns.c.id.in_(list(ids))))
    return [Use(policy=version, turn=row.id, number=row.uses + 1) for row in rows]


def _ready_turns(
    has_trusted_signal: ColumnElement[bool] | None,
    need_score: bool,
    need_hint: bool,
    owner: OwnerFilter | None,
) -> list[Select[tuple[int, str]]]:
    """Return a query for each signal with which a method with these needs can train."""
    ready = select(t.turns.c.seq, t.turns.c.id)
    if owner is not None:
        ready = ready.where(owner.condition())
    if has_trusted_signal is not None:
        ready = ready.where(has_trusted_signal)
    return _of_signals(ready, need_score, need_hint)


def _of_signals(
    ready: Select[tuple[int, str]], need_score: bool, need_hint: bool
) -> list[Select[tuple[int, str]]]:
    """Return the query for claimable turns with each signal with which a method with these needs can train."""
    signals = _wanted_signals(need_score, need_hint)
    return [ready.where(IS_CLAIMABLE, t.turns.c.signal == signal) for signal in signals]


def _wanted_signals(need_score: bool, need_hint: bool) -> list[int]:
    """Return the values of `turns.signal` that a method with these needs can train on."""
    needed = need_score * turns.SCORE_SIGNAL | need_hint * turns.HINT_SIGNAL
    if not needed:
        return [turns.EPISODE_SIGNAL]
    return [signal for signal in (1, 2, 3) if signal & needed]


def _has_trusted_signal(
    conn: Connection, need_score: bool, need_hint: bool
) -> ColumnElement[bool] | None:
    """Condition: a trusted judge or the person gave the current verdict, or its hint is the person's correction.

    None: all judges are trusted for all people, or the method needs none.
    """
    if not (need_score or need_hint):
        return None
    judge = (
        select(t.verdicts.c.judge)
        .where(t.verdicts.c.turn == t.turns.c.id)
        .order_by(*turns.VERDICT_PRECEDENCE)
    )
    current_judge = judge.limit(1).correlate(t.turns).scalar_subquery()
    is_trusted = is_trusted_condition(
        conn, current_judge, _of_exchange("scope"), _of_exchange("user")
    )
    if is_trusted is None:
        return None
    corrected = _corrected_turns().where(t.feedback.c.target == t.turns.c.id).exists()
    has_hint = t.turns.c.signal >= turns.HINT_SIGNAL
    return or_(is_trusted, and_(has_hint, corrected)) if need_hint else is_trusted


def _of_exchange(column: str) -> ScalarSelect[str]:
    """Return this column of the turn's exchange."""
    query = select(t.exchanges.c[column]).where(t.exchanges.c.seq == t.turns.c.seq)
    return query.correlate(t.turns).scalar_subquery()


def _corrected_turns() -> Select[tuple[str]]:
    return select(t.feedback.c.target).where(
        t.feedback.c.correction.is_not(None),
        t.feedback.c.revision.is_not(None),
        t.feedback.c.retracted_at.is_(None),
    )


def _has_distinct_batch_sizes() -> ColumnElement[bool]:
    """Condition: all rejected batches with the turn differ in size."""
    of_batch = t.uses.alias("of_batch")
    size = select(func.count()).where(of_batch.c.policy == t.uses.c.policy).correlate(t.uses)
    repeated = func.count() - func.count(size.scalar_subquery().distinct())
    query = select(repeated).select_from(_uses_with_versions)
    of_turn = query.where(t.uses.c.turn == t.turns.c.id, _is_rejected)
    return of_turn.correlate(t.turns).scalar_subquery() == 0


_uses_of_lineage = t.turns.c.uses - t.turns.c.lost
"""Uses of the turn by the head of its policy and the ancestors of that."""
_uses_with_versions = t.uses.join(t.policies, t.policies.c.version == t.uses.c.policy)
# The concatenation keeps SQLite from the index of states: it would look at every rejected version for each turn.
_is_rejected = t.policies.c.state + "" == PolicyState.REJECTED.value


def _count_uses(condition: ColumnElement[bool]) -> ScalarSelect[int]:
    """Number of uses of the turn by versions that fit."""
    counted = select(func.count()).select_from(_uses_with_versions)
    of_turn = counted.where(t.uses.c.turn == t.turns.c.id, condition)
    return of_turn.correlate(t.turns).scalar_subquery()


def _sort_by_age(
    conn: Connection,
    queries: Sequence[Select[tuple[int, str]]],
    values: Mapping[str, int | str] | None = None,
) -> list[str]:
    """Return the ids of the turns that the queries find, oldest first. `values`: of their parameters."""
    found = {(row.seq, row.id) for q in queries for row in conn.execute(q, values or {})}
    return [id_ for _, id_ in sorted(found)]


def load_judged_turns(conn: Connection, ids: list[str]) -> list[JudgedTurn]:
    """Return the turns, oldest first. Raises `DamagedRow`.

    A verdict of a judge that is not trusted is without its score, and without its hints unless the person gave them.
    """
    exchanges_by_id = exchanges.get_many(conn, ids)
    rows = conn.execute(select(t.turns).where(t.turns.c.id.in_(ids)).order_by(t.turns.c.seq))
    people = {(one.request.scope, one.request.user) for one in exchanges_by_id.values()}
    trust = read_trust(conn, people)
    weights = evidence.common_weights(conn, people)
    episodes = episode_steps(conn, ids, trust)
    verdicts = turns.current_verdicts(conn, ids)
    loaded = []
    for row in rows:
        exchange = exchanges_by_id[row.id]
        person = (exchange.request.scope, exchange.request.user)
        if row.id not in verdicts:
            raise DamagedRow(row.id, "it is judged and has no verdict")
        verdict = _trusted_verdict(conn, verdicts[row.id], person, trust)
        loaded.append(
            JudgedTurn(
                exchange=exchange,
                turn=turn_from_row(row),
                verdict=verdict,
                earlier_uses=row.uses,
                episode=episodes.get(row.id),
                common_weight=weights.get(person, 1.0),
            )
        )
    return loaded


def _trusted_verdict(
    conn: Connection, verdict: Verdict, person: Person, trust: JudgeTrust
) -> Verdict:
    if trust.is_trusted(verdict.judge, person):
        return verdict
    is_corrected = conn.execute(
        _corrected_turns().where(t.feedback.c.target == verdict.turn).limit(1)
    ).first()
    return replace(verdict, score=None, hints=verdict.hints if is_corrected else ())
