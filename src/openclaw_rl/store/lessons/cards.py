"""Lessons as a person reads them: those said last come first, each with the person's own words.

The number of statements does not depend on the number of lessons.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, literal_column, or_, select, tuple_

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons.lessons import Lesson, LessonState, read_lesson

CURVE_POINTS = 60
"""Newest divergences of a lesson that its curve shows."""
_lesson_row: ColumnElement[int] = literal_column("lessons.rowid")
_quote_row: ColumnElement[int] = literal_column("lesson_turns.rowid")
_newest_word = select(func.max(t.lesson_turns.c.at)).where(
    t.lesson_turns.c.lesson == t.lessons.c.id
)
_said_at = func.coalesce(_newest_word.scalar_subquery(), t.lessons.c.made_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonQuote:
    """Words of a person on which a lesson stands, about the reply of `turn`. `row`: for the next page."""

    turn: str
    words: str
    user: str
    weight: float
    at: float
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlace:
    """Place of a lesson in the list: when it was said last, and the number of its row."""

    said_at: float
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonCard:
    """A lesson with its newest quote, the numbers of its turns, and (version, divergence), oldest first."""

    lesson: Lesson
    place: CardPlace
    quote: LessonQuote | None
    turns: int
    practice: int
    curve: tuple[tuple[int, float], ...]


def newest_cards(
    conn: Connection,
    *,
    states: Collection[LessonState],
    search: str = "",
    before: CardPlace | None = None,
    limit: int,
) -> list[LessonCard]:
    """Return the lessons in these states, those said last first. `search`: only with this in text or quotes."""
    query = _places_query().where(t.lessons.c.state.in_([state.value for state in states]))
    if search:
        query = query.where(_has_text(search))
    if before is not None:
        query = query.where(tuple_(_said_at, _lesson_row) < tuple_(before.said_at, before.row))
    return _cards(conn, _last_said_first(query, limit))


def cards_of_turns(conn: Connection, turns: Collection[str], limit: int) -> list[LessonCard]:
    """Return the lessons that have one of these turns as evidence, those said last first."""
    evidence = select(t.lesson_turns.c.lesson).where(t.lesson_turns.c.turn.in_(turns))
    query = _places_query().where(t.lessons.c.id.in_(evidence))
    return _cards(conn, _last_said_first(query, limit))


def count_evidence(conn: Connection, turns: Collection[str]) -> dict[str, int]:
    """Return how many of these turns are evidence of each lesson; lessons without any are left out."""
    c = t.lesson_turns.c
    query = select(c.lesson, func.count().label("number")).where(c.turn.in_(turns))
    return {row.lesson: row.number for row in conn.execute(query.group_by(c.lesson))}


def find_card(conn: Connection, id: str) -> LessonCard | None:
    """Return one lesson; None if there is no such lesson."""
    return next(iter(_cards(conn, _places_query().where(t.lessons.c.id == id))), None)


def superseded_cards(conn: Connection, id: str, limit: int) -> list[LessonCard]:
    """Return the lessons that this one superseded, those said last first."""
    query = _places_query().where(t.lessons.c.superseded_by == id)
    return _cards(conn, _last_said_first(query, limit))


def lesson_texts(conn: Connection, ids: Collection[str]) -> dict[str, str]:
    """Return the words of those of these lessons that exist."""
    query = select(t.lessons.c.id, t.lessons.c.text).where(t.lessons.c.id.in_(ids))
    return {row.id: row.text for row in conn.execute(query)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidLessons:
    """Numbers of lessons that were said since a time: all, the new ones, and those new ones that were superseded."""

    said: int
    new: int
    superseded: int


def count_since(conn: Connection, since: float) -> SaidLessons:
    """Return how many lessons were said since then, how many for the first time, and how many of these are out."""
    is_new = t.lessons.c.made_at >= since
    is_out = t.lessons.c.state == LessonState.SUPERSEDED.value
    new = func.count().filter(is_new)
    superseded = func.count().filter(is_new, is_out)
    row = conn.execute(select(func.count(), new, superseded).where(_said_at >= since)).one()
    return SaidLessons(said=int(row[0]), new=int(row[1]), superseded=int(row[2]))


def newest_quotes(
    conn: Connection, lesson: str, *, before: int | None = None, limit: int
) -> list[LessonQuote]:
    """Return the evidence of a lesson, newest first. `before`: only rows with a lower number."""
    query = _quotes_query().where(t.lesson_turns.c.lesson == lesson)
    if before is not None:
        query = query.where(_quote_row < before)
    rows = conn.execute(query.order_by(_quote_row.desc()).limit(limit))
    return [_read_quote(row) for row in rows]


def newest_practice(conn: Connection, lesson: str, limit: int) -> list[tuple[str, float]]:
    """Return (turn whose prompt was asked again, time) of the newest replies of practice of a lesson."""
    link = t.practice_lessons.c
    query = (
        select(t.practice_turns.c.source, t.exchanges.c.admitted_at)
        .join(t.practice_lessons, link.turn == t.practice_turns.c.turn)
        .join(t.exchanges, t.exchanges.c.id == link.turn)
        .where(link.lesson == lesson)
        .order_by(t.exchanges.c.seq.desc())
    )
    return [(row.source, row.admitted_at) for row in conn.execute(query.limit(limit))]


def _has_text(search: str) -> ColumnElement[bool]:
    wanted = search.lower()
    link = t.lesson_turns.c
    quoted = select(link.lesson).where(
        link.lesson == t.lessons.c.id, func.instr(func.lower(link.words), wanted) > 0
    )
    return or_(func.instr(func.lower(t.lessons.c.text), wanted) > 0, quoted.exists())


def _places_query() -> Select[Any]:
    return select(t.lessons, _said_at.label("said_at"), _lesson_row.label("row"))


def _last_said_first(query: Select[Any], limit: int) -> Select[Any]:
    return query.order_by(_said_at.desc(), _lesson_row.desc()).limit(limit)


def _cards(conn: Connection, query: Select[Any]) -> list[LessonCard]:
    rows = conn.execute(query).all()
    ids = [row.id for row in rows]
    quotes = _newest_quote_of_each(conn, ids)
    turns = _count_by_lesson(conn, t.lesson_turns.c.lesson, ids)
    practice = _count_by_lesson(conn, t.practice_lessons.c.lesson, ids)
    curves = _curves(conn, ids)
    cards = []
    for row in rows:
        lesson = read_lesson(row)
        if lesson is None:
            continue
        card = LessonCard(
            lesson=lesson,
            place=CardPlace(said_at=row.said_at, row=row.row),
            quote=quotes.get(row.id),
            turns=turns.get(row.id, 0),
            practice=practice.get(row.id, 0),
            curve=tuple(curves.get(row.id, ())),
        )
        cards.append(card)
    return cards


def _quotes_query() -> Select[Any]:
    return select(
        t.lesson_turns, _quote_row.label("row"), t.exchanges.c.user.label("user")
    ).outerjoin(t.exchanges, t.exchanges.c.id == t.lesson_turns.c.turn)


def _newest_quote_of_each(conn: Connection, ids: Sequence[str]) -> dict[str, LessonQuote]:
    other = t.lesson_turns.alias("other")
    newest: Select[Any] = (
        select(literal_column("other.rowid"))
        .select_from(other)
        .where(other.c.lesson == t.lessons.c.id)
        .order_by(other.c.at.desc())
        .limit(1)
        .correlate(t.lessons)
    )
    query = _quotes_query().join(t.lessons, t.lessons.c.id == t.lesson_turns.c.lesson)
    query = query.where(t.lessons.c.id.in_(ids), newest.scalar_subquery() == _quote_row)
    return {row.lesson: _read_quote(row) for row in conn.execute(query)}


def _read_quote(row: Any) -> LessonQuote:
    return LessonQuote(
        turn=row.turn,
        words=row.words,
        user=row.user or "",
        weight=row.weight,
        at=row.at,
        row=row.row,
    )


def _count_by_lesson(
    conn: Connection, column: ColumnElement[str], ids: Sequence[str]
) -> dict[str, int]:
    query = select(column.label("id"), func.count().label("number"))
    rows = conn.execute(query.where(column.in_(ids)).group_by(column))
    return {row.id: row.number for row in rows}


def _curves(conn: Connection, ids: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    c = t.lesson_divergences.c
    age = func.row_number().over(partition_by=c.lesson, order_by=c.version.desc()).label("age")
    aged = select(c.lesson, c.version, c.value, age).where(c.lesson.in_(ids)).subquery()
    query = select(aged).where(aged.c.age <= CURVE_POINTS).order_by(aged.c.version)
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in conn.execute(query):
        curves.setdefault(row.lesson, []).append((row.version, row.value))
    return curves
