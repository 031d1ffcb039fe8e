"""The training loop. One iteration claims turns, builds a batch, takes a step and publishes or rejects the result."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.errors import StaleLease, TooLarge
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.protocols import Trainer
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store import leases, policies, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.version_stats import standing
from openclaw_rl.train import batch_bisection, policy_folders
from openclaw_rl.train.checkpoints import Saver, step_of
from openclaw_rl.train.gate import refusal
from openclaw_rl.train.lease_keeper import LEASE, LeaseKeeper
from openclaw_rl.train.replay import Replays
from openclaw_rl.train.sample_builder import Builder
from openclaw_rl.train.tracking import Tracker, in_words, left_out, number_of_turns, rewards, staleness
from openclaw_rl.types import JudgedTurn, Lease, Policy, PolicyState, Use

log = logging.getLogger("openclaw_rl.train")
WAITING = "waiting for turns: "
"""Prefix of the status note of a worker that found too few turns."""
NO_GRADIENT = "the batch that it was in had no gradient"
LOOK = 1.0  # seconds until the store is read again without a commit, because `max_wait` may have passed


class TrainRoom:
    """The training loop. `run_once` does one iteration; it blocks, and must be called from one thread at a time."""

    def __init__(
        self,
        store: Store,
        trainer: Trainer,
        builder: Builder,
        train: TrainConfig,
        root: Path,
        *,
        engine: str = "engine",
        tracker: Tracker | None = None,
        saver: Saver | None = None,
        eval_every: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`engine`: name of the engine that samples; part of the names of metrics that compare it with the trainer."""
        self._engine, self._tracker, self._saver, self._eval_every = engine, tracker, saver, eval_every
        self._store, self._trainer, self._builder, self._train = store, trainer, builder, train
        self._replays = Replays(store, builder, train)
        self._root = root.resolve()
        self._clock = clock
        self._standing: int | None = None  # the version that the trainer has loaded; None: not known
        self._epoch: int | None = None  # epoch of the lease under which the folders were cleaned up
        self._due = 0.0
        self._passed: Counter[str] = Counter()  # counts of dropped turns since the last version, by metric name
        self._retrying = False  # the claimed turns are part of a failed batch that is being bisected
        self._hopeless = 0  # turns tried alone that failed, without a success between
        self.note = "starting"
        holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._keeper = LeaseKeeper(store, LEASE, holder, ttl=train.lease, clock=clock)

    def close(self) -> None:
        """Release the lease."""
        self._keeper.close()

    def turn(self) -> bool:
        """Run one iteration with at most one step. Return False if there was nothing to do."""
        lease = self._keeper.acquire()
        if lease is None:
            self.note = "waiting: another trainer holds the lease"
            return False
        if lease.epoch != self._epoch:
            self._clean(lease)
        elif not self._store.changed() and time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + LOOK
        if self._hopeless >= batch_bisection.HOPELESS:
            return False
        head, items = self._claim()
        if is_last(head, self._train):
            self.note = f"train.max_steps {self._train.max_steps} is reached: version {head.version} is the last"
            return False
        if not self._enough(items, len(items)):
            self.note = f"{WAITING}{len(items)} of {self._train.least}"
            return False
        try:
            return self._train_on(head, items)
        except StaleLease as error:
            log.warning("nothing was published, starting over: %s", error)
            self._keeper.refresh()
            return True

    def _clean(self, lease: Lease) -> None:
        with self._store.read() as conn:
            rows = policies.all(conn)
            last = [use.turn for use in policies.uses(conn, rows[-1].version)]
        policy_folders.remove_orphans(self._root, rows, before=lease.expires_at - self._train.lease)
        self._epoch = lease.epoch
        if self._saver is not None:  # the trainer may have died right after it published
            self._saver.catch_up()
        if self._tracker is not None:
            self._tracker.catch_up(rows[-1], last)

    def _claim(self) -> tuple[Policy, list[JudgedTurn]]:
        with self._store.read() as conn:
            head = policies.head(conn)
            items, self._retrying = batch_bisection.claimed(conn, head, self._builder.signal, self._train)
        return head, items

    def _enough(self, items: Sequence[JudgedTurn], usable: int) -> bool:
        if usable == 0 or self._retrying:
            return usable > 0
        waited = self._clock() - min(item.verdict.at for item in items)
        return usable >= self._train.least or waited >= self._train.max_wait

    def _train_on(self, head: Policy, items: Sequence[JudgedTurn]) -> bool:
        self.note = "making a batch"
        with self._store.read() as conn:
            line, version = policies.lineage(conn, head.version), policies.next_version(conn)
        batch = self._builder.build(items, head, line)
        if batch.dropped:
            self._drop(batch.dropped)
        if not batch.samples:
            self._no_step(head, batch.dropped, batch.left)
        self._passed.update(batch.left)
        if not self._enough([i for i in items if i.turn.id not in batch.dropped] or items, len(batch.samples)):
            return bool(batch.dropped)
        if self._standing != head.version:
            self._trainer.load(folder=head.path, memory=head.memory)
            self._replays.forget()
        again, replays = ([], []) if self._retrying else self._replays.claim(head, line, len(batch.samples))
        samples, earlier = [*batch.samples, *replays], {i.turn.id: i.earlier_uses for i in (*items, *again)}
        self.note = f"training version {version} on {number_of_turns(len(batch.samples), len(replays))}"
        self._standing = None  # until the result of the step is known
        try:
            result = self._trainer.step(samples, str(policy_folders.fresh(self._root, version)))
        except batch_bisection.OF_THE_BATCH as error:
            self._fail(head, version, samples, earlier, error)
            return True
        self._hopeless = 0
        fresh = {s.turn for s in batch.samples}
        if result.folder is None or fresh <= result.dropped.keys():  # a step on replays alone is not taken
            self._pass_over(head, fresh, result)
            self._passed.update(batch.counts)
            return True
        try:
            self._settle(head, version, result, samples, earlier, batch.counts)
        except StaleLease:  # after other errors the folder is kept: the commit may have succeeded
            policy_folders.remove(Path(result.folder))
            raise
        policy_folders.thin(self._root, keep=self._train.keep_checkpoints, spare=(head.path, result.folder))
        return True

    def _pass_over(self, head: Policy, fresh: Collection[str], result: StepResult) -> None:
        """No step was taken, or on replays alone: mark the new turns untrainable, each with its reason."""
        if result.folder is None:
            self._standing = head.version
        else:
            policy_folders.remove(Path(result.folder))
        self._passed["dropped/stale"] += int(result.metrics.get("dropped/stale", 0))
        self._replays.pass_over(again := result.dropped.keys() - fresh)
        self._drop(reasons := {turn: result.dropped.get(turn, NO_GRADIENT) for turn in sorted(fresh)})
        self._no_step(head, reasons, dict(result.metrics) | {"replays/passed_over": float(len(again))})

    def _fail(
        self, head: Policy, version: int, samples: Sequence[Sample], earlier: Mapping[str, int], error: Exception
    ) -> None:
        """Handle a batch that raised: drop a turn that is too long, else bisect the batch. Raises `StaleLease`."""
        words = f"it cannot be trained: {type(error).__name__}: {error}"
        log.error("version %d, %d turns: %s", version, len(samples), words)
        self._no_step(head, {s.turn: words for s in samples}, {})
        if isinstance(error, TooLarge):
            turn = batch_bisection.longest(samples)
            if turn.replay:
                self._replays.leave(turn.turn)
                self._due = 0.0  # check again at once: nothing was committed, but there is work
            else:
                self._drop({turn.turn: words})
            return
        self._hopeless += (alone := len(samples) == 1)
        if self._hopeless >= batch_bisection.HOPELESS:
            self.note = f"stopped until it is restarted: {self._hopeless} turns failed one by one: {words}"
            log.error("training %s", self.note)
            return
        policy = replace(
            head, version=version, parent=head.version, state=PolicyState.REJECTED, path=None, digest="", metrics={},
            reason=words, created_at=self._clock(),
        )  # fmt: skip
        uses = [Use(policy=version, turn=s.turn, number=earlier[s.turn] + 1) for s in samples]
        with self._store.write() as conn:
            policies.reject(conn, self._held(), policy, uses, self._clock())
            _mark(conn, {samples[0].turn: words} if alone else {})

    def _settle(
        self,
        head: Policy,
        version: int,
        result: StepResult,
        samples: Sequence[Sample],
        earlier: Mapping[str, int],
        counts: Mapping[str, int],
    ) -> None:
        """Publish or reject the result in one transaction. Raises `StaleLease`, with nothing changed.

        `counts`: counts over the new turns, by metric name.
        """
        trained = [s for s in samples if s.turn not in result.dropped]
        left = [s for s in samples if s.turn in result.dropped]
        metrics = dict(result.metrics) | {
            "replays": float(sum(s.replay for s in trained)),
            "replays/passed_over": float(sum(s.replay for s in left)),
        }
        with self._store.read() as conn:
            metrics = rewards(turns.verdicts(conn, [s.turn for s in trained]).values()) | metrics
            metrics |= staleness(policies.lineage(conn, head.version), trained)
        metrics |= left_out(self._passed + Counter(counts), result.metrics)
        metrics |= self._standing_of(head, int(metrics.get("step", 0)))
        bounds = {"kl": self._train.gate_kl, "step_kl": self._train.max_step_kl}
        reason = refusal(result.metrics, grad_norm=self._train.gate_grad_norm, **bounds)
        policy = Policy(
            version=version,
            parent=head.version,
            state=PolicyState.REJECTED if reason else PolicyState.LIVE,
            path=result.folder,
            digest=result.digest,
            base=head.base,
            identity=head.identity,
            memory=result.memory,
            metrics=self._kept(metrics),
            reason=reason,
            created_at=self._clock(),
        )
        uses = [Use(policy=version, turn=s.turn, number=earlier[s.turn] + 1) for s in trained]
        lease = self._held()
        settle = policies.reject if reason else policies.publish
        with self._store.write() as conn:
            settle(conn, lease, policy, uses, self._clock())
            _mark(conn, {s.turn: result.dropped[s.turn] for s in left if not s.replay})
            if reason and len(trained) == 1:
                _mark(conn, {trained[0].turn: f"a step on it alone was rejected: {reason}"})
        self._replays.pass_over(s.turn for s in left if s.replay)
        self._passed.clear()
        if not reason:
            self._standing = version
            if self._saver is not None:
                self._saver.published(policy)
        log.log(logging.WARNING if reason else logging.INFO, in_words(policy, metrics, len(trained)))
        if self._tracker is not None:
            self._tracker.tell(policy, self._kept(metrics), [s.turn for s in trained])

    def _no_step(self, head: Policy, reasons: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        if self._tracker is not None:
            self._tracker.pass_over(head, reasons, self._kept(metrics), self._clock())

    def _standing_of(self, head: Policy, step: int) -> dict[str, float]:
        """Return satisfaction with the versions since the last evaluation, after every `track.eval_every`-th step."""
        if self._eval_every is None or step % self._eval_every:
            return {}
        with self._store.read() as conn:
            return standing(conn, policies.lineage(conn, head.version)[: self._eval_every])

    def _kept(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the finite metrics, with the engine's name in those of the gap between engine and trainer."""
        named = ((name.replace("gap/engine", f"gap/{self._engine}"), value) for name, value in metrics.items())
        return {name: value for name, value in named if math.isfinite(value)}

    def _held(self) -> Lease:
        lease = self._keeper.lease
        if lease is None:
            raise StaleLease("the trainer's lease expired during the step; another trainer may be running")
        return lease

    def _drop(self, reasons: Mapping[str, str]) -> None:
        with self._store.write() as conn:
            leases.check(conn, self._held(), self._clock())
            _mark(conn, reasons)


def is_last(head: Policy, train: TrainConfig) -> bool:
    """Return True if `train.max_steps` allows no further step."""
    return train.max_steps is not None and step_of(head) >= train.max_steps


def _mark(conn: Connection, reasons: Mapping[str, str]) -> None:
    for turn, reason in reasons.items():
        turns.mark_untrainable(conn, turn, reason)
