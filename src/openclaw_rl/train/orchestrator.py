"""The training loop. One iteration asks the sources for a batch, and takes a step on it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from openclaw_rl.common import disk_space
from openclaw_rl.common.progress import Wait, WorkNote, join_notes
from openclaw_rl.errors import DamagedRow, DiskFull, StaleLease, StoreError, TrainerAbsent
from openclaw_rl.protocols import Batch, PolicyWork, Trainer, Waiting
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import WaitingPolicy, heads_of_names, waiting_policies
from openclaw_rl.train import policy_folders
from openclaw_rl.train.batch_sources import make_sources
from openclaw_rl.train.batch_trainer import BatchTrainer
from openclaw_rl.train.candidate_examiner import CandidateExaminer
from openclaw_rl.train.context import LoopParts, TrainContext
from openclaw_rl.train.file_monitor import FileMonitor
from openclaw_rl.train.lease_keeper import LeaseKeeper
from openclaw_rl.train.loaded_trainer import LoadedTrainer
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.tracking import StepReporter
from openclaw_rl.train.turn_queue import BatchReadiness, QueueAges
from openclaw_rl.train.version_thinning import VersionThinner
from openclaw_rl.types import Lease, Policy

log = logging.getLogger("openclaw_rl.train")
# Seconds until the store is read again without a commit, because `max_wait` may have passed.
RECHECK_SECONDS = 1.0
ASKED_AT_ONCE = 16
"""Policies that are asked in one iteration although no step of theirs is due."""
_NO_PARTS = LoopParts()


class _Answer(NamedTuple):
    """The note of a policy with this head, number of turns and oldest turn."""

    state: tuple[int, int, int]
    note: WorkNote


class TrainLoop:
    """The training loop. `run_once` does one iteration; it blocks, and must be called from one thread at a time."""

    def __init__(
        self,
        store: Store,
        trainer: Trainer,
        builder: SampleBuilder,
        settings: TrainConfig,
        root: Path,
        parts: LoopParts = _NO_PARTS,
    ) -> None:
        """`root`: folder of the policy folders."""
        self._parts = parts
        self._keeper = LeaseKeeper(store, ttl=settings.safety.lease_ttl, clock=parts.lease_clock)
        context = TrainContext(
            store=store,
            settings=settings,
            root=root.resolve(),
            per=parts.per,
            keeper=self._keeper,
            clock=parts.clock,
        )
        self._context = context
        self._monitor = FileMonitor(store)
        self._thinner = VersionThinner(store, context.root, settings.checkpoint)
        self._reporter = StepReporter(parts.tracker, parts.saver, parts.engine)
        loaded = LoadedTrainer(trainer, self._monitor, context.root)
        self._trainer = loaded
        self._examiner = CandidateExaminer(
            context, parts.gate, loaded, builder, self._reporter, self._thinner
        )
        readiness = BatchReadiness(context, builder.signal)
        self._sources = make_sources(
            context,
            builder.signal,
            readiness,
            self._examiner,
            settles=parts.watch is not None and parts.watch.is_on,
        )
        self._batches = BatchTrainer(
            context,
            loaded,
            builder,
            readiness,
            self._examiner,
            self._reporter,
            self._monitor,
            parts,
        )
        # Epoch of the lease under which the folders were cleaned up.
        self._cleaned_epoch: int | None = None
        self._next_check = 0.0
        # What each policy said last. It holds while no step is due and the policy has no other turns.
        self._answers: dict[str, _Answer] = {}
        self._queue_ages = QueueAges()
        self._compares_episodes = builder.signal.uses_episodes
        # Why the last iteration did nothing; None while there is work.
        self._waiting: WorkNote | None = None

    @property
    def _work(self) -> WorkNote:
        return self._batches.work if self._waiting is None else self._waiting

    @property
    def note(self) -> str:
        """The work or the waits of the loop, as text."""
        return self._work.describe()

    @property
    def waits(self) -> frozenset[Wait]:
        """The waits of its policies; empty while it works."""
        return self._work.waits

    def forget_attempts(self) -> None:
        """Forget what is being trained on: the end of this process, which is due, is not the fault of the batch."""
        with contextlib.suppress(StoreError):
            self._batches.forget_attempts()
            self._examiner.forget_attempts()

    def close(self) -> None:
        """Release the lease."""
        self._keeper.close()

    def run_once(self) -> bool:
        """Run one iteration with at most one step. Return False if there was nothing to do.

        Raises `OpenClawError` if `MAX_CONSECUTIVE_FAILURES` turns fail one by one; the last of them stays in the queue.
        Raises `DiskFull`, with nothing published, while a disk is full.
        """
        try:
            with disk_space.raise_disk_full():
                return self._run_iteration()
        except DiskFull as error:
            self._trainer.reject_step(str(error))
            # The interrupted step may have left a folder, or no line in the metrics.
            self._cleaned_epoch = None
            raise

    def _run_iteration(self) -> bool:
        self._batches.begin_iteration()
        lease = self._keeper.acquire()
        if lease is None:
            self._waiting = WorkNote(self._keeper.waiting_note(), frozenset({Wait.LEASE}))
            return False
        try:
            if lease.epoch != self._cleaned_epoch:
                self._clean_up(lease)
            elif not self._context.store.has_changed() and time.monotonic() < self._next_check:
                return False
            self._next_check = time.monotonic() + RECHECK_SECONDS
            watch = self._parts.watch
            if watch is not None and watch.roll_back_if_worse(lease, self._keeper.clock):
                return True
            return self._use_sources()
        except DamagedRow as error:
            log.warning("turn %s is left out: %s", error.turn, error)
            self._batches.drop_turns({error.turn: Reason(ReasonCode.DAMAGED, str(error))})
            return True
        except TrainerAbsent as error:
            self._waiting = WorkNote(str(error), frozenset({Wait.TRAINER}))
            return False
        except StaleLease as error:
            log.warning("nothing was published, starting over: %s", error)
            self._trainer.reject_step(str(error))
            self._keeper.renew_now()
            return True

    def _use_sources(self) -> bool:
        """Train on the next batch, or note what is waited for. Return False if there was nothing to do."""
        result = self._next_batch()
        if isinstance(result, Batch):
            self._waiting = None
            has_worked = self._batches.train_batch(result)
            if has_worked:
                self._next_check = 0.0
                self._thinner.thin_versions(self._context.clock())
        else:
            self._waiting = result.note
            has_worked = result.has_worked
            if result.polls:
                self._next_check = 0.0
        if not has_worked:
            self._thinner.remove_due()
            self._monitor.examine_changed()
        return has_worked

    def _next_batch(self) -> Batch | Waiting:
        """Return the first batch that a source has for a policy; else practise, or say what each policy waits for.

        A policy of which no step is due is asked again once it has other turns. Of these, a few are asked in an
        iteration, so that none that becomes due waits for all of them.
        """
        examined, canaries = self._examiner.find_candidates()
        waiting, heads = self._list_policies(examined, canaries)
        notes: dict[str, WorkNote] = {}
        idle = []
        left = ASKED_AT_ONCE
        for policy in waiting:
            state = (heads[policy.name], policy.turns, policy.oldest)
            answer = self._answers.get(policy.name)
            if not self._is_due(policy):
                if answer is not None and answer.state == state:
                    notes[policy.name] = answer.note
                    if Wait.TURNS in answer.note.waits:
                        idle.append(policy.name)
                    continue
                if not left:
                    self._next_check = 0.0
                    continue
                left -= 1
            candidate = examined or canaries.get(policy.name)
            result = self._ask_sources(self._open_policy(policy.name, candidate))
            self._answers.pop(policy.name, None)
            if isinstance(result, Batch) or result.has_worked:
                return result
            note = result.note
            notes[policy.name] = note
            if Wait.FROZEN in note.waits:
                # All are.
                break
            if Wait.TURNS in note.waits:
                idle.append(policy.name)
            if result.polls:
                self._next_check = 0.0
            else:
                self._answers[policy.name] = _Answer(state, note)
        return self._practise(idle, notes)

    def _list_policies(
        self, examined: Policy | None, canaries: Mapping[str, Policy]
    ) -> tuple[list[WaitingPolicy], dict[str, int]]:
        """Return the policies that may have work, and their heads: that of the examined candidate alone, if any."""
        practice = self._parts.practice
        batch = self._context.settings.batch
        with self._context.store.read() as conn:
            waiting = waiting_policies(
                conn,
                self._parts.per,
                full=1 if self._compares_episodes else batch.min_step_turns,
                overdue_before=self._context.clock() - batch.max_wait,
            )
            listed = {name: WaitingPolicy(name, 0, 0, True) for name in canaries}
            for policy in waiting:
                listed.setdefault(policy.name, policy)
            if practice is not None:
                for name in practice.policies(conn):
                    listed.setdefault(name, WaitingPolicy(name, 0, 0, False))
            if examined is not None:
                listed = {examined.name: WaitingPolicy(examined.name, 0, 0, True)}
            heads = heads_of_names(conn, listed)
        return list(listed.values()), heads

    def _is_due(self, policy: WaitingPolicy) -> bool:
        """Return whether a policy may have a step now; also if a clock stamped its turns hours ahead."""
        if policy.is_due or not policy.turns:
            return policy.is_due
        seconds = self._queue_ages.seconds(policy.name, str(policy.oldest), self._keeper.clock())
        return seconds >= self._context.settings.batch.max_wait

    def _open_policy(self, name: str, candidate: Policy | None) -> PolicyWork:
        with self._context.store.read() as conn:
            head = policies.head(conn, name)
        return PolicyWork(
            head=head,
            candidate=candidate,
            lease=self._keeper.require_lease(),
            lease_now=self._keeper.clock(),
        )

    def _ask_sources(self, policy: PolicyWork) -> Batch | Waiting:
        for source in self._sources:
            result = source.next_batch(policy)
            if result is not None:
                return result
        raise AssertionError("the last source always has an answer")

    def _practise(self, idle: Sequence[str], notes: Mapping[str, WorkNote]) -> Batch | Waiting:
        """Return a batch of practice for one of the idle policies, the one with the oldest head first."""
        joined = dict(notes)
        practice = self._parts.practice
        if practice is None or not idle:
            return Waiting(note=join_notes(joined))
        with self._context.store.read() as conn:
            heads = policies.heads_of(conn, idle)
        for head in sorted(heads, key=lambda policy: policy.created_at):
            result = practice.next_batch(
                PolicyWork(
                    head=head,
                    candidate=None,
                    lease=self._keeper.require_lease(),
                    lease_now=self._keeper.clock(),
                )
            )
            if isinstance(result, Batch):
                return result
            if result is None:
                continue
            note = joined[head.name]
            details = f"{note.details}; {result.note.details}"
            joined[head.name] = replace(note, details=details)
            if result.has_worked:
                return replace(result, note=WorkNote(join_notes(joined).describe()))
            if result.others_wait:
                break
        return Waiting(note=join_notes(joined))

    def _clean_up(self, lease: Lease) -> None:
        context = self._context
        self._batches.reject_fatal_batch(lease)
        on_disk = policy_folders.versions_on_disk(context.root)
        with context.store.read() as conn:
            newest = policies.require_version(conn, policies.next_version(conn) - 1)
            trained = [use.turn for use in policies.uses_of_version(conn, newest.version)]
            folders = policies.folders_of_versions(conn, on_disk)
        self._batches.count_failures()
        policy_folders.remove_orphans(context.root, folders, before=self._keeper.acquired_at)
        self._thinner.look_at_all()
        self._thinner.thin_versions(context.clock())
        self._cleaned_epoch = lease.epoch
        self._reporter.catch_up(newest, trained)
