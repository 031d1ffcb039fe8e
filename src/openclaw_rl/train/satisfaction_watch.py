"""Watch of live satisfaction: a version under which people are less satisfied is rolled back.

Each version has a test of its own, over the turns that it and its descendants answered:

- against the newest turns before it, which finds a version that is worse than those before it;
- against the best earlier window, which finds a slow decline that no single version causes.

Where several people talk to a policy, a fall has to be seen by more than a third of them, and by more than one key.

A rollback, by the watch or by hand, starts the comparison afresh: only turns that were admitted after it count. So an
automatic rollback takes back only versions that were published since the one before it. If satisfaction falls because
a person wants something else, one rollback is made at most, and not one after the other down to version 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from openclaw_rl.common.progress import Wait, WorkNote
from openclaw_rl.common.statistics.sequential_test import MeanTest
from openclaw_rl.errors import OpenClawError, StaleLease
from openclaw_rl.gates.wide_evidence import counter_checks, without_people
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policy_marks, version_files
from openclaw_rl.store.lineage.live_scores import (
    ScoreCursor,
    ScoredTurn,
    WatchMark,
    names_with_scores,
    newest_people,
    newest_score,
    newest_scores,
    read_watch_mark,
    record_watch_mark,
)
from openclaw_rl.store.lineage.policy_names import (
    OwnerFilter,
    PolicyOwner,
    count_changes,
    is_owned,
    owner_filter,
    read_heads,
)
from openclaw_rl.train.rollback import (
    RollbackPlan,
    apply_rollback,
    check_policy_files,
    plan_rollback,
)
from openclaw_rl.types import Lease, Policy

log = logging.getLogger(__name__)
WINDOW = 128
"""Scored turns before a version with which its own are compared, at most."""
PAIRED_WINDOW = 64
"""A window of so many turns is compared two turns with one: their mean has less noise, so fewer turns decide."""
LONG_WINDOW = 256
"""Scored turns of an earlier window. One half of them finds the best window, the other half is compared."""
EARLIER_WINDOWS = 8
SETTLING_TURNS = 16
"""Scored turns after an automatic rollback before the next step: the next version is compared with them."""
MAX_SETTLING_SECONDS = 86400.0
"""Seconds after an automatic rollback from which a step is taken without them."""
LONG_SHARE = 0.2
"""Share of `gate.error` for the comparison with the best earlier window."""
LOOKED_AT_ONCE = 32
"""Policies that are looked at in one iteration: after a start there may be a thousand, and a full batch waits."""
MAX_SCORES = WINDOW + LONG_WINDOW * EARLIER_WINDOWS + LONG_WINDOW // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SatisfactionFall:
    """A fall of satisfaction beyond the bound. `reference` and `since` are turns in the order of their verdicts."""

    reference: Sequence[ScoredTurn]  # the window before
    since: Sequence[ScoredTurn]  # the turns that the test has taken
    evidence: float  # of the test; 1 / error decides

    @property
    def last_good(self) -> int:
        """The newest version of the window before."""
        return max(score.version for score in self.reference)

    def describe(self) -> str:
        """Return the figures as a sentence."""
        return f"satisfaction fell from {_describe_scores(self.reference)} to {_describe_scores(self.since)}"


def find_fall(
    scores: Sequence[ScoredTurn], *, max_fall: float, error: float
) -> SatisfactionFall | None:
    """Return the fall with the most evidence, or None. Pure; the same scores give the same result.

    Each turn since a version came is compared with turns of a window before, drawn without replacement.
    `scores`: of one lineage, in the order of their verdicts; further ones continue every test. `max_fall`: fall of the
    share of satisfied turns that is accepted. For a version that is not worse, the probability that its tests ever find
    a fall is at most `error`.
    """
    versions = np.array([score.version for score in scores], dtype=np.int64)
    satisfied = np.array([score.satisfied for score in scores], dtype=np.float64)
    falls = []
    for begin, newest in _first_turns(versions):
        since = begin + np.flatnonzero(versions[begin:] > newest)
        for window, drawn_from, per_score, share in _references(satisfied[:begin]):
            turns = since[: len(drawn_from) // per_score]
            # The same at every look.
            shuffled = np.random.default_rng(versions[begin]).permutation(drawn_from)
            drawn = shuffled[: len(turns) * per_score]
            test = MeanTest(margin=max_fall, error=error * share)
            test.add(satisfied[turns] - satisfied[drawn].reshape(-1, per_score).mean(axis=1))
            if test.decision == "worse":
                reference = [scores[i] for i in window]
                after = [scores[i] for i in turns]
                falls.append(
                    SatisfactionFall(reference=reference, since=after, evidence=test.evidence_worse)
                )
    return max(falls, key=lambda fall: fall.evidence, default=None)


def find_wide_fall(
    scores: Sequence[ScoredTurn], *, max_fall: float, error: float, is_shared: bool
) -> SatisfactionFall | None:
    """Return the fall that is also seen without those who speak most for it (`gates.wide_evidence`), or None.

    Arguments as for `find_fall`. `is_shared`: whether the lineage answers several people; then one person alone, or one
    key, finds none.
    """
    fall = find_fall(scores, max_fall=max_fall, error=error)
    if fall is None:
        return None
    checks = counter_checks(fall.reference, fall.since)
    if not checks and is_shared:
        return None
    wide = fall
    for left_out in checks:
        others = without_people(scores, left_out)
        seen_by_others = find_fall(others, max_fall=max_fall, error=error)
        if seen_by_others is None:
            return None
        wide = seen_by_others
    return wide


def _first_turns(versions: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the index at which each version has its first turn, and the newest version before; finished tests not."""
    before = np.maximum.accumulate(versions[:-1])
    for index in np.flatnonzero(versions[1:] > before) + 1:
        if index >= len(versions) - LONG_WINDOW // 2:
            yield int(index), int(before[index - 1])


def _references(satisfied: NDArray[np.float64]) -> Iterator[tuple[range, range, int, float]]:
    """Yield for each test: the window before, the turns in it to draw from, how many for a turn, share of the error.

    `satisfied` [n]: of all turns before. The best earlier window is the best by every second turn. The others are drawn
    from: they had no part in the choice, so that the comparison does not favour the past.
    """
    n = len(satisfied)
    direct = range(max(0, n - WINDOW), n)
    yield direct, direct, 2 if len(direct) >= PAIRED_WINDOW else 1, 1 - LONG_SHARE
    ends = range(n - WINDOW, LONG_WINDOW - 1, -LONG_WINDOW)
    windows = [range(end - LONG_WINDOW, end) for end in ends]
    if windows:
        best = max(
            windows, key=lambda window: float(satisfied[window.start : window.stop : 2].sum())
        )
        yield best, best[1::2], 1, LONG_SHARE


def _describe_scores(scores: Sequence[ScoredTurn]) -> str:
    share = sum(score.satisfied for score in scores) / len(scores)
    first = min(score.version for score in scores)
    last = max(score.version for score in scores)
    versions = f"version {first}" if first == last else f"versions {first} to {last}"
    return f"{share:.2f} of {len(scores)} turns under {versions}"


def pause_reason(
    conn: Connection, head: Policy, now: float, *, settles: bool, owner: OwnerFilter | None = None
) -> WorkNote | None:
    """Return why no step may be taken now: training is frozen, or a rollback is too recent; None if it may.

    `now`: seconds since the epoch. `settles`: whether steps wait after an automatic rollback, at most a day. `owner`:
    whose turns train the policy.
    """
    if policy_marks.frozen_since(conn) is not None:
        details = "training is frozen (`openclaw-rl policies unfreeze` continues it)"
        return WorkNote(details, frozenset({Wait.FROZEN}))
    move = policy_marks.last_head_move(conn, head.name)
    if not settles or move is None or not move.automatic or move.to != head.version:
        return None
    count = len(newest_scores(conn, head.version, after=move.after, limit=WINDOW, owner=owner))
    if count >= SETTLING_TURNS or now - move.at > MAX_SETTLING_SECONDS:
        return None
    details = (
        f"{count} of {SETTLING_TURNS} scored turns since the automatic rollback to version {move.to}, with which the "
        "next version is compared"
    )
    return WorkNote(details, frozenset({Wait.SETTLING}))


class SatisfactionWatch:
    """Rolls back a version under which satisfaction falls. For the holder of the trainer's lease."""

    def __init__(self, store: Store, gate: GateConfig, per: PolicyOwner = "all") -> None:
        self._store = store
        self._gate = gate
        self._per = per
        # Head of each policy at the last look.
        self._seen_heads: dict[str, int] = {}
        # None before the first look.
        self._mark: WatchMark | None = None
        # The mark in the store, as far as is known.
        self._recorded: WatchMark | None = None
        # Policies to look at, in this order.
        self._pending: dict[str, None] = {}
        # Policies whose fall could not be taken back.
        self._standing_falls: set[str] = set()
        # Last good version of the fall that was logged last, of each policy.
        self._reported: dict[str, int] = {}

    @property
    def is_on(self) -> bool:
        return self._gate.watch

    def roll_back_if_worse(self, lease: Lease, lease_clock: Callable[[], float]) -> bool:
        """Roll back a policy of which the newest scores show a fall. Return whether its head has moved.

        `lease_clock` returns seconds by the clock of the lease. Raises `StaleLease`.
        """
        if not self.is_on:
            return False
        with self._store.read() as conn:
            if policy_marks.frozen_since(conn) is not None:
                return False
            heads = read_heads(conn)
            mark = self._mark or self._continue_watch(conn, heads)
            newest = self._make_mark(conn)
            scored = names_with_scores(conn, self._per, after=mark.cursor)
        self._mark = newest
        self._remember(heads, scored)
        for name in list(self._pending)[:LOOKED_AT_ONCE]:
            head = heads[name]
            self._seen_heads[name] = head
            self._standing_falls.discard(name)
            fall = self._find_fall(name, head)
            has_moved = fall is not None and self._roll_back(name, fall, lease, lease_clock)
            # Not before: with a stale lease, it is looked at again.
            del self._pending[name]
            if has_moved:
                return True
            if fall is not None:
                self._standing_falls.add(name)
        # After a start, a fall that could not be taken back is looked at again, and who was not looked at yet.
        if newest != self._recorded and not self._standing_falls and not self._pending:
            with self._store.write(durable=False) as conn:
                leases.check(conn, lease, lease_clock())
                record_watch_mark(conn, newest)
            self._recorded = newest
        return False

    def _remember(self, heads: Mapping[str, int], scored: Collection[str]) -> None:
        """Add the policies to look at: those with new scores, and those whose heads have moved."""
        for name, head in heads.items():
            if name not in scored and self._seen_heads.get(name) == head:
                continue
            if head and is_owned(self._per, name):
                self._pending[name] = None
        for name in [name for name in self._pending if name not in heads]:
            del self._pending[name]

    def _make_mark(self, conn: Connection) -> WatchMark:
        """Return what there is to look at now."""
        settings = [self._gate.max_fall, self._gate.error, self._per]
        return WatchMark(cursor=newest_score(conn), changes=count_changes(conn), settings=settings)

    def _continue_watch(self, conn: Connection, heads: Mapping[str, int]) -> WatchMark:
        """Return the mark of the last watch of this home; one before all scores if anything else changed since then."""
        mark = read_watch_mark(conn)
        now = self._make_mark(conn)
        if mark is None or (mark.changes, mark.settings) != (now.changes, now.settings):
            return WatchMark(cursor=ScoreCursor(), changes=0, settings=())
        self._seen_heads = dict(heads)
        self._recorded = mark
        return mark

    def _find_fall(self, name: str, head: int) -> SatisfactionFall | None:
        with self._store.read() as conn:
            move = policy_marks.last_head_move(conn, name)
            owner = owner_filter(self._per, name)
            after = 0 if move is None else move.after
            scores = newest_scores(conn, head, after=after, limit=MAX_SCORES, owner=owner)
            people = newest_people(conn, head, after=after, owner=owner)
        return find_wide_fall(
            scores,
            max_fall=self._gate.max_fall,
            error=self._gate.error,
            is_shared=len(people) > 1,
        )

    def _roll_back(
        self, name: str, fall: SatisfactionFall, lease: Lease, lease_clock: Callable[[], float]
    ) -> bool:
        plan = self._plan_rollback(name, fall)
        if plan is None:
            if self._reported.get(name) != fall.last_good:
                log.error(
                    "%s. No version of that time can be served: nothing is rolled back",
                    fall.describe(),
                )
            self._reported[name] = fall.last_good
            return False
        with self._store.write() as conn:
            leases.check(conn, lease, lease_clock())
            try:
                count = apply_rollback(
                    conn, plan, learn_again=False, reason=fall.describe(), automatic=True
                )
            except OpenClawError as error:
                # The head was moved since.
                raise StaleLease(str(error)) from error
        undone = ", ".join(map(str, reversed(plan.undone_versions)))
        log.error(
            "rolled back to version %d by itself: %s. Undone: versions %s, whose %d turns are not trained on again",
            *(plan.to, fall.describe(), undone, count),
        )
        return True

    def _plan_rollback(self, name: str, fall: SatisfactionFall) -> RollbackPlan | None:
        """Return the rollback to the newest version of the window before that can be served, or None."""
        oldest = min(score.version for score in fall.reference)
        with self._store.read() as conn:
            targets = version_files.rollback_targets(conn, name)
        for target in targets:
            if not oldest <= target <= fall.last_good:
                continue
            try:
                check_policy_files(self._store, name, target)
            except OpenClawError as error:
                log.warning("%s", error)
                continue
            with self._store.read() as conn:
                return plan_rollback(conn, target, name=name, keep_outstanding=True)
        return None
