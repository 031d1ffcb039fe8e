"""Promote or reject the candidate of the last step, as the gate decides, under the trainer's lease."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Connection

from openclaw_rl.common.progress import Wait, WorkNote
from openclaw_rl.errors import DamagedRow, OpenClawError
from openclaw_rl.gates.canary import CanaryEvidence, score_limit
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.methods.types import Sample
from openclaw_rl.protocols import Batch, PolicyWork, Waiting
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store import leases, turn_states, turns
from openclaw_rl.store.lineage import candidates, policies, policy_marks, training_queue
from openclaw_rl.store.lineage.live_scores import newest_people, newest_scores
from openclaw_rl.store.lineage.policy_marks import CanaryMark
from openclaw_rl.store.lineage.policy_names import PolicyOwner, is_owned, owner_filter
from openclaw_rl.store.workers.attempts import MAX_DEATHS, AttemptLog
from openclaw_rl.train import policy_folders
from openclaw_rl.train.context import TrainContext
from openclaw_rl.train.loaded_trainer import LoadedTrainer
from openclaw_rl.train.sample_builder import SampleBuilder, oldest_version
from openclaw_rl.train.step_outcome import alone_reason
from openclaw_rl.train.tracking import StepReporter
from openclaw_rl.train.version_thinning import VersionThinner
from openclaw_rl.types import Lease, Policy

log = logging.getLogger("openclaw_rl.train")


class CandidateExaminer:
    """Brings a candidate to its decision, one piece of work a call; also one that an earlier trainer left."""

    def __init__(
        self,
        context: TrainContext,
        gate: CandidateGate | None,
        trainer: LoadedTrainer,
        builder: SampleBuilder,
        reporter: StepReporter,
        thinner: VersionThinner,
    ) -> None:
        """`gate`: None promotes every candidate."""
        self._context = context
        self._store = context.store
        self._gate = gate
        self._trainer = trainer
        self._builder = builder
        self._reporter = reporter
        self._thinner = thinner
        self._attempts = AttemptLog(context.store, "gate")

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

    def find_candidates(self) -> tuple[Policy | None, dict[str, Policy]]:
        """Return the candidate that the gate examines, and by policy those that answer a share of the conversations.

        All others can no longer become the head of their policy. They are rejected, and their turns freed.
        """
        with self._store.read() as conn:
            waiting = candidates.list_candidates(conn)
            reasons = {c.version: _outdated_reason(conn, c, self._context.per) for c in waiting}
            canary_versions = {mark.version for mark in policy_marks.all_canaries(conn).values()}
        examined: Policy | None = None
        canaries: dict[str, Policy] = {}
        for candidate in waiting:
            reason = reasons[candidate.version]
            if reason is not None:
                self._reject(candidate, reason, {}, frees_turns=True)
            elif candidate.version in canary_versions:
                canaries[candidate.name] = candidate
            elif examined is None:
                examined = candidate
        return examined, canaries

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Do the next piece of the examination of the policy's candidate, and say what it is; None without one.

        Raises `StaleLease`, with nothing changed.
        """
        if policy.candidate is None:
            return None
        result = self._examine(policy.candidate, policy.head)
        if isinstance(result, Waiting):
            return result
        with self._store.read() as conn:
            trained = [use.turn for use in policies.uses_of_version(conn, result.version)]
        self._reporter.report_step(result, result.metrics, trained)
        self._thinner.thin_versions(self._context.clock())
        return Waiting(note=WorkNote(f"version {result.version} is decided on"), has_worked=True)

    def _examine(self, candidate: Policy, head: Policy) -> Policy | Waiting:
        """Do the next piece of the examination. Return the version as it was decided on, or what is left to do."""
        with self._store.read() as conn:
            canary = policy_marks.find_canary(conn, candidate.name)
        if canary is not None and canary.version == candidate.version:
            return self._watch_canary(candidate, canary)
        deaths = self._attempts.begin([str(candidate.version)]).get(str(candidate.version), 0)
        if deaths >= MAX_DEATHS:
            detail = f"the trainer died {deaths} times while it examined this version"
            return self._reject(candidate, Reason(ReasonCode.BROKEN, detail), {})
        if self._gate is None:
            return self._promote(candidate, {})
        with self._attempts.interrupted_by(OpenClawError, OSError, ValueError):
            result = self._gate.examine(
                candidate, head, self._trainer, lambda: self._load_batch(candidate, head)
            )
        if isinstance(result, Waiting):
            return result
        if result.reason is not None:
            return self._reject(candidate, result.reason, result.metrics)
        if self._gate.settings.canary > 0:
            return self._begin_canary(candidate, result.metrics, self._gate.settings.canary)
        return self._promote(candidate, result.metrics)

    def _begin_canary(
        self, candidate: Policy, metrics: Mapping[str, float], share: float
    ) -> Waiting:
        now = self._context.clock()
        with self._store.write() as conn:
            leases.check(conn, self._lease(), self._context.keeper.clock())
            candidates.record_metrics(conn, candidate, {**candidate.metrics, **metrics})
            policy_marks.begin_canary(conn, candidate.name, candidate.version, share, now)
            self._attempts.end(conn)
        details = f"version {candidate.version} answers {share:.0%} of the conversations"
        log.info("%s", details)
        return Waiting(note=WorkNote(details), has_worked=True, polls=True)

    def _watch_canary(self, candidate: Policy, canary: CanaryMark) -> Policy | Waiting:
        assert self._gate is not None, "only a gate begins a canary"
        with self._store.read() as conn:
            owner = owner_filter(self._gate.per, candidate.name)
            limit = score_limit(canary.share, self._gate.settings)
            scores = newest_scores(
                conn, candidate.version, after=canary.after, limit=limit, owner=owner
            )
            people = newest_people(conn, candidate.version, after=canary.after, owner=owner)
        evidence = CanaryEvidence(
            scores, candidate, canary.share, self._gate.settings, is_shared=len(people) > 1
        )
        decision = evidence.decide(self._context.clock() - canary.at)
        if decision is None:
            share = f"{canary.share:.0%} of the conversations"
            details = f"version {candidate.version} answers {share}: {evidence.describe()}"
            return Waiting(note=WorkNote(details, frozenset({Wait.GATE})))
        if decision.reason is not None:
            return self._reject(candidate, decision.reason, decision.metrics)
        return self._promote(candidate, decision.metrics)

    def _promote(self, candidate: Policy, gate_metrics: Mapping[str, float]) -> Policy:
        with self._store.write() as conn:
            promoted = candidates.promote_candidate(
                conn,
                self._lease(),
                candidate,
                {**candidate.metrics, **gate_metrics},
                self._context.clock(),
                lease_now=self._context.keeper.clock(),
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
                lineage = policies.lineage(conn, head.version, above=oldest_version(items))
        except DamagedRow as error:
            log.warning("version %d is examined without its batch: %s", candidate.version, error)
            return []
        served = [item for item in items if item.exchange.request.origin is None]
        return self._builder.build_batch(served, head, lineage).samples

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
                self._context.clock(),
                lease_now=self._context.keeper.clock(),
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
        return self._context.keeper.require_lease()


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
