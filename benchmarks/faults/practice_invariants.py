"""Invariants of practice over a store. Each check returns its violations as sentences."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.faults.client_log import ForgottenLesson
from sqlalchemy import Connection, select

from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import practice_turns
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.turns import PRACTICE_JUDGE
from openclaw_rl.types import ExchangeStatus, Kind, Origin, Policy, PolicyState, TurnState

_MAX_EVENTS = 1_000_000
_DISCARDED = (PolicyState.REJECTED, PolicyState.ROLLED_BACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PracticeRow:
    """One turn of practice as it is stored. `users`: versions that were trained on it."""

    id: str
    seq: int
    status: str
    state: str
    is_teacher: bool
    version: int
    is_trainable: bool
    users: tuple[int, ...]


def check_practice(
    conn: Connection, settings: PracticeConfig, forgotten: Iterable[ForgottenLesson]
) -> list[str]:
    """Return the violations of what is promised about turns of practice at any time."""
    rows = _read_rows(conn)
    versions = {policy.version: policy for policy in policies.list_all(conn)}
    return [
        *_check_rounds(rows, settings),
        *_check_uses(rows, versions),
        *_check_parts(conn, rows),
        *_check_forgotten(conn, rows, forgotten),
    ]


def check_head_state(conn: Connection) -> Iterator[str]:
    """The head is a version that was published."""
    head = policies.head(conn)
    if head.state is not PolicyState.LIVE:
        yield f"the head is version {head.version}, which is {head.state.value}"


def _read_rows(conn: Connection) -> list[_PracticeRow]:
    x = t.exchanges.c
    c = t.turns.c
    users: dict[str, list[int]] = {}
    for version, turn in conn.execute(
        select(t.uses.c.policy, t.uses.c.turn).order_by(t.uses.c.policy)
    ):
        users.setdefault(turn, []).append(version)
    query = select(c.id, c.seq, c.state, c.untrainable, x.status, x.origin, x.version)
    query = (
        query.join(t.exchanges, x.seq == c.seq).where(c.kind == Kind.PRACTICE.value).order_by(c.seq)
    )
    return [
        _PracticeRow(
            id=row.id,
            seq=row.seq,
            status=row.status,
            state=row.state,
            is_teacher=row.origin in (Origin.TEACHER.value, Origin.CONTRAST.value),
            version=row.version,
            is_trainable=row.state == TurnState.JUDGED.value and row.untrainable is None,
            users=tuple(users.get(row.id, ())),
        )
        for row in conn.execute(query)
    ]


def _rounds(rows: list[_PracticeRow], size: int) -> Iterator[list[_PracticeRow]]:
    """Yield the replies of each round. They are stored in one transaction, and so have numbers without a gap."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _check_rounds(rows: list[_PracticeRow], settings: PracticeConfig) -> Iterator[str]:
    """A round is stored with all of its replies or not at all, and trained on as a whole."""
    teacher = round(settings.replies * settings.teacher_share)
    for found in _rounds(rows, settings.replies):
        name = f"the round of {found[0].id}"
        gaps = any(b.seq != a.seq + 1 for a, b in itertools.pairwise(found))
        if len(found) < settings.replies or gaps:
            yield f"{name} is stored in part: {len(found)} replies of {settings.replies}"
        elif [row.is_teacher for row in found] != [
            place < teacher for place in range(settings.replies)
        ]:
            yield f"{name} has not {teacher} replies of the teacher, followed by those of the head"
        elif len({row.version for row in found[teacher:]}) > 1:
            yield f"{name} has replies of several heads"
        elif len({row.users for row in found if row.is_trainable}) > 1 and not _was_bisected(found):
            yield f"{name} was trained on in part"


def _was_bisected(found: Iterable[_PracticeRow]) -> bool:
    """Return whether the round was divided, because trainers died on it twice."""
    return any(len(row.users) > 1 for row in found)


def _check_uses(rows: Iterable[_PracticeRow], versions: Mapping[int, Policy]) -> Iterator[str]:
    """No turn of practice is used by two versions, unless one of them was discarded."""
    for row in rows:
        kept = [version for version in row.users if versions[version].state not in _DISCARDED]
        if len(kept) > 1:
            yield f"the practice turn {row.id} is used by the versions {kept}"


def _check_parts(conn: Connection, rows: Iterable[_PracticeRow]) -> Iterator[str]:
    """Each reply is whole: finished, with its source, its lessons and its verdict, and in no conversation."""
    sources = set(conn.execute(select(t.practice_turns.c.turn)).scalars())
    linked = set(conn.execute(select(t.practice_lessons.c.turn)).scalars())
    judged = set(
        conn.execute(
            select(t.verdicts.c.turn).where(t.verdicts.c.judge == PRACTICE_JUDGE)
        ).scalars()
    )
    reacted = set(conn.execute(select(t.reactions.c.turn)).scalars())
    for row in rows:
        if row.status != ExchangeStatus.DONE.value:
            yield f"the practice turn {row.id} is {row.status}"
        if row.id not in sources or row.id not in linked:
            yield f"the practice turn {row.id} has no source, or no lesson"
        if row.id not in judged and row.state != TurnState.DROPPED.value:
            yield f"the practice turn {row.id} has no verdict"
        if row.id in reacted:
            yield f"the practice turn {row.id} has a reaction"


def _check_forgotten(
    conn: Connection, rows: Iterable[_PracticeRow], forgotten: Iterable[ForgottenLesson]
) -> Iterator[str]:
    """No version that was published after a lesson was forgotten was the first to be trained on its practice."""
    published = {
        int(event.ref): event.at
        for event in events.read_after(conn, 0, _MAX_EVENTS, kinds=["policy.live"])
    }
    users = {row.id: row.users for row in rows}
    for lesson in forgotten:
        late: Counter[int] = Counter()
        for turn in practice_turns.turns_of_lessons(conn, [lesson.id]):
            first = next((v for v in users.get(turn, ()) if v in published), None)
            late.update([first] if first is not None and published[first] > lesson.at else [])
        for version, count in late.items():
            yield f"version {version} was trained on {count} replies of lesson {lesson.id}, which was forgotten before"
