"""The training loop. One iteration claims turns, builds a batch, takes a step and publishes or rejects the result."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from openclaw_rl.common import disk_space, steady_clock
from openclaw_rl.common.progress import Wait, WorkNote, join_notes
from openclaw_rl.errors import (
    DamagedRow,
    DiskFull,
    OpenClawError,
    StaleLease,
    StoreError,
    TooLarge,
    TrainerAbsent,
)
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.practice.session import PracticeSession
from openclaw_rl.protocols import Trainer
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store import heartbeats, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import candidates, policies, training_queue
from openclaw_rl.store.lineage.policy_names import (
    PolicyOwner,
    name_of_turn,
    owner_filter,
    waiting_names,
)
from openclaw_rl.store.lineage.token_credit import record_credit
from openclaw_rl.store.lineage.version_stats import satisfaction_metrics, untrusted_judges
from openclaw_rl.train import batch_bisection, policy_folders
from openclaw_rl.train.candidate_examiner import CandidateExaminer
from openclaw_rl.train.checkpoints import CheckpointWriter, is_last_version
from openclaw_rl.train.file_monitor import FileMonitor
from openclaw_rl.train.lease_keeper import LeaseKeeper
from openclaw_rl.train.loaded_trainer import LoadedTrainer
from openclaw_rl.train.replay import ReplaySelector
from openclaw_rl.train.retraining import RetrainingLedger
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.satisfaction_watch import SatisfactionWatch, pause_reason
from openclaw_rl.train.step_outcome import StepOutcome, failed_version, make_uses
from openclaw_rl.train.tracking import (
    MetricsTracker,
    StepReporter,
    number_of_turns,
    storable_metrics,
)
from openclaw_rl.train.version_thinning import VersionThinner
from openclaw_rl.types import JudgedTurn, Lease, Policy

log = logging.getLogger("openclaw_rl.train")
NO_GRADIENT_REASON = Reason(ReasonCode.NO_GRADIENT, "the batch that it was in had no gradient")
# Seconds until the store is read again without a commit, because `max_wait` may have passed.
RECHECK_SECONDS = 1.0


class TrainLoop:
    """The training loop. `run_once` does one iteration; it blocks, and must be called from one thread at a time."""

    def __init__(
        self,
        store: Store,
        trainer: Trainer,
        builder: SampleBuilder,
        train: TrainConfig,
        root: Path,
        *,
        engine: str = "engine",
        tracker: MetricsTracker | None = None,
        saver: CheckpointWriter | None = None,
        eval_every: int | None = None,
        gate: CandidateGate | None = None,
        watch: SatisfactionWatch | None = None,
        per: PolicyOwner = "all",
        practice: PracticeSession | None = None,
        clock: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] = steady_clock.boot_seconds,
    ) -> None:
        """`engine`: name of the engine that samples; part of the names of metrics that compare it with the trainer.

        `gate`: examines each result before it becomes the head; None: the metrics of the step decide alone.
        `per`: who has a policy of its own, trained from its own turns alone. `practice`: of lessons, while no batch is
        complete; None: none. `lease_clock`: seconds by a clock that does not jump.
        """
        self._engine = engine
        self._eval_every = eval_every
        self._reporter = StepReporter(tracker, saver, engine)
        self._store = store
        self._builder = builder
        self._train = train
        self._per = per
        self._replays = ReplaySelector(store, builder, train, per)
        self._ledger = RetrainingLedger(store)
        self._root = root.resolve()
        self._monitor = FileMonitor(store)
        self._thinner = VersionThinner(store, self._root, train.checkpoint)
        self._clock = clock
        self._watch = watch
        self._practice = practice
        self._trainer = LoadedTrainer(trainer, self._monitor, self._root)
        # Epoch of the lease under which the folders were cleaned up.
        self._cleaned_epoch: int | None = None
        # `_ended`: of a batch in the iteration before, else 0.
        self._next_check = self._began = self._ended = 0.0
        # Counts of dropped turns since the last version, by metric name.
        self._drop_counts: Counter[str] = Counter()
        # Heads of policies that wait for turns.
        self._idle: list[Policy] = []
        # The batch is part of a failed one that is being bisected, or of an undo.
        self._is_fixed = False
        # Turns tried alone that failed in a row, also before a restart.
        self._consecutive_failures = 0
        self._queue_ages = batch_bisection.QueueAges()
        self._attempts = heartbeats.AttemptLog(store, "train")
        self._work = WorkNote("starting")
        self._keeper = LeaseKeeper(store, ttl=train.safety.lease_ttl, clock=lease_clock)
        self._examiner = CandidateExaminer(store, gate, self._keeper, clock, self._trainer, builder)

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
            self._attempts.forget()
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
        self._began = self._ended or time.perf_counter()
        self._ended = 0.0
        lease = self._keeper.acquire()
        if lease is None:
            self._work = WorkNote(self._keeper.waiting_note(), frozenset({Wait.LEASE}))
            return False
        try:
            if lease.epoch != self._cleaned_epoch:
                self._clean_up(lease)
            elif not self._store.has_changed() and time.monotonic() < self._next_check:
                return False
            self._next_check = time.monotonic() + RECHECK_SECONDS
            if self._watch is not None and self._watch.roll_back_if_worse(
                lease, self._keeper.clock
            ):
                return True
            if self._take_step():
                return True
            self._thinner.remove_due()
            self._monitor.examine_changed()
            return False
        except DamagedRow as error:
            log.warning("turn %s is left out: %s", error.turn, error)
            self._drop_turns({error.turn: Reason(ReasonCode.DAMAGED, str(error))})
            return True
        except TrainerAbsent as error:
            self._work = WorkNote(str(error), frozenset({Wait.TRAINER}))
            return False
        except StaleLease as error:
            log.warning("nothing was published, starting over: %s", error)
            self._trainer.reject_step(str(error))
            self._keeper.renew_now()
            return True

    def _take_step(self) -> bool:
        """Continue with the candidate, or with the first policy that has a complete batch.

        Raises `DamagedRow` and `StaleLease`.
        """
        examined, canaries = self._examiner.find_candidates(self._per)
        with self._store.read() as conn:
            practising = self._practice.policies(conn) if self._practice is not None else ()
            names = (
                [*canaries, *waiting_names(conn, self._per), *practising]
                if examined is None
                else [examined.name]
            )
        notes = dict[str, WorkNote]()
        self._idle = []
        for name in dict.fromkeys(names):
            if self._take_step_of(name, examined or canaries.get(name)):
                return True
            notes[name] = self._work
        return self._practise(notes)

    def _take_step_of(self, name: str, candidate: Policy | None) -> bool:
        with self._store.read() as conn:
            head = policies.head(conn, name)
            owner = owner_filter(self._per, name)
            settles = self._watch is not None and self._watch.is_on
            pause = pause_reason(conn, head, self._clock(), settles=settles, owner=owner)
        if pause is not None:
            self._work = pause
            return False
        if candidate is not None:
            return self._examine_candidate(candidate, head)
        with self._store.read() as conn:
            items = self._ledger.next_turns(conn, head)
            self._is_fixed = True
            if not self._ledger.is_active:
                items, self._is_fixed = batch_bisection.next_batch(
                    conn, head, self._builder.signal, self._train, owner
                )
            untrusted = ", ".join(sorted(untrusted_judges(conn)))
        if is_last_version(head, self._train) and not self._ledger.is_active:
            last = f"train.max_steps {self._train.max_steps} is reached: version {head.version} is the last"
            self._work = WorkNote(last, frozenset({Wait.MAX_STEPS}))
            return False
        if not self._ledger.is_active and not self._is_batch_ready(name, items, len(items)):
            details = batch_bisection.batch_note(items, self._builder.signal, self._train)
            details += (
                f"; verdicts of {untrusted} are not trained on (judge.min_kappa)"
                if untrusted
                else ""
            )
            self._work = WorkNote(details, frozenset({Wait.TURNS}))
            self._idle.append(head)
            return False
        return self._train_batch(head, items)

    def _practise(self, notes: dict[str, WorkNote]) -> bool:
        practice = self._practice
        keeper = self._keeper
        batch = practice and practice.next_batch(
            self._idle, notes, keeper.require_lease(), keeper.clock()
        )
        if batch:
            self._is_fixed = True
            return self._train_batch(*batch)
        has_work = practice is not None and practice.has_work
        joined = join_notes(notes)
        self._work = WorkNote(joined.describe()) if has_work else joined
        # There is work without a commit.
        self._next_check *= not has_work
        return has_work

    def _examine_candidate(self, candidate: Policy, head: Policy) -> bool:
        """Do the next piece of the examination. Return False if it waits. Raises `StaleLease`."""
        decided = self._examiner.examine(candidate, head)
        waits = frozenset[Wait]() if self._examiner.has_worked else frozenset({Wait.GATE})
        self._work = WorkNote(self._examiner.note, waits)
        if self._examiner.polls:
            self._next_check = 0.0
        if decided is None:
            return self._examiner.has_worked
        with self._store.read() as conn:
            used = [use.turn for use in policies.uses_of_version(conn, decided.version)]
        self._reporter.report_step(decided, decided.metrics, used)
        self._thinner.thin_versions(self._clock())
        return True

    def _clean_up(self, lease: Lease) -> None:
        self._reject_fatal_batch(lease)
        with self._store.read() as conn:
            rows = policies.list_all(conn)
            last = [use.turn for use in policies.uses_of_version(conn, rows[-1].version)]
            self._consecutive_failures = batch_bisection.count_failed_alone(conn, rows)
        policy_folders.remove_orphans(self._root, rows, before=self._keeper.acquired_at)
        self._thinner.thin_versions(self._clock())
        self._cleaned_epoch = lease.epoch
        self._reporter.catch_up(rows[-1], last)

    def _reject_fatal_batch(self, lease: Lease) -> None:
        """Record a batch on which trainers died twice as rejected, so that it is bisected; set a single turn aside.

        While a batch is being bisected, the first death decides.
        """
        deaths = self._attempts.deaths()
        if not deaths:
            return
        with self._store.write() as conn:
            is_bisected = bool(training_queue.last_rejections(conn, deaths))
            if not is_bisected and max(deaths.values()) < heartbeats.MAX_DEATHS:
                return
            alone = next(iter(deaths)) if len(deaths) == 1 else None
            total = heartbeats.MAX_DEATHS if is_bisected else max(deaths.values())
            reason = batch_bisection.failure_reason(
                f"the trainer died on {number_of_turns(len(deaths), 0)}"
            )
            if alone is not None:
                if (why := self._attempts.give_up(conn, alone, total)) is None:
                    return
                turns.mark_untrainable(conn, {alone: why})
            head = policies.head(conn, name_of_turn(conn, self._per, next(iter(deaths))))
            policy = failed_version(head, policies.next_version(conn), reason, self._clock())
            uses = training_queue.next_uses(conn, policy.version, deaths)
            policies.reject(
                conn, lease, policy, uses, self._clock(), lease_now=self._keeper.clock()
            )
            self._ledger.end_fatal_batch(conn, head.name, deaths)
            self._attempts.end(conn, success=False)
        log.error("version %d: %s", policy.version, reason)

    def _is_batch_ready(self, name: str, items: Sequence[JudgedTurn], usable: int) -> bool:
        if usable == 0 or self._is_fixed:
            return usable > 0
        if batch_bisection.is_full(items, usable, self._builder.signal, self._train):
            return True
        in_queue = self._queue_ages.seconds(name, items[0].turn.id, self._keeper.clock())
        return (
            max(self._clock() - min(i.verdict.at for i in items), in_queue)
            >= self._train.batch.max_wait
        )

    def _train_batch(self, head: Policy, items: Sequence[JudgedTurn]) -> bool:
        self._work = WorkNote("making a batch")
        with self._store.read() as conn:
            line = policies.lineage(conn, head.version)
            version = policies.next_version(conn)
        any_age = self._ledger.is_active
        replayed = self._ledger.replays
        batch = self._builder.build_batch(items, head, line, replays=replayed, any_age=any_age)
        fresh = {s.turn for s in batch.samples if not s.replay}
        log.debug(
            "batch for version %d: %s; left out: %s",
            version,
            [s.turn for s in batch.samples],
            batch.dropped,
        )
        if batch.dropped and not self._ledger.is_active:
            self._drop_turns(batch.dropped)
        if not batch.samples:
            self._reporter.report_skipped_batch(
                head, batch.dropped, batch.dropped_counts, self._clock()
            )
        self._drop_counts.update(batch.dropped_counts)
        rest = [i for i in items if i.turn.id not in batch.dropped] or items
        if not self._is_batch_ready(head.name, rest, len(fresh)):
            return self._ledger.skip_batch() or bool(batch.dropped)
        disk_space.require_space(self._root, policy_folders.folder_bytes(head.path))
        if not self._trainer.has_loaded(head):
            if damage := self._trainer.load(head):
                self._work = WorkNote(f"version {head.version} is damaged: {damage}")
                return True
            self._replays.forget_unfit()
            # A version is loaded once, and a batch like this one may be repeated.
            self._began = time.perf_counter()
        again, replays = (
            ([], []) if self._is_fixed else self._replays.select_replays(head, line, len(fresh))
        )
        samples = [*batch.samples, *replays]
        earlier = {i.turn.id: i.earlier_uses for i in (*items, *again)}
        counts = number_of_turns(len(fresh), len({s.turn for s in samples} - fresh))
        self._work = WorkNote(f"training version {version} on {counts}{self._ledger.note}")
        self._attempts.begin(self._trainer.turns_at_risk(samples))
        try:
            with (
                self._attempts.interrupted_by(OpenClawError, OSError, ValueError),
                disk_space.raise_disk_full(),
            ):
                result = self._trainer.step(samples, version)
        except batch_bisection.BATCH_ERRORS as error:
            self._record_failure(head, version, samples, earlier, error)
            self._trainer.reject_step(str(error))
            return True
        with self._store.write(durable=False) as conn:
            self._attempts.end(conn)
        self._consecutive_failures = 0
        # A step on replays alone is not taken.
        if result.folder is None or fresh <= result.dropped.keys():
            self._skip_batch(head, fresh, result)
            self._drop_counts.update(batch.kept_counts)
            return True
        try:
            step = StepOutcome(
                head=head, version=version, samples=samples, earlier_uses=earlier, result=result
            )
            self._publish_or_reject(step, batch.kept_counts)
        except StaleLease as error:
            # After other errors the folder is kept: the commit may have succeeded.
            self._trainer.reject_step(str(error), result.folder)
            raise
        self._thinner.thin_versions(self._clock())
        return True

    def _skip_batch(self, head: Policy, fresh: Collection[str], result: StepResult) -> None:
        """No step was taken, or on replays alone: mark the new turns untrainable, each with its reason."""
        if result.folder is None:
            self._trainer.mark_loaded(head)
        else:
            self._trainer.reject_step("no new turn of the batch was trained on", result.folder)
        self._drop_counts["dropped/stale"] += int(result.metrics.get("dropped/stale", 0))
        self._replays.mark_unfit(again := result.dropped.keys() - fresh)
        self._drop_turns(
            reasons := {
                turn: result.dropped.get(turn, NO_GRADIENT_REASON) for turn in sorted(fresh)
            }
        )
        metrics = dict(result.metrics) | {"replays/passed_over": float(len(again))}
        self._reporter.report_skipped_batch(head, reasons, metrics, self._clock())
        self._ledger.skip_batch()

    def _record_failure(
        self,
        head: Policy,
        version: int,
        samples: Sequence[Sample],
        earlier: Mapping[str, int],
        error: Exception,
    ) -> None:
        """Handle a batch that raised: drop a turn that is too long, else bisect the batch.

        Raises `StaleLease`, and `OpenClawError` after too many failures.
        """
        reason = batch_bisection.failure_reason(f"{type(error).__name__}: {error}")
        log.error("version %d, %d samples: %s", version, len(samples), reason)
        self._reporter.report_skipped_batch(
            head, {s.turn: reason for s in samples}, {}, self._clock()
        )
        if isinstance(error, TooLarge) and not self._ledger.is_active:
            turn = batch_bisection.longest_sample(samples)
            if turn.replay:
                self._replays.exclude_turn(turn.turn)
                # Check again at once: nothing was committed, but there is work.
                self._next_check = 0.0
            else:
                self._drop_turns({turn.turn: reason})
            return
        self._consecutive_failures += (alone := len({s.turn for s in samples}) == 1)
        if self._consecutive_failures >= batch_bisection.MAX_CONSECUTIVE_FAILURES:
            failures = f"{self._consecutive_failures} turns failed one by one, so the turns are not the cause"
            raise OpenClawError(f"training stopped: {failures}: {reason}") from error
        policy = failed_version(head, version, reason, self._clock())
        lease = self._keeper.require_lease()
        uses = make_uses(version, samples, earlier)
        with self._store.write() as conn:
            policies.reject(
                conn, lease, policy, uses, self._clock(), lease_now=self._keeper.clock()
            )
            turns.mark_untrainable(conn, {samples[0].turn: reason} if alone else {})
            self._ledger.end_batch(conn)

    def _publish_or_reject(self, step: StepOutcome, counts: Mapping[str, int]) -> None:
        """Publish or reject the result in one transaction. Raises `StaleLease`, with nothing changed.

        `counts`: counts over the new turns, by metric name.
        """
        metrics = self._collect_metrics(step, counts)
        reason = self._examiner.metrics_reason(step.result.metrics, self._train)
        policy = step.make_policy(storable_metrics(metrics, self._engine), reason, self._clock())
        uses = make_uses(step.version, step.trained, step.earlier_uses)
        lease = self._keeper.require_lease()
        is_examined = self._examiner.is_active and not self._ledger.is_active
        success = candidates.add_candidate if is_examined else policies.publish
        record = policies.reject if reason else success
        with self._store.write() as conn:
            record(conn, lease, policy, uses, self._clock(), lease_now=self._keeper.clock())
            record_credit(conn, policy.version, step.result.credit)
            turns.mark_untrainable(conn, step.untrainable_turns(reason))
            self._ledger.end_batch(conn)
            if self._practice is not None:
                self._practice.record_divergences(conn, step.head, step.result.lesson_gaps)
        self._replays.mark_unfit(s.turn for s in step.left_out if s.replay)
        self._drop_counts.clear()
        if reason:
            self._trainer.reject_step(reason.detail, step.result.folder)
        else:
            self._trainer.mark_loaded(policy)
            self._monitor.trust(policy)
        if reason or not is_examined:
            self._reporter.report_step(policy, metrics, step.trained_turns)

    def _collect_metrics(self, step: StepOutcome, counts: Mapping[str, int]) -> dict[str, float]:
        """Return all metrics of a step; after every `track.eval_every`-th one also those of satisfaction."""
        with self._store.read() as conn:
            metrics = (
                step.collect_metrics(conn, self._drop_counts + Counter(counts))
                | self._ledger.metrics
            )
            metrics["seconds/batch"] = (now := time.perf_counter()) - self._began
            self._ended = now
            if self._eval_every is not None and int(metrics.get("step", 0)) % self._eval_every == 0:
                metrics |= satisfaction_metrics(
                    conn, policies.lineage(conn, step.head.version)[: self._eval_every]
                )
        return metrics

    def _drop_turns(self, reasons: Mapping[str, Reason]) -> None:
        with self._store.write() as conn:
            leases.check(conn, self._keeper.require_lease(), self._keeper.clock())
            turns.mark_untrainable(conn, reasons)
