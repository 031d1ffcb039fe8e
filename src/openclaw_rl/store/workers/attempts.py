"""Notes and claims of the rows that the workers of each stage are working on.

A worker that began with a row and did not end it has died on it. With several workers of a stage, a note is also a
claim: nobody else takes the row while its worker runs (`registry`).
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, select, update
from sqlalchemy.dialects.sqlite import insert

from openclaw_rl.errors import StoreError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.db import Store
from openclaw_rl.store.schema import attempts
from openclaw_rl.store.workers.registry import live_workers

MAX_DEATHS = 2
"""A row on which a worker died so often is set aside."""
MAX_SET_ASIDE = 8
"""Rows that are set aside without a success between them. After that the cause is probably not the rows."""
# Counts the rows that were set aside since the last success.
_SET_ASIDE_REF = ""
_put_attempt = insert(attempts)
_begin_attempt = _put_attempt.on_conflict_do_update(
    index_elements=["stage", "ref"],
    set_={
        "count": attempts.c.count + 1,
        "pid": _put_attempt.excluded.pid,
        "worker": _put_attempt.excluded.worker,
    },
)
MAX_EXCUSED = 2
"""Deaths on a row that the machine caused and that count for nothing. More of them may be the fault of the row, for
example of a batch that needs more memory than there is."""


def excuse_deaths(store: Store, pid: int) -> int:
    """Record that the machine ended the process `pid`, not the rows that it worked on. Return their number."""
    with store.write() as conn:
        changed = conn.execute(
            update(attempts)
            .where(
                attempts.c.pid == pid,
                attempts.c.ref != _SET_ASIDE_REF,
                attempts.c.excused < MAX_EXCUSED,
            )
            .values(excused=attempts.c.excused + 1)
        )
    return changed.rowcount


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNotes:
    """The notes of one stage."""

    deaths: Mapping[str, int]
    """How often a worker died on each row that nobody works on now, or this worker does."""
    elsewhere: frozenset[str]
    """The rows that other workers work on, or keep for another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The rows that a worker got of those that it asked for."""

    refs: frozenset[str]
    deaths: Mapping[str, int]
    """How often a worker died on each of them, if it did."""


class AttemptLog:
    """The rows that a stage is working on. A worker that began with a row and did not end it has died on it.

    The notes are committed without a wait for the disk: they survive a kill of the process, which is what they count.
    """

    def __init__(self, store: Store, stage: str, worker: str = "") -> None:
        """`worker`: id of this worker's entry (`registry`); without one, others may take its rows at any time."""
        self._store = store
        self._stage = stage
        self._worker = worker or uuid.uuid4().hex
        # Rows that this process began, with their deaths before: it has not died on them, even if a full disk kept
        # their notes in the store.
        self._begun: dict[str, int] = {}
        # Of these, the rows that ended in the newest transaction.
        self._ended: dict[str, int] = {}

    def begin(self, refs: Collection[str]) -> dict[str, int]:
        """Note that the work on these rows begins. Return how often a worker died on each of them, if it did.

        For stages of one worker, or whose workers share nothing: a row of another worker is taken over.
        """
        return dict(self._begin(refs, shared=False).deaths)

    def claim(self, refs: Collection[str]) -> Claim:
        """Note that the work begins on those of the rows that no other worker has, and return them."""
        return self._begin(refs, shared=True)

    def _begin(self, refs: Collection[str], *, shared: bool) -> Claim:
        fresh = [ref for ref in refs if ref not in self._begun]
        if fresh:
            self._note_begin(fresh, shared=shared)
        begun = {ref: self._begun[ref] for ref in refs if ref in self._begun}
        deaths = {ref: count for ref, count in begun.items() if count}
        return Claim(refs=frozenset(begun), deaths=deaths)

    def _note_begin(self, refs: Collection[str], *, shared: bool) -> None:
        with self._store.write(durable=False) as conn:
            notes = self.read(conn)
            free = [ref for ref in refs if not shared or ref not in notes.elsewhere]
            if free:
                conn.execute(_begin_attempt, [self._row(ref) for ref in free])
        for ref in free:
            self._begun[ref] = notes.deaths.get(ref, 0)

    def _row(self, ref: str) -> dict[str, object]:
        """Return the note of a row whose work begins."""
        row: dict[str, object] = {"stage": self._stage, "ref": ref, "count": 1}
        return row | {"pid": os.getpid(), "worker": self._worker}

    def end(
        self, conn: Connection, refs: Collection[str] | None = None, *, success: bool = True
    ) -> None:
        """Remove the notes of these rows (None: all), in the transaction of the result."""
        if refs is None:
            refs = list(self._begun)
            named = attempts.c.ref != _SET_ASIDE_REF
        else:
            named = attempts.c.ref.in_(list(refs))
        self._take_ended(refs)
        rows = named & ~attempts.c.worker.in_(self._others(conn))
        if success:
            rows = rows | (attempts.c.ref == _SET_ASIDE_REF)
        conn.execute(delete(attempts).where(attempts.c.stage == self._stage, rows))

    def _take_ended(self, refs: Collection[str]) -> None:
        self._ended = {ref: self._begun.pop(ref) for ref in refs if ref in self._begun}

    def _others(self, conn: Connection) -> list[str]:
        """Return the ids of the other workers that run."""
        return [worker for worker in live_workers(self._store, conn) if worker != self._worker]

    def still_held(self, conn: Connection, refs: Collection[str]) -> frozenset[str]:
        """Return those of the rows that this worker still has: after a pause, another may have taken them."""
        held = select(attempts.c.ref).where(
            attempts.c.stage == self._stage,
            attempts.c.worker == self._worker,
            attempts.c.ref.in_(list(refs)),
        )
        return frozenset(conn.execute(held).scalars())

    def rest(self, conn: Connection, refs: Collection[str]) -> None:
        """Note that the work on these rows ended without a result, and keep them for another attempt.

        A worker that ends meanwhile has not died on them.
        """
        self._take_ended(refs)
        conn.execute(
            update(attempts)
            .where(
                attempts.c.stage == self._stage,
                attempts.c.worker == self._worker,
                attempts.c.ref.in_(list(refs)),
            )
            .values(count=0, excused=0)
        )

    def forget(self, refs: Collection[str] | None = None) -> None:
        """Remove the notes of these rows (None: all): the work was interrupted by something else, such as a stop."""
        try:
            with self._store.write(durable=False) as conn:
                self.end(conn, refs, success=False)
        except StoreError:
            self._begun |= self._ended
            raise

    def forget_own(self) -> None:
        """Remove all notes of this worker, which is stopped."""
        own = (attempts.c.stage == self._stage) & (attempts.c.worker == self._worker)
        with self._store.write(durable=False) as conn:
            conn.execute(delete(attempts).where(own, attempts.c.ref != _SET_ASIDE_REF))
        self._begun.clear()

    @contextmanager
    def interrupted_by(self, *errors: type[Exception]) -> Iterator[None]:
        """Forget the notes if the block raises one of these errors, which no row causes."""
        try:
            yield
        except errors:
            self._begun |= self._ended
            with contextlib.suppress(StoreError):
                self.forget()
            raise

    def deaths(self) -> dict[str, int]:
        """Return how often a worker died on each row whose work has not ended since, and on which nobody works."""
        with self._store.read() as conn:
            return dict(self.read(conn).deaths)

    def read(self, conn: Connection) -> AttemptNotes:
        """Return the notes of the stage."""
        others = set(self._others(conn))
        deaths: dict[str, int] = {}
        elsewhere = set()
        for row in conn.execute(self._notes()):
            if row.ref == _SET_ASIDE_REF:
                continue
            if row.worker in others:
                elsewhere.add(row.ref)
            else:
                deaths[row.ref] = row.deaths
        deaths |= {ref: count for ref, count in self._begun.items() if ref not in elsewhere}
        counted = {ref: count for ref, count in deaths.items() if count}
        return AttemptNotes(deaths=counted, elsewhere=frozenset(elsewhere))

    def give_up(self, conn: Connection, ref: str, deaths: int) -> Reason | None:
        """Return why a row is to be set aside; None if workers died on it less than twice, or if it is not the cause.

        The caller sets the row aside in the same transaction.
        """
        if deaths < MAX_DEATHS or self._count_set_aside(conn) >= MAX_SET_ASIDE:
            return None
        self._begun.pop(ref, None)
        conn.execute(delete(attempts).where(attempts.c.stage == self._stage, attempts.c.ref == ref))
        conn.execute(_begin_attempt, self._row(_SET_ASIDE_REF))
        detail = f"set aside: the {self._stage} worker died {deaths} times while it worked on it"
        return Reason(ReasonCode.SET_ASIDE, detail)

    def _count_set_aside(self, conn: Connection) -> int:
        """Return how many rows were set aside since the last success."""
        count = select(attempts.c.count).where(
            attempts.c.stage == self._stage, attempts.c.ref == _SET_ASIDE_REF
        )
        return conn.execute(count).scalar_one_or_none() or 0

    def _notes(self) -> Select[Any]:
        deaths = (attempts.c.count - attempts.c.excused).label("deaths")
        return select(attempts.c.ref, deaths, attempts.c.worker).where(
            attempts.c.stage == self._stage
        )
