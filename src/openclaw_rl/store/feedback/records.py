"""Writes and reads explicit feedback. The collect stage attaches it to reactions (`store/reactions.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, insert, or_, select, update

from openclaw_rl.common.message_hash import hash_session
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import from_row, to_row
from openclaw_rl.types import Capture, Feedback, PolicyState, Retraction

GIVEN_EVENT = "feedback.given"
RETRACTED_EVENT = "feedback.retracted"

_insert = insert(t.feedback)
_target = select(t.exchanges.c.id, t.exchanges.c.scope, t.exchanges.c.capture).where(
    t.exchanges.c.id == bindparam("id")
)
_by_key = select(t.feedback).where(
    t.feedback.c.scope == bindparam("of_scope"), t.feedback.c.idempotency_key == bindparam("key")
)
# The key is free again, because a person may take a reaction back and then give it a second time.
_retract = (
    update(t.feedback)
    .where(
        t.feedback.c.id == bindparam("which"),
        t.feedback.c.scope == bindparam("of_scope"),
        t.feedback.c.retracted_at.is_(None),
    )
    .values(
        retracted_at=bindparam("at"),
        idempotency_key=None,
        comment=None,
        correction=None,
    )
    .returning(t.feedback.c.target)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackRecord:
    """Feedback as the API shows it, with what is known of the reply that it is on."""

    feedback: Feedback
    session: str
    user: str
    counts: bool  # a reaction includes it
    trained_versions: tuple[int, ...]  # live versions that were trained on its reply, oldest first


def add_feedback(conn: Connection, items: Sequence[Feedback]) -> None:
    """Insert feedback, each with an event "feedback.given". Raises `KeyError(target)` if it is not in its scope.

    Feedback whose idempotency key is known is left out.
    """
    for item in items:
        target = conn.execute(_target, {"id": item.target}).one_or_none()
        if target is None or target.scope != item.scope:
            raise KeyError(item.target)
        if item.idempotency_key is not None and find_by_key(conn, item.scope, item.idempotency_key):
            continue
        known = {"comment": None, "correction": None} if target.capture == Capture.REDACTED else {}
        conn.execute(_insert, to_row(t.feedback, item, **known))
        events.append(conn, GIVEN_EVENT, item.id, {"target": item.target}, item.given_at)


def retract_feedback(conn: Connection, retraction: Retraction) -> None:
    """Take feedback back, each with an event "feedback.retracted". What was taken back before is left out.

    Its words are deleted; that it was given, and its score, stay for the record.
    """
    for id_ in retraction.ids:
        values = {"which": id_, "of_scope": retraction.scope, "at": retraction.at}
        target = conn.execute(_retract, values).scalar_one_or_none()
        if target is not None:
            events.append(conn, RETRACTED_EVENT, id_, {"target": target}, retraction.at)


def find_by_key(conn: Connection, scope: str, key: str) -> Feedback | None:
    """Return the feedback that this idempotency key brought, unless it was taken back."""
    row = conn.execute(_by_key, {"of_scope": scope, "key": key}).one_or_none()
    return None if row is None else from_row(Feedback, row)


def get_feedback(conn: Connection, scope: str, id: str) -> FeedbackRecord | None:
    """Return the feedback with this id if it is in this scope."""
    rows = conn.execute(_records(scope).where(t.feedback.c.id == id)).all()
    return _read_records(conn, rows)[0] if rows else None


def feedback_on(conn: Connection, turn: str) -> list[Feedback]:
    """Return the feedback on a reply that was not taken back, oldest first."""
    query = select(t.feedback).where(
        t.feedback.c.target == turn, t.feedback.c.retracted_at.is_(None)
    )
    rows = conn.execute(query.order_by(t.feedback.c.seq))
    return [from_row(Feedback, row) for row in rows]


def scope_of_reply(conn: Connection, turn: str) -> str | None:
    """Return the scope in which a reply was given; None if there is no such reply."""
    target = conn.execute(_target, {"id": turn}).one_or_none()
    return None if target is None else str(target.scope)


def keeps_words(conn: Connection, turn: str) -> bool:
    """Return whether the words of feedback on a reply are stored; an unknown reply has none."""
    target = conn.execute(_target, {"id": turn}).one_or_none()
    return target is not None and target.capture != Capture.REDACTED


def list_feedback(
    conn: Connection,
    scope: str,
    *,
    target: str | None = None,
    session: str | None = None,
    user: str | None = None,
    given_by: str | None = None,
    after: str | None = None,
    with_retracted: bool = False,
    limit: int,
) -> list[FeedbackRecord]:
    """Return feedback, newest first.

    `session`, `user`: of the replies. `after`: id of the last one of the page before; unknown: the first page.
    """
    query = _records(scope)
    if target is not None:
        query = query.where(t.feedback.c.target == target)
    if session is not None:
        query = query.where(in_session(session))
    if user is not None:
        query = query.where(t.exchanges.c.user == user)
    if given_by is not None:
        query = query.where(t.feedback.c.given_by == given_by)
    if not with_retracted:
        query = query.where(t.feedback.c.retracted_at.is_(None))
    if after is not None:
        last = select(t.feedback.c.seq).where(t.feedback.c.id == after, t.feedback.c.scope == scope)
        seq = conn.execute(last).scalar_one_or_none()
        if seq is not None:
            query = query.where(t.feedback.c.seq < seq)
    rows = conn.execute(query.order_by(t.feedback.c.seq.desc()).limit(limit)).all()
    return _read_records(conn, rows)


def in_session(session: str) -> Any:
    """Return the condition that a turn is in a session; a redacted one has only the session's hash."""
    names = [session, hash_session(session)]
    return or_(t.turns.c.session.in_(names), t.exchanges.c.session.in_(names))


def _records(scope: str) -> Select[Any]:
    return (
        select(t.feedback, t.turns.c.session, t.exchanges.c.user)
        .join(t.exchanges, t.exchanges.c.id == t.feedback.c.target)
        .join(t.turns, t.turns.c.seq == t.exchanges.c.seq)
        .where(t.feedback.c.scope == scope)
    )


def _read_records(conn: Connection, rows: Sequence[Row[Any]]) -> list[FeedbackRecord]:
    trained = _trained_versions(conn, [row.target for row in rows])
    return [
        FeedbackRecord(
            feedback=from_row(Feedback, row),
            session=row.session,
            user=row.user,
            counts=row.revision is not None and row.retracted_at is None,
            trained_versions=tuple(trained.get(row.target, ())),
        )
        for row in rows
    ]


def _trained_versions(conn: Connection, turns_: Sequence[str]) -> dict[str, list[int]]:
    """Return the live versions that were trained on each turn, oldest first."""
    query = (
        select(t.uses.c.turn, t.uses.c.policy)
        .join(t.policies, t.policies.c.version == t.uses.c.policy)
        .where(t.uses.c.turn.in_(turns_), t.policies.c.state == PolicyState.LIVE.value)
        .order_by(t.uses.c.policy)
    )
    versions: dict[str, list[int]] = {}
    for turn, version in conn.execute(query):
        versions.setdefault(turn, []).append(version)
    return versions
