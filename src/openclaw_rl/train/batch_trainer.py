"""Take a step on a batch, and publish or reject the result."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from openclaw_rl.common import disk_space
from openclaw_rl.common.log_codes import error_fields
from openclaw_rl.common.progress import WorkNote
from openclaw_rl.errors import OpenClawError, StaleLease, TooLarge
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.protocols import Batch
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import leases, turns
from openclaw_rl.store.lineage import candidates, policies, rejected_batches, training_queue
from openclaw_rl.store.lineage.policy_names import name_of_turn
from openclaw_rl.store.lineage.token_credit import record_credit
from openclaw_rl.store.lineage.version_stats import satisfaction_metrics
from openclaw_rl.store.workers.attempts import MAX_DEATHS, AttemptLog
from openclaw_rl.train import batch_bisection, policy_folders, retraining
from openclaw_rl.train.candidate_examiner import CandidateExaminer
from openclaw_rl.train.context import LoopParts, TrainContext
from openclaw_rl.train.file_monitor import FileMonitor
from openclaw_rl.train.loaded_trainer import LoadedTrainer
from openclaw_rl.train.replay import ReplaySelector
from openclaw_rl.train.sample_builder import SampleBatch, SampleBuilder, oldest_version
from openclaw_rl.train.step_outcome import StepOutcome, failed_version, make_uses
from openclaw_rl.train.tracking import StepReporter, number_of_turns
from openclaw_rl.train.turn_queue import BatchReadiness
from openclaw_rl.types import JudgedTurn, Lease, Policy

log = logging.getLogger("openclaw_rl.train")
NO_GRADIENT_REASON = Reason(ReasonCode.NO_GRADIENT, "the batch that it was in had no gradient")


class BatchTrainer:
    """Trains on one batch at a time."""

    def __init__(
        self,
        context: TrainContext,
        trainer: LoadedTrainer,
        builder: SampleBuilder,
        readiness: BatchReadiness,
        examiner: CandidateExaminer,
        reporter: StepReporter,
        monitor: FileMonitor,
        parts: LoopParts,
    ) -> None:
        self._context = context
        self._store = context.store
        self._trainer = trainer
        self._builder = builder
        self._readiness = readiness
        self._examiner = examiner
        self._reporter = reporter
        self._monitor = monitor
        self._parts = parts
        self._replays = ReplaySelector(context.store, builder, context.settings, context.per)
        self._attempts = AttemptLog(context.store, "train")
        self.work = WorkNote("starting")
        """What is being done, while it is done."""
        # Counts of dropped turns since the last version, by metric name.
        self._drop_counts: Counter[str] = Counter()
        # Turns tried alone that failed in a row, also before a restart.
        self._consecutive_failures = 0
        self._timer = BatchTimer()

    def begin_iteration(self) -> None:
        """Start the clock of the next batch, if the last iteration had none."""
        self._timer.begin_iteration()

    def count_failures(self) -> None:
        """Read from the store how many turns failed alone in a row."""
        with self._store.read() as conn:
            self._consecutive_failures = batch_bisection.count_failed_alone(conn)

    def forget_attempts(self) -> None:
        """Forget what is being trained on: the end of this process, which is due, is not the fault of the batch."""
        self._attempts.forget()

    def train_batch(self, batch: Batch) -> bool:
        """Take a step on the batch. Return False if nothing was done, as its usable turns are too few.

        Raises `StaleLease`, `DiskFull`, and `OpenClawError` after too many failures.
        """
        self.work = WorkNote("making a batch")
        head = batch.head
        with self._store.read() as conn:
            # Ages count the versions since a turn was answered; older ones do not matter.
            lineage = policies.lineage(conn, head.version, above=oldest_version(batch.turns))
            version = policies.next_version(conn)
        built = self._builder.build_batch(
            batch.turns,
            head,
            lineage,
            replays=batch.replays,
            any_age=batch.undo is not None,
        )
        new_turns = {sample.turn for sample in built.samples if not sample.replay}
        turn_ids = [sample.turn for sample in built.samples]
        log.debug("batch for version %d: %s; left out: %s", version, turn_ids, built.dropped)
        self._record_dropped(batch, built)
        usable = [item for item in batch.turns if item.turn.id not in built.dropped]
        if not self._readiness.is_ready(batch, usable or batch.turns, len(new_turns)):
            return self._end_undone_batch(batch, built.dropped) or bool(built.dropped)
        disk_space.require_space(self._context.root, policy_folders.folder_bytes(head.path))
        if not self._load_head(head):
            return True
        replayed_turns: Sequence[JudgedTurn] = ()
        replay_samples: Sequence[Sample] = ()
        if not batch.is_fixed:
            replayed_turns, replay_samples = self._replays.select_replays(head, len(new_turns))
        samples = [*built.samples, *replay_samples]
        earlier_uses = {item.turn.id: item.earlier_uses for item in (*batch.turns, *replayed_turns)}
        result = self._try_step(batch, version, samples, new_turns, earlier_uses)
        if result is None:
            return True
        # A step on replays alone is not taken.
        if result.folder is None or new_turns <= result.dropped.keys():
            self._skip_step(batch, new_turns, result)
            self._drop_counts.update(built.kept_counts)
            return True
        step = StepOutcome(
            head=head, version=version, samples=samples, earlier_uses=earlier_uses, result=result
        )
        try:
            self._publish_or_reject(batch, step, built.kept_counts)
        except StaleLease as error:
            # After other errors the folder is kept: the commit may have succeeded.
            self._trainer.reject_step(str(error), result.folder)
            raise
        return True

    def _record_dropped(self, batch: Batch, built: SampleBatch) -> None:
        """Record why turns of the batch cannot train. Those of an undo stay in the store as they are."""
        if built.dropped and batch.undo is None:
            self.drop_turns(built.dropped)
        if not built.samples:
            self._reporter.report_skipped_batch(
                batch.head, built.dropped, built.dropped_counts, self._context.clock()
            )
        self._drop_counts.update(built.dropped_counts)

    def _load_head(self, head: Policy) -> bool:
        """Load the head. Return False if its files are damaged, after which another version is the head."""
        if self._trainer.has_loaded(head):
            return True
        damage = self._trainer.load(head)
        if damage is not None:
            self.work = WorkNote(f"version {head.version} is damaged: {damage}")
            return False
        self._replays.forget_unfit()
        # A version is loaded once, and a batch like this one may be repeated.
        self._timer.restart()
        return True

    def _try_step(
        self,
        batch: Batch,
        version: int,
        samples: Sequence[Sample],
        new_turns: Collection[str],
        earlier_uses: Mapping[str, int],
    ) -> StepResult | None:
        """Take the step; None if the batch is to blame for an error, which is recorded."""
        replayed = {sample.turn for sample in samples} - set(new_turns)
        counts = number_of_turns(len(new_turns), len(replayed))
        left = "" if batch.undo is None else f"; undo: {batch.undo_left} left"
        self.work = WorkNote(f"training version {version} on {counts}{left}")
        self._attempts.begin(self._trainer.turns_at_risk(samples))
        try:
            with (
                self._attempts.interrupted_by(OpenClawError, OSError, ValueError),
                disk_space.raise_disk_full(),
            ):
                result = self._trainer.step(samples, version)
        except batch_bisection.BATCH_ERRORS as error:
            self._record_failure(batch, version, samples, earlier_uses, error)
            self._trainer.reject_step(str(error))
            return None
        with self._store.write(durable=False) as conn:
            self._attempts.end(conn)
        self._consecutive_failures = 0
        return result

    def _skip_step(self, batch: Batch, new_turns: Collection[str], result: StepResult) -> None:
        """No step was taken, or on replays alone: mark the new turns untrainable, each with its reason."""
        if result.folder is None:
            self._trainer.mark_loaded(batch.head)
        else:
            self._trainer.reject_step("no new turn of the batch was trained on", result.folder)
        self._drop_counts["dropped/stale"] += int(result.metrics.get("dropped/stale", 0))
        unfit_replays = result.dropped.keys() - set(new_turns)
        self._replays.mark_unfit(unfit_replays)
        reasons = {turn: result.dropped.get(turn, NO_GRADIENT_REASON) for turn in sorted(new_turns)}
        self.drop_turns(reasons)
        metrics = dict(result.metrics) | {"replays/passed_over": float(len(unfit_replays))}
        self._reporter.report_skipped_batch(batch.head, reasons, metrics, self._context.clock())
        self._end_undone_batch(batch, reasons)

    def _end_undone_batch(self, batch: Batch, reasons: Mapping[str, Reason]) -> bool:
        """Remove a batch that gives no step from its undo. Return False if it has no undo."""
        if batch.undo is None:
            return False
        counts = Counter(reason.detail for reason in reasons.values())
        causes = [f"{detail} ({count})" for detail, count in counts.most_common()]
        log.warning(
            "undo: the batch of version %d gives no step now: %s",
            batch.undo.repeats,
            "; ".join(causes) or "none of its turns is left",
        )
        with self._store.write() as conn:
            retraining.end_batch(conn, batch)
        return True

    def _record_failure(
        self,
        batch: Batch,
        version: int,
        samples: Sequence[Sample],
        earlier_uses: Mapping[str, int],
        error: Exception,
    ) -> None:
        """Handle a batch that raised: drop a turn that is too long, else bisect the batch.

        Raises `StaleLease`, and `OpenClawError` after too many failures.
        """
        context = self._context
        reason = batch_bisection.failure_reason(f"{type(error).__name__}: {error}")
        log.error(
            "version %d, %d samples: %s", version, len(samples), reason, extra=error_fields(error)
        )
        reasons = {sample.turn: reason for sample in samples}
        self._reporter.report_skipped_batch(batch.head, reasons, {}, context.clock())
        if isinstance(error, TooLarge) and batch.undo is None:
            self._leave_out_longest(samples, reason)
            return
        is_alone = len(reasons) == 1
        self._consecutive_failures += is_alone
        if self._consecutive_failures >= batch_bisection.MAX_CONSECUTIVE_FAILURES:
            failures = f"{self._consecutive_failures} turns failed one by one, so the turns are not the cause"
            raise OpenClawError(f"training stopped: {failures}: {reason}") from error
        policy = failed_version(batch.head, version, reason, context.clock())
        lease = context.keeper.require_lease()
        uses = make_uses(version, samples, earlier_uses)
        with self._store.write() as conn:
            lease_now = context.keeper.clock()
            policies.reject(conn, lease, policy, uses, context.clock(), lease_now=lease_now)
            turns.mark_untrainable(conn, reasons if is_alone else {})
            retraining.end_batch(conn, batch)

    def _leave_out_longest(self, samples: Sequence[Sample], reason: Reason) -> None:
        """Try the batch again without its longest turn, which does not fit on this device."""
        longest = batch_bisection.longest_sample(samples)
        if longest.replay:
            self._replays.exclude_turn(longest.turn)
        else:
            self.drop_turns({longest.turn: reason})

    def reject_fatal_batch(self, lease: Lease) -> None:
        """Record a batch on which trainers died twice as rejected, so that it is bisected; set a single turn aside.

        While a batch is being bisected, the first death decides.
        """
        context = self._context
        deaths = self._attempts.deaths()
        if not deaths:
            return
        with self._store.write() as conn:
            is_bisected = bool(rejected_batches.last_rejections(conn, deaths))
            most_deaths = max(deaths.values())
            if not is_bisected and most_deaths < MAX_DEATHS:
                return
            first = next(iter(deaths))
            if len(deaths) == 1:
                total = MAX_DEATHS if is_bisected else most_deaths
                set_aside = self._attempts.give_up(conn, first, total)
                if set_aside is None:
                    return
                turns.mark_untrainable(conn, {first: set_aside})
            cause = f"the trainer died on {number_of_turns(len(deaths), 0)}"
            reason = batch_bisection.failure_reason(cause)
            head = policies.head(conn, name_of_turn(conn, context.per, first))
            policy = failed_version(head, policies.next_version(conn), reason, context.clock())
            uses = training_queue.next_uses(conn, policy.version, deaths)
            lease_now = context.keeper.clock()
            policies.reject(conn, lease, policy, uses, context.clock(), lease_now=lease_now)
            retraining.end_fatal_batch(conn, head.name, deaths)
            self._attempts.end(conn, success=False)
        log.error("version %d: %s", policy.version, reason)

    def _publish_or_reject(
        self, batch: Batch, step: StepOutcome, counts: Mapping[str, int]
    ) -> None:
        """Publish or reject the result in one transaction. Raises `StaleLease`, with nothing changed.

        `counts`: counts over the new turns, by metric name.
        """
        context = self._context
        metrics = self._collect_metrics(batch, step, counts)
        reason = self._examiner.metrics_reason(step.result.metrics, context.settings)
        policy = step.make_policy(self._reporter.storable(metrics), reason, context.clock())
        uses = make_uses(step.version, step.trained, step.earlier_uses)
        lease = context.keeper.require_lease()
        is_examined = self._examiner.is_active and batch.undo is None
        if reason is not None:
            record = policies.reject
        elif is_examined:
            record = candidates.add_candidate
        else:
            record = policies.publish
        with self._store.write() as conn:
            record(conn, lease, policy, uses, context.clock(), lease_now=context.keeper.clock())
            record_credit(conn, policy.version, step.result.credit)
            turns.mark_untrainable(conn, step.untrainable_turns(reason))
            retraining.end_batch(conn, batch)
            if self._parts.practice is not None:
                self._parts.practice.record_divergences(conn, step.head, step.result.lesson_gaps)
        self._replays.mark_unfit(sample.turn for sample in step.left_out if sample.replay)
        self._drop_counts.clear()
        if reason is not None:
            self._trainer.reject_step(reason.detail, step.result.folder)
        else:
            self._trainer.mark_loaded(policy)
            self._monitor.trust(policy)
        if reason is not None or not is_examined:
            self._reporter.report_step(policy, metrics, step.trained_turns)

    def _collect_metrics(
        self, batch: Batch, step: StepOutcome, counts: Mapping[str, int]
    ) -> dict[str, float]:
        """Return all metrics of a step; after every `track.eval_every`-th one also those of satisfaction."""
        every = self._parts.eval_every
        with self._store.read() as conn:
            metrics = step.collect_metrics(conn, self._drop_counts + Counter(counts))
            if batch.undo is not None:
                metrics[retraining.RETRAINED_METRIC] = 1.0
            metrics["seconds/batch"] = self._timer.end_batch()
            if every is not None and int(metrics.get("step", 0)) % every == 0:
                newest = policies.lineage(conn, step.head.version)[:every]
                metrics |= satisfaction_metrics(conn, newest)
        return metrics

    def drop_turns(self, reasons: Mapping[str, Reason]) -> None:
        """Mark turns untrainable, each with its reason. Raises `StaleLease`."""
        keeper = self._context.keeper
        with self._store.write() as conn:
            leases.check(conn, keeper.require_lease(), keeper.clock())
            turns.mark_untrainable(conn, reasons)


class BatchTimer:
    """Measures a batch: from the end of the one before it, or from the first iteration after that."""

    def __init__(self) -> None:
        self._began = 0.0
        # Of a batch in the iteration before.
        self._ended: float | None = None

    def begin_iteration(self) -> None:
        self._began = time.perf_counter() if self._ended is None else self._ended
        self._ended = None

    def restart(self) -> None:
        self._began = time.perf_counter()

    def end_batch(self) -> float:
        """Return the seconds that the batch took."""
        self._ended = time.perf_counter()
        return self._ended - self._began
