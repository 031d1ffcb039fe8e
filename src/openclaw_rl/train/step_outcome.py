"""A step that was taken: the samples that it used, its metrics, and the policy version and uses that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import turns
from openclaw_rl.store.lineage import policies
from openclaw_rl.train.tracking import drop_counts, reward_metrics, staleness_metrics
from openclaw_rl.types import Policy, PolicyState, Use


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """One step from `head` towards `version`."""

    head: Policy
    version: int
    samples: Sequence[Sample]
    earlier_uses: Mapping[str, int]  # by turn
    result: StepResult

    @property
    def trained(self) -> list[Sample]:
        """The samples that had a gradient."""
        return [s for s in self.samples if s.turn not in self.result.dropped]

    @property
    def trained_turns(self) -> list[str]:
        """The turns that had a gradient; a turn may have two samples."""
        return list(dict.fromkeys(s.turn for s in self.trained))

    @property
    def left_out(self) -> list[Sample]:
        """The samples that had none."""
        return [s for s in self.samples if s.turn in self.result.dropped]

    def collect_metrics(self, conn: Connection, dropped: Mapping[str, int]) -> dict[str, float]:
        """Return the metrics of the step and its batch. `dropped`: counts of turns since the last version."""
        metrics = reward_metrics(turns.current_verdicts(conn, self.trained_turns).values())
        metrics |= self.result.metrics
        replays = {sample.turn for sample in self.trained if sample.replay}
        passed_over = {sample.turn for sample in self.left_out if sample.replay}
        metrics["replays"] = float(len(replays))
        metrics["replays/passed_over"] = float(len(passed_over))
        oldest = min((sample.version for sample in self.trained), default=0)
        since = policies.lineage(conn, self.head.version, above=oldest)
        metrics |= staleness_metrics(since, self.trained)
        return metrics | drop_counts(dropped, self.result.metrics)

    def make_policy(self, metrics: Mapping[str, float], reason: Reason | None, at: float) -> Policy:
        """Return the version as it is stored: rejected with a reason, else live."""
        policy = replace(
            self.head,
            version=self.version,
            parent=self.head.version,
            state=PolicyState.LIVE,
            path=self.result.folder,
            digest=self.result.digest,
            files=self.result.files,
            damage=None,
            memory=self.result.memory,
            metrics=metrics,
            reason=None,
            reason_code=None,
            created_at=at,
        )
        if reason is None:
            return policy
        return replace(
            policy,
            state=PolicyState.REJECTED,
            # The files of a rejected version are removed.
            path=None,
            files={},
            reason=reason.detail,
            reason_code=reason.code,
        )

    def untrainable_turns(self, reason: Reason | None) -> dict[str, Reason]:
        """Return the new turns that leave the queue, each with why. `reason`: why the result is rejected."""
        reasons = {s.turn: self.result.dropped[s.turn] for s in self.left_out if not s.replay}
        if reason and len(self.trained_turns) == 1:
            reasons[self.trained_turns[0]] = alone_reason(reason)
        return reasons


def alone_reason(reason: Reason) -> Reason:
    """Return why a turn leaves the training queue after a step on it alone was rejected for `reason`."""
    return Reason(ReasonCode.REJECTED_ALONE, f"a step on it alone was rejected: {reason}")


def make_uses(
    version: int, samples: Sequence[Sample], earlier_uses: Mapping[str, int]
) -> list[Use]:
    """Return the uses of the turns of these samples by `version`, one for each turn."""
    turns = dict.fromkeys(sample.turn for sample in samples)
    return [Use(policy=version, turn=turn, number=earlier_uses[turn] + 1) for turn in turns]


def failed_version(head: Policy, version: int, reason: Reason, at: float) -> Policy:
    """Return the rejected version of a step that gave no weights."""
    return replace(
        head,
        version=version,
        parent=head.version,
        state=PolicyState.REJECTED,
        path=None,
        digest="",
        metrics={},
        reason=reason.detail,
        reason_code=reason.code,
        created_at=at,
    )
