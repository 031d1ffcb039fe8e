"""Turns of practice: replies to a person's earlier prompts that the trainer generates to learn a lesson from.

They are never part of a conversation and are never linked. Each is judged by `PRACTICE_JUDGE`, without a score and with
the text of its lessons as the hint. A version uses them like any other turn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from openclaw_rl.store import exchanges, turn_states, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import OwnerFilter, PolicyOwner, is_owned
from openclaw_rl.store.lineage.training_queue import load_judged_turns
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.store.turns import PRACTICE_JUDGE
from openclaw_rl.types import (
    Capture,
    ExchangeStatus,
    JudgedTurn,
    Kind,
    Origin,
    PolicyState,
    Reply,
    Request,
    TurnState,
    Verdict,
)

PRACTICE_SCOPE = "practice"
"""Scope of practice exchanges: no API key has it, so that no conversation is linked with them."""
HOUR_SECONDS = 3600.0
_DROPPED_KEY = "practice_dropped"
"""Row of `meta` with the rounds of the last hour whose replies were left out: when, and how many seconds they took."""
_IS_PRACTICE = t.equals_literal(t.turns.c.kind, Kind.PRACTICE)
_source = t.turns.alias("source")
_set_owner_of_source = (
    update(t.turns)
    .where(t.turns.c.id == bindparam("practised"))
    .values(
        owner=select(_source.c.owner).where(_source.c.id == bindparam("asked")).scalar_subquery()
    )
)
_HAS_REACTION = t.turns.c.state.in_([TurnState.CLOSED.value, TurnState.JUDGED.value])


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticeTurn:
    """One reply of practice. `source`: the turn whose prompt was asked again; `lessons`: id -> text."""

    request: Request
    reply: Reply
    source: str
    lessons: dict[str, str]
    hint: str  # the text in the teacher's prompt


def add_turns(conn: Connection, items: Sequence[PracticeTurn], *, at: float) -> None:
    """Insert the replies as judged turns. Degenerate replies are stored as dropped ones."""
    exchanges.insert_started(conn, [item.request for item in items])
    exchanges.insert_finished(conn, [item.reply for item in items])
    conn.execute(
        insert(t.practice_turns),
        [{"turn": item.request.id, "source": item.source} for item in items],
    )
    conn.execute(
        _set_owner_of_source,
        [{"practised": item.request.id, "asked": item.source} for item in items],
    )
    links = [
        {"turn": item.request.id, "lesson": lesson} for item in items for lesson in item.lessons
    ]
    conn.execute(insert(t.practice_lessons), links)
    for item in items:
        turn = turns.get(conn, item.request.id)
        if turn is None or turn.state is TurnState.DROPPED:
            continue
        turn_states.transition(conn, item.request.id, TurnState.CLOSED, at=at)
        verdict = Verdict(
            turn=item.request.id,
            revision=0,
            judge=PRACTICE_JUDGE,
            score=None,
            hints=(item.hint,),
            at=at,
        )
        turns.add_verdict(conn, verdict)


def practised_versions(conn: Connection, versions: Collection[int]) -> set[int]:
    """Return those of the versions that a step of practice made."""
    joined = t.uses.join(t.practice_turns, t.practice_turns.c.turn == t.uses.c.turn)
    query = select(t.uses.c.policy).select_from(joined).where(t.uses.c.policy.in_(list(versions)))
    return set(conn.execute(query.distinct()).scalars())


def practising_policies(conn: Connection, per: PolicyOwner) -> list[str]:
    """Return the policies that are trained under this setting and have lessons in force."""
    in_force = t.lessons.c.state != lessons.LessonState.SUPERSEDED.value
    names = conn.execute(
        select(t.lessons.c.policy).where(in_force).distinct().order_by(t.lessons.c.policy)
    ).scalars()
    return [name for name in names if is_owned(per, name)]


def pending_turns(conn: Connection, owner: OwnerFilter | None = None) -> list[JudgedTurn]:
    """Return the turns of practice that no version was trained on yet, oldest first. Raises `DamagedRow`.

    `owner`: only those from prompts of this agent, user or key.
    """
    c = t.turns.c
    query = select(c.id).where(
        _is_practice_of(owner),
        c.state == TurnState.JUDGED.value,
        c.untrainable.is_(None),
        c.uses == 0,
    )
    return load_judged_turns(conn, list(conn.execute(query).scalars()))


def lessons_of_practice(conn: Connection, turn_ids: Collection[str]) -> dict[str, list[str]]:
    """Return, by lesson, those of the turns of practice that were made from it."""
    c = t.practice_lessons.c
    turns_by_lesson: dict[str, list[str]] = {}
    for row in conn.execute(
        select(c.lesson, c.turn).where(c.turn.in_(list(turn_ids))).order_by(c.lesson, c.turn)
    ):
        turns_by_lesson.setdefault(row.lesson, []).append(row.turn)
    return turns_by_lesson


def contrast_turns(conn: Connection, turn_ids: Collection[str]) -> set[str]:
    """Return those of the turns that the teacher answered under a wish that contradicts the lesson."""
    query = select(t.turns.c.id).join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    query = query.where(
        t.turns.c.id.in_(list(turn_ids)), t.exchanges.c.origin == Origin.CONTRAST.value
    )
    return set(conn.execute(query).scalars())


def turns_practised_from(conn: Connection, evidence: Collection[str]) -> list[str]:
    """Return the turns of practice that lose their ground with these turns, oldest first.

    That is: one of their lessons has no other evidence, or their prompt is that of one of the turns. Of a lesson that
    was deleted, the turns that put it into force count.
    """
    lesson_ids = _deleted_lessons(conn, evidence)
    taken = frozenset(evidence)
    for lesson in lessons.lessons_of_turns(conn, evidence):
        turns_of_lesson = {link.turn for link in lessons.turns_of_lesson(conn, lesson.id)}
        if turns_of_lesson <= taken:
            lesson_ids.append(lesson.id)
    return sorted({*turns_of_lessons(conn, lesson_ids), *_turns_of_sources(conn, evidence)})


def _deleted_lessons(conn: Connection, evidence: Collection[str]) -> list[str]:
    """Return the lessons that were practised, are deleted, and were put into force by these turns alone."""
    link = t.practice_lessons.c
    event = t.events.c
    deleted = select(link.lesson).where(link.lesson.not_in(select(t.lessons.c.id)))
    query = select(event.ref, event.data).where(
        event.kind == lessons.MADE_EVENT, event.ref.in_(deleted)
    )
    made_by: dict[str, set[str]] = {}
    for row in conn.execute(query):
        made_by.setdefault(row.ref, set()).add(from_json(row.data)["turn"])
    return [lesson for lesson, turn_ids in made_by.items() if turn_ids <= set(evidence)]


def turns_of_lessons(conn: Connection, ids: Collection[str]) -> list[str]:
    """Return the turns of practice that were made from one of these lessons."""
    c = t.practice_lessons.c
    return list(conn.execute(select(c.turn).where(c.lesson.in_(list(ids))).distinct()).scalars())


def _turns_of_sources(conn: Connection, ids: Collection[str]) -> list[str]:
    c = t.practice_turns.c
    return list(conn.execute(select(c.turn).where(c.source.in_(list(ids)))).scalars())


def count_all(conn: Connection, owner: OwnerFilter | None = None) -> int:
    """Return the number of turns of practice. `owner`: as in `pending_turns`."""
    return int(
        conn.execute(
            select(func.count()).select_from(t.turns).where(_is_practice_of(owner))
        ).scalar_one()
    )


def _is_practice_of(owner: OwnerFilter | None) -> ColumnElement[bool]:
    return _IS_PRACTICE if owner is None else and_(_IS_PRACTICE, owner.condition())


def count_turns(conn: Connection, ids: Collection[str], *, since: float) -> int:
    """Return the number of turns of practice with one of these lessons since then (seconds since the epoch)."""
    query = select(func.count(t.practice_lessons.c.turn.distinct()))
    query = query.join(t.turns, t.turns.c.id == t.practice_lessons.c.turn)
    query = query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    of_lessons = t.practice_lessons.c.lesson.in_(list(ids))
    return int(
        conn.execute(query.where(of_lessons, t.exchanges.c.admitted_at > since)).scalar_one()
    )


def is_refused(conn: Connection, ids: Collection[str], *, since: float, times: int) -> bool:
    """Return whether the newest `times` versions since then that practised one of these lessons were all refused."""
    p = t.policies.c
    link = t.practice_lessons.c
    practising = (
        select(t.uses.c.policy)
        .join(t.practice_lessons, link.turn == t.uses.c.turn)
        .where(link.lesson.in_(list(ids)))
    )
    query = (
        select(p.state)
        .where(p.created_at > since, p.version.in_(practising))
        .order_by(p.version.desc())
        .limit(times)
    )
    states = list(conn.execute(query).scalars())
    return len(states) == times and set(states) == {PolicyState.REJECTED.value}


def steps_on_people(conn: Connection, policy: str, *, since: float) -> list[float]:
    """Return when the versions of a policy since then were made that were trained on a person's turns, oldest first."""
    main = t.turns.c.kind != Kind.PRACTICE.value
    trained = select(t.uses.c.policy).join(t.turns, t.turns.c.id == t.uses.c.turn).where(main)
    p = t.policies.c
    query = select(p.created_at).where(
        p.name == policy, p.created_at > since, p.version.in_(trained)
    )
    return list(conn.execute(query.order_by(p.created_at)).scalars())


def seconds_of_last_hour(conn: Connection, now: float) -> float:
    """Return how long practice has generated replies and trained in the hour before `now`, in seconds.

    Replies of rounds that were given up count, too. A step counts once, although `undo` may have taken it again. Its
    gate does not count.
    """
    x = t.exchanges.c
    c = t.turns.c
    query = (
        select(x.admitted_at, x.finished_at, func.min(t.uses.c.policy).label("version"))
        .join(t.turns, c.seq == x.seq)
        .outerjoin(t.uses, t.uses.c.turn == c.id)
        .where(_IS_PRACTICE, x.finished_at > now - HOUR_SECONDS, x.finished_at <= now)
        .group_by(c.id)
    )
    rows = conn.execute(query).all()
    spans = {(row.admitted_at, row.finished_at) for row in rows}
    replies = sum(end - begin for begin, end in spans)
    dropped = sum(seconds for _, seconds in _dropped_rounds(conn, now))
    versions = {row.version for row in rows if row.version is not None}
    steps = policies.get_many(conn, versions)
    trained = sum(step.metrics.get("seconds/batch", 0.0) for step in steps)
    return float(replies + dropped + trained)


def add_dropped_seconds(conn: Connection, seconds: float, *, at: float) -> None:
    """Record how long the replies of a round took that were left out."""
    row = {"key": _DROPPED_KEY, "value": to_json([*_dropped_rounds(conn, at), (at, seconds)])}
    conn.execute(upsert(t.meta).values(row).on_conflict_do_update(index_elements=["key"], set_=row))


def _dropped_rounds(conn: Connection, now: float) -> list[tuple[float, float]]:
    """Return when each round in the hour before `now` was left out, and its seconds."""
    raw = conn.scalar(select(t.meta.c.value).where(t.meta.c.key == _DROPPED_KEY))
    return [
        (at, seconds)
        for at, seconds in (from_json(raw) if raw else ())
        if now - HOUR_SECONDS < at <= now
    ]


def newest_prompts(
    conn: Connection, of: Lesson, *, identity: str, limit: int, owner: OwnerFilter | None = None
) -> list[str]:
    """Return the newest main turns of a lesson's people that can be asked again, newest first.

    Only prompts whose reply got a reaction count: the message that ends a conversation ("Thanks!") asks for nothing.
    Those of episodes, whose tasks may be held out, are left out. `owner`: only those of this agent, user or key.
    """
    x = t.exchanges.c
    c = t.turns.c
    (agent, user) = of.owner
    query = select(c.id).join(t.exchanges, x.seq == c.seq)
    query = query.where(
        _HAS_REACTION,
        t.equals_literal(c.kind, Kind.MAIN),
        x.identity == identity,
        x.scope == of.key,
        x.agent == agent,
        *((x.user == user,) if user else ()),
        x.origin.is_(None),
        x.episode.is_(None),
        x.capture == Capture.FULL.value,
        x.status == ExchangeStatus.DONE.value,
        *(() if owner is None else (owner.condition(),)),
    )
    return list(conn.execute(query.order_by(c.seq.desc()).limit(limit)).scalars())


def can_be_asked(conn: Connection, ids: Collection[str]) -> bool:
    """Return whether none of these turns, whose prompts are asked again, was taken back or erased meanwhile."""
    query = select(func.count()).where(t.turns.c.id.in_(list(ids)), _HAS_REACTION)
    return int(conn.execute(query).scalar_one()) == len(set(ids))


def measured_versions(conn: Connection, lesson: str, lineage: Collection[int]) -> list[int]:
    """Return the versions of a lineage with which the divergence of a lesson was measured, oldest first."""
    return [version for version, _ in lessons.divergences_of(conn, lesson) if version in lineage]


def is_said_again(conn: Connection, lesson: Lesson) -> bool:
    """Return whether a learned lesson was said again since its divergence was measured last.

    Only words about replies of versions that are to follow it count: of its policy, since it was learned.
    """
    link = t.lesson_turns.c
    measured = t.lesson_divergences.c
    last = select(func.max(measured.at)).where(measured.lesson == lesson.id).scalar_subquery()
    is_repeated = exists().where(
        link.lesson == lesson.id,
        link.at > last,
        t.exchanges.c.id == link.turn,
        t.exchanges.c.version >= lesson.learned_version,
        t.policies.c.version == t.exchanges.c.version,
        t.policies.c.name == lesson.policy,
    )
    return bool(conn.execute(select(is_repeated)).scalar_one())


def newest_divergences(
    conn: Connection, lesson: str, lineage: Collection[int], *, limit: int = 0, since: float = 0.0
) -> list[float]:
    """Return the divergences of a lesson from versions of a lineage, oldest first.

    `limit`: only the newest so many; `since`: only those measured after it (seconds since the epoch).
    """
    divergences = lessons.divergences_of(conn, lesson, since=since)
    return [value for version, value in divergences if version in lineage][-limit:]
