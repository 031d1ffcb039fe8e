"""Examinations of lessons: whether a version still answers right with some lessons in the prompt.

A result belongs to the texts in their order, to the base model, and to the version that was asked. Version 0 is the
base, which teaches in practice. The gateway examines (`serve/lessons/lesson_examiner.py`): what it serves, and what the
trainer has asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import blake2b

from sqlalchemy import (
    Column,
    Connection,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    Table,
    Text,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import from_json, to_json

# Whether answers stay right under several lessons.
_examined_lessons = Table(
    "examined_lessons",
    t.metadata,
    # Of their texts and of the base model.
    Column("digest", LargeBinary, primary_key=True),
    Column("version", Integer, ForeignKey("policies.version"), primary_key=True),
    Column("asked", Integer, nullable=False),
    Column("right_with", Integer, nullable=False),
    Column("right_without", Integer, nullable=False),
    Column("is_sound", Integer, nullable=False),
    Column("at", Float, nullable=False),
)
# JSON list.
_WAITING = (
    Column("digest", LargeBinary, primary_key=True),
    Column("texts", LargeBinary, nullable=False),
)
# Of lessons that the trainer may practise.
_waiting_examinations = Table("waiting_examinations", t.metadata, *_WAITING)
# JSON; NULL: not measured.
_ANSWERS = Column("answers", LargeBinary, nullable=False), Column("capacity", Integer)
_base_answers = Table(
    "base_answers", t.metadata, Column("identity", Text, primary_key=True), *_ANSWERS
)

BASE_VERSION = 0
ASSUMED_CAPACITY = 3
"""Lessons in one prompt until it is measured how many the base carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationResult:
    """How many of the questions that were asked were answered right, with the lessons and without them.

    `is_sound`: whether the lessons cost no more correctness than is accepted. An examination ends as soon as they do,
    so that fewer questions are asked then. `at`: seconds since the epoch.
    """

    asked: int
    right_with: int
    right_without: int
    is_sound: bool
    at: float


class WithdrawalCode(StrEnum):
    """Why a lesson is withdrawn: answers are wrong with it alone, or with it and others that are right without it."""

    ALONE = "alone"
    BESIDE_OTHERS = "beside_others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """Why a lesson is withdrawn, with the figures of the examination.

    `asked`: questions; `right_with` and `right_without`: answers that were right with and without the lesson. `beside`:
    ids of the lessons beside which it costs correctness. `at`: seconds since the epoch.
    """

    code: WithdrawalCode
    asked: int
    right_with: int
    right_without: int
    beside: tuple[str, ...] = ()
    at: float


def lessons_digest(texts: Sequence[str], identity: str, key: bytes) -> bytes:
    """Return a keyed digest [16] of the texts of lessons, in their order, for a base model."""
    joined = "\0".join((identity, *texts))
    return blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16, key=key).digest()


def record_result(conn: Connection, digest: bytes, version: int, result: ExaminationResult) -> None:
    """Store what an examination found; an earlier result is replaced. It no longer waits."""
    row = {"digest": digest, "version": version, **asdict(result)}
    conn.execute(insert(_examined_lessons).values(row).prefix_with("OR REPLACE"))
    conn.execute(delete(_waiting_examinations).where(_waiting_examinations.c.digest == digest))


def find_result(
    conn: Connection, digest: bytes, *, policy: str | None = None
) -> ExaminationResult | None:
    """Return what is known of some lessons; None if too little is.

    The base counts, and with `policy` the newest version of that policy that was asked, if any was. If one of them is
    not sound, that result is returned.
    """
    c = _examined_lessons.c
    query = select(_examined_lessons).where(c.digest == digest, c.version == BASE_VERSION)
    base = _read_result(conn.execute(query).one_or_none())
    if policy is None or (base is not None and not base.is_sound):
        return base
    served = select(_examined_lessons).join(t.policies, t.policies.c.version == c.version)
    served = served.where(
        c.digest == digest, c.version != BASE_VERSION, t.policies.c.name == policy
    )
    newest = _read_result(conn.execute(served.order_by(c.version.desc()).limit(1)).one_or_none())
    if newest is not None and not newest.is_sound:
        return newest
    return base


def is_any_refused(conn: Connection, texts: Sequence[str], identity: str, key: bytes) -> bool:
    """Return whether the base is known to answer wrong with all of these texts in its prompt, or with one of them."""
    digests = [
        lessons_digest(texts, identity, key),
        *(lessons_digest([text], identity, key) for text in texts),
    ]
    c = _examined_lessons.c
    refused = select(c.digest).where(
        c.digest.in_(digests), c.version == BASE_VERSION, c.is_sound == 0
    )
    return conn.execute(refused.limit(1)).first() is not None


def _read_result(row: object) -> ExaminationResult | None:
    if row is None:
        return None
    values: Mapping[str, float] = row._mapping  # type: ignore[attr-defined]
    return ExaminationResult(
        asked=int(values["asked"]),
        right_with=int(values["right_with"]),
        right_without=int(values["right_without"]),
        is_sound=bool(values["is_sound"]),
        at=values["at"],
    )


def request_examination(conn: Connection, texts: Sequence[str], identity: str, key: bytes) -> None:
    """Ask for the examination of some lessons under the base."""
    row = {"digest": lessons_digest(texts, identity, key), "texts": to_json(list(texts))}
    conn.execute(insert(_waiting_examinations).values(row).on_conflict_do_nothing())


def waiting_texts(conn: Connection, limit: int) -> list[tuple[str, ...]]:
    """Return the texts of the lessons whose examination was asked for."""
    rows = conn.execute(select(_waiting_examinations.c.texts).limit(limit)).scalars()
    return [tuple(from_json(raw)) for raw in rows]


def clear_waiting(conn: Connection) -> None:
    """Delete the texts that wait: one of them may be of a lesson that is being deleted. Practice asks again."""
    conn.execute(delete(_waiting_examinations))


def read_base_answers(conn: Connection, identity: str) -> dict[str, str] | None:
    """Return question -> answer of a base without lessons; None if it was not asked yet."""
    raw = conn.scalar(select(_base_answers.c.answers).where(_base_answers.c.identity == identity))
    return None if raw is None else dict(from_json(raw))


def record_base_answers(conn: Connection, identity: str, answers: Mapping[str, str]) -> None:
    """Store what a base answers without lessons."""
    row = {"identity": identity, "answers": to_json(dict(answers))}
    conn.execute(insert(_base_answers).values(row).prefix_with("OR REPLACE"))


def record_capacity(conn: Connection, identity: str, capacity: int) -> None:
    """Store how many lessons a base carries, whose answers are stored already."""
    conn.execute(
        update(_base_answers).where(_base_answers.c.identity == identity).values(capacity=capacity)
    )


def measured_capacity(conn: Connection, identity: str) -> int | None:
    """Return how many lessons a base carries; None if that was not measured yet."""
    capacity = conn.scalar(
        select(_base_answers.c.capacity).where(_base_answers.c.identity == identity)
    )
    return None if capacity is None else int(capacity)


def lesson_capacity(conn: Connection, identity: str) -> int:
    """Return how many lessons a prompt carries at most."""
    measured = measured_capacity(conn, identity)
    return ASSUMED_CAPACITY if measured is None else measured


def count_results(conn: Connection) -> int:
    """Return the number of stored results."""
    return conn.execute(select(func.count()).select_from(_examined_lessons)).scalar_one()


def withdrawal_to_json(withdrawal: Withdrawal | None) -> bytes | None:
    """Return the JSON of a withdrawal for its column; None for none."""
    return None if withdrawal is None else to_json(asdict(withdrawal))


def withdrawal_from_json(raw: bytes | None) -> Withdrawal | None:
    """Return what `withdrawal_to_json` wrote. Raises `ValueError`, `TypeError` or `LookupError` if it is damaged."""
    if raw is None:
        return None
    values = from_json(raw)
    code = WithdrawalCode(values.pop("code"))
    beside = tuple(values.pop("beside"))
    return Withdrawal(code=code, beside=beside, **values)
