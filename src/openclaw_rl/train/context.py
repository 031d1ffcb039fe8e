"""The parts of the training loop, and the home and the lease that they share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.common import steady_clock
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.practice.session import PracticeSession
from openclaw_rl.settings.load import TrainConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage.policy_names import PolicyOwner
from openclaw_rl.train.checkpoints import CheckpointWriter
from openclaw_rl.train.lease_keeper import LeaseKeeper
from openclaw_rl.train.satisfaction_watch import SatisfactionWatch
from openclaw_rl.train.tracking import MetricsTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """The optional parts of the training loop."""

    engine: str = "engine"
    """Name of the engine that samples; part of the names of metrics that compare it with the trainer."""
    tracker: MetricsTracker | None = None
    saver: CheckpointWriter | None = None
    eval_every: int | None = None
    """Versions from one measurement of satisfaction to the next; None: none is measured."""
    gate: CandidateGate | None = None
    """Examines each result before it becomes the head; None: the metrics of the step decide alone."""
    watch: SatisfactionWatch | None = None
    per: PolicyOwner = "all"
    """Who has a policy of its own, trained from its own turns alone."""
    practice: PracticeSession | None = None
    """Practice of lessons, while no batch is complete; None: none."""
    clock: Callable[[], float] = time.time
    """Seconds since the epoch."""
    lease_clock: Callable[[], float] = steady_clock.boot_seconds
    """Seconds by a clock that does not jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainContext:
    """The home that is trained on, and the lease under which that is done."""

    store: Store
    settings: TrainConfig
    root: Path
    """Folder of the policy folders."""
    per: PolicyOwner
    keeper: LeaseKeeper
    clock: Callable[[], float]
    """Seconds since the epoch."""
