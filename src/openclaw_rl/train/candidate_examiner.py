"""Promote or reject the candidate of the last step, as the gate decides, under the trainer's lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.errors import DamagedRow, OpenClawError
from openclaw_rl.gates.canary import CanaryEvidence, score_limit
from openclaw_rl.gates.candidate_gate import PASSED, CandidateGate
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.methods.types import Sample
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store import heartbeats, leases, turn_states, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import candidates, policies, policy_marks, training_queue
from openclaw_rl.store.lineage.live_scores import newest_scores
from openclaw_rl.store.lineage.policy_marks import CanaryMark
from openclaw_rl.store.lineage.policy_names import PolicyOwner, is_owned, owner_filter
from openclaw_rl.train import policy_folders
from openclaw_rl.train.lease_keeper import LeaseKeeper
from openclaw_rl.train.loaded_trainer import LoadedTrainer
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.step_outcome import alone_reason
from openclaw_rl.types import Lease, Policy

log = logging.getLogger("openclaw_rl.train")


class CandidateExaminer:
    """Brings a candidate to its decision, one piece of work a call; also one that an earlier trainer left."""

    def __init__(
        self,
        store: Store,
        gate: CandidateGate | None,
        keeper: LeaseKeeper,
        clock: Callable[[], float],
        trainer: LoadedTrainer,
        builder: SampleBuilder,
    ) -> None:
        """`gate`: None promotes every candidate. `clock`: seconds since the epoch."""
        self._store = store
        self._gate = gate
        self._keeper = keeper
        self._clock = clock
        self._trainer = trainer
        self._builder = builder
        self._attempts = heartbeats.AttemptLog(store, "gate")
        self.note = ""
        # Whether there may be work without a commit.
        self.polls = True
        # Whether the last piece of work was one, and no wait.
        self.has_worked = False

    @property
    def is_active(self) -> bool:
        """Whether the result of a step becomes a candidate, instead of the head."""
        return self._gate is not None and (self._gate.examines or self._gate.settings.canary > 0)

    def metrics_reason(self, metrics: Mapping[str, float], train: TrainConfig) -> Reason | None:
        """Return why a step with these metrics is rejected, or None."""
        return rejection_reason(
            metrics, train, bounded=self._gate is None or self._gate.bounds_metrics
        )

    def forget_attempts(self) -> None:
        """Forget which candidate is examined: the end of this process, which is due, is not its fault."""
        self._attempts.forget()

    def find_candidates(self, per: PolicyOwner) -> tuple[Policy | None, dict[str, Policy]]:
        """Return the candidate that the gate examines, and by policy those that answer a share of the conversations.

        All others can no longer become the head of their policy. They are rejected, and their turns freed.
        """
        with self._store.read() as conn:
            found = [(c, _outdated_reason(conn, c, per)) for c in candidates.list_candidates(conn)]
            canaries = {mark.version for mark in policy_marks.all_canaries(conn).values()}
        for candidate, why in found:
            if why is not None:
                self._reject(candidate, why, {}, frees_turns=True)
        left = [candidate for candidate, why in found if why is None]
        examined = next(
            (candidate for candidate in left if candidate.version not in canaries), None
        )
        return examined, {
            candidate.name: candidate for candidate in left if candidate.version in canaries
        }

    def examine(self, candidate: Policy, head: Policy) -> Policy | None:
        """Do the next piece of the examination. Return the version as it was decided on, or None while it was not.

        Raises `StaleLease`, with nothing changed.
        """
        with self._store.read() as conn:
            canary = policy_marks.find_canary(conn, candidate.name)
        self.polls = canary is None or canary.version != candidate.version
        if canary is not None and not self.polls:
            return self._watch_canary(candidate, canary)
        deaths = self._attempts.begin([str(candidate.version)]).get(str(candidate.version), 0)
        if deaths >= heartbeats.MAX_DEATHS:
            detail = f"the trainer died {deaths} times while it examined this version"
            return self._reject(candidate, Reason(ReasonCode.BROKEN, detail), {})
        result = PASSED
        if self._gate is not None:
            with self._attempts.interrupted_by(OpenClawError, OSError, ValueError):
                decided = self._gate.examine(
                    candidate, head, self._trainer, lambda: self._load_batch(candidate, head)
                )
            self.note = self._gate.note
            self.has_worked = not self._gate.is_waiting
            if decided is None:
                return None
            result = decided
        if result.reason is not None:
            return self._reject(candidate, result.reason, result.metrics)
        if self._gate is not None and self._gate.settings.canary > 0:
            self._begin_canary(candidate, result.metrics, self._gate.settings.canary)
            return None
        return self._promote(candidate, result.metrics)

    def _begin_canary(self, candidate: Policy, metrics: Mapping[str, float], share: float) -> None:
        with self._store.write() as conn:
            leases.check(conn, self._lease(), self._keeper.clock())
            candidates.record_metrics(conn, candidate, {**candidate.metrics, **metrics})
            policy_marks.begin_canary(conn, candidate.name, candidate.version, share, self._clock())
            self._attempts.end(conn)
        log.info("version %d answers %.0f%% of the conversations", candidate.version, 100 * share)

    def _watch_canary(self, candidate: Policy, canary: CanaryMark) -> Policy | None:
        assert self._gate is not None, "only a gate begins a canary"
        self.has_worked = False
        with self._store.read() as conn:
            owner = owner_filter(self._gate.per, candidate.name)
            limit = score_limit(canary.share, self._gate.settings)
            scores = newest_scores(
                conn, candidate.version, after=canary.after, limit=limit, owner=owner
            )
        evidence = CanaryEvidence(scores, candidate, canary.share, self._gate.settings)
        decided = evidence.decide(self._clock() - canary.at)
        if decided is None:
            share = f"{canary.share:.0%} of the conversations"
            self.note = f"version {candidate.version} answers {share}: {evidence.describe()}"
            return None
        if decided.reason is not None:
            return self._reject(candidate, decided.reason, decided.metrics)
        return self._promote(candidate, decided.metrics)

    def _promote(self, candidate: Policy, found: Mapping[str, float]) -> Policy:
        with self._store.write() as conn:
            metrics = {**candidate.metrics, **found}
            promoted = candidates.promote_candidate(
                conn,
                self._lease(),
                candidate,
                metrics,
                self._clock(),
                lease_now=self._keeper.clock(),
            )
            self._attempts.end(conn)
        return promoted

    def _load_batch(self, candidate: Policy, head: Policy) -> list[Sample]:
        """Return the samples that the candidate was trained on; none if a row is damaged.

        Without replays, which passed the gate before, and imported turns, which the owner chose.
        """
        try:
            with self._store.read() as conn:
                items = training_queue.fresh_turns_of(
                    conn, version=candidate.version, head=head.version
                )
                line = policies.lineage(conn, head.version)
        except DamagedRow as error:
            log.warning("version %d is examined without its batch: %s", candidate.version, error)
            return []
        own = [item for item in items if item.exchange.request.origin is None]
        return self._builder.build_batch(own, head, line).samples

    def _reject(
        self,
        candidate: Policy,
        reason: Reason,
        metrics: Mapping[str, float],
        *,
        frees_turns: bool = False,
    ) -> Policy:
        """Reject a candidate, and remove its folder. A batch of one turn leaves the training queue with the reason."""
        with self._store.write() as conn:
            used = [use.turn for use in policies.uses_of_version(conn, candidate.version)]
            rejected = candidates.reject_candidate(
                conn,
                self._lease(),
                candidate,
                reason,
                {**candidate.metrics, **metrics},
                self._clock(),
                lease_now=self._keeper.clock(),
                frees_turns=frees_turns,
            )
            if len(used) == 1 and not frees_turns:
                turns.mark_untrainable(conn, {used[0]: alone_reason(reason)})
            self._attempts.end(conn)
        if frees_turns:
            log.warning("version %d was not examined to its end: %s", candidate.version, reason)
        policy_folders.remove_folder(Path(str(candidate.path)))
        return rejected

    def _lease(self) -> Lease:
        return self._keeper.require_lease()


def _outdated_reason(conn: Connection, candidate: Policy, per: PolicyOwner) -> Reason | None:
    """Return why a candidate can no longer become the head of its policy, or None."""
    if candidate.damage is not None:
        return Reason(ReasonCode.DAMAGED, f"its files are damaged: {candidate.damage}")
    if not is_owned(per, candidate.name):
        detail = f"the policy {candidate.name!r} is not trained with policy.per {per}"
        return Reason(ReasonCode.OUTDATED, detail)
    if candidate.parent != policies.head(conn, candidate.name).version:
        detail = f"version {candidate.parent}, which it was trained from, is no longer the head"
        return Reason(ReasonCode.OUTDATED, detail)
    undone = turn_states.taken_back(
        conn, [use.turn for use in policies.uses_of_version(conn, candidate.version)]
    )
    if not undone:
        return None
    return Reason(
        ReasonCode.TAKEN_BACK, f"turns that it was trained on were taken back: {', '.join(undone)}"
    )
