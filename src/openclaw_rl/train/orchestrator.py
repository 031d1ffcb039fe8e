"""The training loop. One iteration claims turns, builds a batch, takes a step and publishes or rejects the result."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.common import disk_space, steady_clock
from openclaw_rl.errors import DamagedRow, DiskFull, OpenClawError, StaleLease, StoreError, TooLarge
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.protocols import Trainer
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store import heartbeats, leases, policies, training_queue, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.version_stats import satisfaction_metrics, untrusted_judges
from openclaw_rl.train import batch_bisection, policy_folders
from openclaw_rl.train.checkpoints import CheckpointWriter, steps_taken
from openclaw_rl.train.file_monitor import FileMonitor
from openclaw_rl.train.gate import rejection_reason
from openclaw_rl.train.learning_rate import CHECKED_STEPS, find_low_rate
from openclaw_rl.train.lease_keeper import LeaseKeeper
from openclaw_rl.train.replay import ReplaySelector
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.step_outcome import StepOutcome, make_uses, storable_metrics
from openclaw_rl.train.tracking import MetricsTracker, number_of_turns, summary_line
from openclaw_rl.train.version_thinning import VersionThinner
from openclaw_rl.types import JudgedTurn, Lease, Policy, PolicyState

log = logging.getLogger("openclaw_rl.train")
WAITING_PREFIX = "waiting for turns: "
"""Prefix of the status note of a worker that found too few turns."""
NO_GRADIENT_REASON = "the batch that it was in had no gradient"
RECHECK_SECONDS = 1.0  # seconds until the store is read again without a commit, because `max_wait` may have passed


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
        clock: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] = steady_clock.boot_seconds,
    ) -> None:
        """`engine`: name of the engine that samples; part of the names of metrics that compare it with the trainer.

        `lease_clock`: seconds by a clock that does not jump.
        """
        self._engine, self._tracker, self._checkpoint_writer, self._eval_every = engine, tracker, saver, eval_every
        self._store, self._trainer, self._builder, self._train = store, trainer, builder, train
        self._replays = ReplaySelector(store, builder, train)
        self._root = root.resolve()
        self._monitor, self._thinner = FileMonitor(store), VersionThinner(store, self._root, train.checkpoint)
        self._clock = clock
        self._loaded_version: int | None = None  # the version that the trainer has loaded; None: not known
        self._cleaned_epoch: int | None = None  # epoch of the lease under which the folders were cleaned up
        self._next_check = 0.0
        self._drop_counts: Counter[str] = Counter()  # counts of dropped turns since the last version, by metric name
        self._is_bisecting = False  # the claimed turns are part of a failed batch that is being bisected
        self._consecutive_failures = 0  # turns tried alone that failed in a row, also before a restart
        self._newest_metrics: deque[Mapping[str, float]] = deque(maxlen=CHECKED_STEPS)
        self._low_rate_logged = False
        self._oldest_turn: tuple[str, float] | None = None  # first turn of the queue, and since when (lease clock)
        self.note = "starting"
        self._attempts = heartbeats.AttemptLog(store, "train")
        self._keeper = LeaseKeeper(store, ttl=train.safety.lease_ttl, clock=lease_clock)

    def forget_attempts(self) -> None:
        """Forget what is being trained on: the end of this process, which is due, is not the fault of the batch."""
        with contextlib.suppress(StoreError):
            self._attempts.forget()

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
        except DiskFull:
            self._cleaned_epoch = None  # the interrupted step may have left a folder, or no line in the metrics
            raise

    def _run_iteration(self) -> bool:
        lease = self._keeper.acquire()
        if lease is None:
            self.note = self._keeper.waiting_note()
            return False
        try:
            if lease.epoch != self._cleaned_epoch:
                self._clean_up(lease)
            elif not self._store.has_changed() and time.monotonic() < self._next_check:
                return False
            self._next_check = time.monotonic() + RECHECK_SECONDS
            if self._take_step():
                return True
            self._thinner.remove_due()
            self._monitor.examine_changed()
            return False
        except DamagedRow as error:
            log.warning("turn %s is left out: %s", error.turn, error)
            self._drop_turns({error.turn: str(error)})
            return True
        except StaleLease as error:
            log.warning("nothing was published, starting over: %s", error)
            self._keeper.renew_now()
            return True

    def _take_step(self) -> bool:
        """Read a batch and train on it, if it is complete. Raises `DamagedRow` and `StaleLease`."""
        with self._store.read() as conn:
            head = policies.head(conn)
            items, self._is_bisecting = batch_bisection.next_batch(conn, head, self._builder.signal, self._train)
            untrusted = ", ".join(sorted(untrusted_judges(conn)))
        if is_last_version(head, self._train):
            self.note = f"train.max_steps {self._train.max_steps} is reached: version {head.version} is the last"
            return False
        if not self._is_batch_ready(items, len(items)):
            self.note = f"{WAITING_PREFIX}{len(items)} of {self._train.batch.min_step_turns}"
            if untrusted:
                self.note += f"; verdicts of {untrusted} are not trained on (judge.min_kappa)"
            return False
        return self._train_batch(head, items)

    def _clean_up(self, lease: Lease) -> None:
        self._reject_fatal_batch(lease)
        with self._store.read() as conn:
            rows = policies.list_all(conn)
            last = [use.turn for use in policies.uses_of_version(conn, rows[-1].version)]
            self._consecutive_failures = batch_bisection.count_failed_alone(conn, rows)
        policy_folders.remove_orphans(self._root, rows, before=self._keeper.acquired_at)
        self._thinner.thin_versions(self._clock())
        self._cleaned_epoch = lease.epoch
        if self._checkpoint_writer is not None:  # the trainer may have died right after it published
            self._checkpoint_writer.catch_up()
        if self._tracker is not None:
            self._tracker.catch_up(rows[-1], last)

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
            words = f"{batch_bisection.FAILED_PREFIX}the trainer died on {number_of_turns(len(deaths), 0)}"
            if alone is not None:
                why = self._attempts.give_up(conn, alone, total)
                if why is None:
                    return
                _mark_untrainable(conn, {alone: why})
            policy = _failed_version(policies.head(conn), policies.next_version(conn), words, self._clock())
            uses = training_queue.next_uses(conn, policy.version, deaths)
            policies.reject(conn, lease, policy, uses, self._clock(), lease_now=self._keeper.clock())
            self._attempts.end(conn, success=False)
        log.error("version %d: %s", policy.version, words)

    def _is_batch_ready(self, items: Sequence[JudgedTurn], usable: int) -> bool:
        if usable == 0 or self._is_bisecting:
            return usable > 0
        waited = max(self._clock() - min(item.verdict.at for item in items), self._seconds_in_queue(items[0].turn.id))
        return usable >= self._train.batch.min_step_turns or waited >= self._train.batch.max_wait

    def _seconds_in_queue(self, oldest: str) -> float:
        """Return for how long this turn has been the first of the queue; a clock may have stamped it hours ahead."""
        if self._oldest_turn is None or self._oldest_turn[0] != oldest:
            self._oldest_turn = oldest, self._keeper.clock()
        return self._keeper.clock() - self._oldest_turn[1]

    def _train_batch(self, head: Policy, items: Sequence[JudgedTurn]) -> bool:
        self.note = "making a batch"
        with self._store.read() as conn:
            line, version = policies.lineage(conn, head.version), policies.next_version(conn)
        batch = self._builder.build_batch(items, head, line)
        log.debug(
            "batch for version %d: %s; left out: %s",
            *(version, ", ".join(s.turn for s in batch.samples), dict(batch.dropped)),
        )
        if batch.dropped:
            self._drop_turns(batch.dropped)
        if not batch.samples:
            self._log_skipped_batch(head, batch.dropped, batch.dropped_counts)
        self._drop_counts.update(batch.dropped_counts)
        if not self._is_batch_ready([i for i in items if i.turn.id not in batch.dropped] or items, len(batch.samples)):
            return bool(batch.dropped)
        disk_space.require_space(self._root, policy_folders.folder_bytes(head.path))
        if self._loaded_version != head.version:
            if damage := self._monitor.examine(head):
                self.note = f"version {head.version} is damaged: {damage}"
                return True
            self._trainer.load(folder=head.path, memory=head.memory)
            self._replays.forget_unfit()
        again, replays = (
            ([], []) if self._is_bisecting else self._replays.select_replays(head, line, len(batch.samples))
        )
        samples, earlier = [*batch.samples, *replays], {i.turn.id: i.earlier_uses for i in (*items, *again)}
        self.note = f"training version {version} on {number_of_turns(len(batch.samples), len(replays))}"
        self._loaded_version = None  # until the result of the step is known
        self._attempts.begin([s.turn for s in samples])
        try:
            with self._attempts.interrupted_by(OpenClawError, OSError, ValueError), disk_space.raise_disk_full():
                result = self._trainer.step(samples, str(policy_folders.new_folder(self._root, version)))
        except batch_bisection.BATCH_ERRORS as error:
            self._record_failure(head, version, samples, earlier, error)
            return True
        with self._store.write(durable=False) as conn:
            self._attempts.end(conn)
        self._consecutive_failures = 0
        fresh = {s.turn for s in batch.samples}
        if result.folder is None or fresh <= result.dropped.keys():  # a step on replays alone is not taken
            self._skip_batch(head, fresh, result)
            self._drop_counts.update(batch.kept_counts)
            return True
        try:
            step = StepOutcome(head=head, version=version, samples=samples, earlier_uses=earlier, result=result)
            self._publish_or_reject(step, batch.kept_counts)
        except StaleLease:  # after other errors the folder is kept: the commit may have succeeded
            policy_folders.remove_folder(Path(result.folder))
            raise
        self._thinner.thin_versions(self._clock())
        return True

    def _skip_batch(self, head: Policy, fresh: Collection[str], result: StepResult) -> None:
        """No step was taken, or on replays alone: mark the new turns untrainable, each with its reason."""
        if result.folder is None:
            self._loaded_version = head.version
        else:
            policy_folders.remove_folder(Path(result.folder))
        self._drop_counts["dropped/stale"] += int(result.metrics.get("dropped/stale", 0))
        self._replays.mark_unfit(again := result.dropped.keys() - fresh)
        self._drop_turns(reasons := {turn: result.dropped.get(turn, NO_GRADIENT_REASON) for turn in sorted(fresh)})
        self._log_skipped_batch(head, reasons, dict(result.metrics) | {"replays/passed_over": float(len(again))})

    def _record_failure(
        self, head: Policy, version: int, samples: Sequence[Sample], earlier: Mapping[str, int], error: Exception
    ) -> None:
        """Handle a batch that raised: drop a turn that is too long, else bisect the batch.

        Raises `StaleLease`, and `OpenClawError` after too many failures.
        """
        words = f"{batch_bisection.FAILED_PREFIX}{type(error).__name__}: {error}"
        log.error("version %d, %d turns: %s", version, len(samples), words)
        self._log_skipped_batch(head, {s.turn: words for s in samples}, {})
        if isinstance(error, TooLarge):
            turn = batch_bisection.longest_sample(samples)
            if turn.replay:
                self._replays.exclude_turn(turn.turn)
                self._next_check = 0.0  # check again at once: nothing was committed, but there is work
            else:
                self._drop_turns({turn.turn: words})
            return
        self._consecutive_failures += (alone := len(samples) == 1)
        if self._consecutive_failures >= batch_bisection.MAX_CONSECUTIVE_FAILURES:
            failures = f"{self._consecutive_failures} turns failed one by one, so the turns are not the cause"
            raise OpenClawError(f"training stopped: {failures}: {words}") from error
        policy = _failed_version(head, version, words, self._clock())
        uses = make_uses(version, samples, earlier)
        with self._store.write() as conn:
            policies.reject(conn, self._require_lease(), policy, uses, self._clock(), lease_now=self._keeper.clock())
            _mark_untrainable(conn, {samples[0].turn: words} if alone else {})

    def _publish_or_reject(self, step: StepOutcome, counts: Mapping[str, int]) -> None:
        """Publish or reject the result in one transaction. Raises `StaleLease`, with nothing changed.

        `counts`: counts over the new turns, by metric name.
        """
        metrics = self._collect_metrics(step, counts)
        reason = rejection_reason(step.result.metrics, self._train)
        policy = step.make_policy(storable_metrics(metrics, self._engine), reason, self._clock())
        uses = make_uses(step.version, step.trained, step.earlier_uses)
        lease = self._require_lease()
        record = policies.reject if reason else policies.publish
        with self._store.write() as conn:
            record(conn, lease, policy, uses, self._clock(), lease_now=self._keeper.clock())
            _mark_untrainable(conn, step.untrainable_turns(reason))
        self._replays.mark_unfit(s.turn for s in step.left_out if s.replay)
        self._drop_counts.clear()
        if reason:
            policy_folders.remove_folder(Path(str(step.result.folder)))
        else:
            self._loaded_version = policy.version
            self._monitor.trust(policy)
        self._report_step(policy, metrics, [s.turn for s in step.trained])

    def _collect_metrics(self, step: StepOutcome, counts: Mapping[str, int]) -> dict[str, float]:
        """Return all metrics of a step; after every `track.eval_every`-th one also those of satisfaction."""
        with self._store.read() as conn:
            metrics = step.collect_metrics(conn, self._drop_counts + Counter(counts))
            if self._eval_every is not None and int(metrics.get("step", 0)) % self._eval_every == 0:
                line = policies.lineage(conn, step.head.version)
                metrics |= satisfaction_metrics(conn, line[: self._eval_every])
        return metrics

    def _report_step(self, policy: Policy, metrics: Mapping[str, float], trained: Sequence[str]) -> None:
        """Write the checkpoint of a published version that is due, and log the step."""
        if policy.state is PolicyState.LIVE and self._checkpoint_writer is not None:
            self._checkpoint_writer.write_if_due(policy)
        level = logging.INFO if policy.state is PolicyState.LIVE else logging.WARNING
        log.log(level, summary_line(policy, metrics, len(trained)))
        if self._tracker is not None:
            self._tracker.log_step(policy, policy.metrics, trained)
        self._warn_of_low_rate(metrics)

    def _warn_of_low_rate(self, metrics: Mapping[str, float]) -> None:
        """Log once if the learning rate is too low for the policy to change."""
        self._newest_metrics.append(metrics)
        low = find_low_rate(self._newest_metrics)
        if low is not None and not self._low_rate_logged:
            self._low_rate_logged = True
            log.warning("%s. Set train.optimizer.learning_rate (--lr) to %g", low.evidence, low.better_rate)

    def _log_skipped_batch(self, head: Policy, reasons: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        if self._tracker is not None:
            self._tracker.log_skipped_batch(head, reasons, storable_metrics(metrics, self._engine), self._clock())

    def _require_lease(self) -> Lease:
        lease = self._keeper.current_lease
        if lease is None:
            raise StaleLease("the trainer's lease expired during the step; another trainer may be running")
        return lease

    def _drop_turns(self, reasons: Mapping[str, str]) -> None:
        with self._store.write() as conn:
            leases.check(conn, self._require_lease(), self._keeper.clock())
            _mark_untrainable(conn, reasons)


def _failed_version(head: Policy, version: int, reason: str, at: float) -> Policy:
    """Return the rejected version of a step that gave no weights."""
    return replace(
        head,
        version=version,
        parent=head.version,
        state=PolicyState.REJECTED,
        path=None,
        digest="",
        metrics={},
        reason=reason,
        created_at=at,
    )


def is_last_version(head: Policy, train: TrainConfig) -> bool:
    """Return True if `train.max_steps` allows no further step."""
    return train.max_steps is not None and steps_taken(head) >= train.max_steps


def _mark_untrainable(conn: Connection, reasons: Mapping[str, str]) -> None:
    for turn, reason in reasons.items():
        turns.mark_untrainable(conn, turn, reason)
