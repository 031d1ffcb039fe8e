"""Writes verdicts, and decides with each explicit one which judges are trusted."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence

from sqlalchemy import Connection

from openclaw_rl.judge.lessons.lesson_maker import LessonMaker
from openclaw_rl.judge.turn_queue import attempt_ref
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.person_scores import Person, person_of
from openclaw_rl.store.trust.judge_trust import JudgeTrust, read_trust
from openclaw_rl.store.trust.update import update_trust
from openclaw_rl.store.workers.attempts import AttemptLog
from openclaw_rl.types import Verdict

log = logging.getLogger("openclaw_rl.judge")
MAX_PENDING = 100
"""Verdicts after which trust is updated although nobody scored anything: somebody may flood."""


class VerdictWriter:
    """Stores verdicts, each with its lesson and with the end of the work on it, in one transaction."""

    def __init__(
        self, store: Store, attempts: AttemptLog, lessons: LessonMaker, min_kappa: float
    ) -> None:
        self._store = store
        self._attempts = attempts
        self._lessons = lessons
        self._min_kappa = min_kappa
        self.judged_count = 0
        # Whose verdicts are trained on, for whom.
        self.trust = JudgeTrust(frozenset(), {})
        # Since the last process, `judge.min_kappa` may have changed.
        self.trust_is_current = False
        # Verdicts since trust was updated.
        self._pending = 0

    def save_verdicts(self, verdicts: Sequence[Verdict], refs: Sequence[str] = ()) -> None:
        """Store verdicts; `refs`: the claimed turns on which the work ends with them, or without any.

        A turn that another worker has taken meanwhile gets its verdict from that worker.
        """
        with self._store.write(durable=False) as conn:
            if refs:
                verdicts = self._end_attempts(conn, verdicts, refs)
            for verdict in verdicts:
                log.debug(
                    "%s: score %s by %s, %d votes, %d hints",
                    verdict.turn,
                    verdict.score,
                    verdict.judge,
                    len(verdict.votes),
                    len(verdict.hints),
                )
                self._save(conn, verdict)
            self._pending += len(verdicts)
            scored = [verdict.turn for verdict in verdicts if verdict.explicit]
            if scored or self._pending >= MAX_PENDING:
                self._update_trust(conn, scored)

    def _end_attempts(
        self, conn: Connection, verdicts: Sequence[Verdict], refs: Sequence[str]
    ) -> list[Verdict]:
        """End the work on claimed turns; keep those without a verdict. Return the verdicts on turns still held."""
        held = self._attempts.still_held(conn, refs)
        by_ref = {attempt_ref((verdict.turn, verdict.revision)): verdict for verdict in verdicts}
        judged = [ref for ref in refs if ref in held and ref in by_ref]
        self._attempts.end(conn, [ref for ref in refs if ref in by_ref])
        self._attempts.rest(conn, [ref for ref in refs if ref not in by_ref])
        return [by_ref[ref] for ref in judged]

    def _save(self, conn: Connection, verdict: Verdict) -> None:
        """Store a verdict, unless its turn no longer waits for it.

        The turn was erased, its reaction has changed and is read again, or another worker was first: a turn that needs
        no judge is not claimed.
        """
        if not turns.awaits_verdict(conn, verdict.turn, verdict.revision):
            return
        turns.add_verdict(conn, verdict)
        self.judged_count += 1
        person = person_of(conn, verdict.turn) if self.trust.own else None
        is_trusted = self.trust.is_trusted(verdict.judge, person)
        self._lessons.update(conn, verdict, is_trusted=is_trusted)

    def save_comparisons(self, verdicts: Sequence[Verdict]) -> None:
        """Store the verdicts of judge and signals on turns that have an explicit one, which stays in force."""
        with self._store.write(durable=False) as conn:
            for verdict in verdicts:
                # The turn was erased meanwhile.
                with contextlib.suppress(KeyError):
                    turns.add_comparison(conn, verdict)
            self._update_trust(conn, [verdict.turn for verdict in verdicts])

    def _update_trust(self, conn: Connection, scored: Sequence[str]) -> None:
        """Update trust by the new scores of these turns; for the first time, by those of all people."""
        before = read_trust(conn)
        people = self._people_of(conn, scored) if self.trust_is_current else None
        self.trust = update_trust(conn, self._min_kappa, time.time(), people)
        self.trust_is_current = True
        self._pending = 0
        for judge in sorted(self.trust.common - before.common):
            log.warning(
                "%s does not agree with people's explicit feedback (judge.min_kappa %g): its verdicts are no longer "
                "trained on, explicit feedback is. `openclaw-rl doctor --troubles` shows the figures and the cure.",
                judge,
                self._min_kappa,
            )
        for judge in sorted(before.common - self.trust.common):
            log.info("The verdicts of %s are trained on again.", judge)

    @staticmethod
    def _people_of(conn: Connection, ids: Sequence[str]) -> set[Person]:
        people = {person_of(conn, turn) for turn in ids}
        return {person for person in people if person is not None}
