"""A trainer and the version that it has loaded."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.common import disk_space
from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.errors import StaleLease
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.protocols import ConfirmedTrainer, ResidentTrainer, Trainer
from openclaw_rl.train import policy_folders
from openclaw_rl.train.file_monitor import FileMonitor
from openclaw_rl.types import Logprobs, Policy

log = logging.getLogger(__name__)


class LoadedTrainer:
    """Loads a version only where another one is loaded."""

    def __init__(self, trainer: Trainer, monitor: FileMonitor, root: Path) -> None:
        """`root`: folder of the policy folders."""
        self._trainer = trainer
        self._monitor = monitor
        self._root = root
        # Version and folder; None: not known.
        self._loaded: tuple[int, str | None] | None = None

    def has_loaded(self, policy: Policy) -> bool:
        return self._loaded == (policy.version, policy.path)

    def mark_loaded(self, policy: Policy) -> None:
        """Record that the last step has left the trainer with this version."""
        self._loaded = policy.version, policy.path
        if isinstance(self._trainer, ConfirmedTrainer):
            self._trainer.confirm_step()

    def reject_step(self, reason: str, folder: str | None = None) -> None:
        """Remove the weights of the last step, which are not kept, and report that to a trainer that waits for it."""
        if folder is not None:
            policy_folders.remove_folder(Path(folder))
        if isinstance(self._trainer, ConfirmedTrainer):
            self._trainer.reject_step(reason)

    def load(self, policy: Policy) -> str | None:
        """Load a version, if it is not loaded. Return how its files are damaged, in which case it is not."""
        if self.has_loaded(policy):
            return None
        damage = self._monitor.examine(policy, trusts_known=self._is_resident(policy))
        if damage is not None:
            return damage
        self._load_folder(policy, policy.path)
        self.mark_loaded(policy)
        has_state = policy.path is None or (Path(policy.path) / OPTIMIZER_FILE).exists()
        # Another program keeps its own.
        if self._trainer.computes_here and not has_state:
            log.warning(
                "version %d no longer has an optimizer state: the optimizer starts from the beginning",
                policy.version,
            )
        return None

    def _is_resident(self, policy: Policy) -> bool:
        """Return whether the trainer has the version in memory, so that files that have not changed need no reading."""
        if policy.path is None or not isinstance(self._trainer, ResidentTrainer):
            return False
        return self._trainer.has_resident(policy.path)

    def turns_at_risk(self, samples: Sequence[Sample]) -> list[str]:
        """Return the turns on which this process may die; none if another program or a service computes the step."""
        return list(dict.fromkeys(s.turn for s in samples)) if self._trainer.computes_here else []

    def step(self, samples: Sequence[Sample], version: int) -> StepResult:
        """Take a step from the loaded version, into a new folder. What is loaded then is not known until marked."""
        self._loaded = None
        return self._trainer.step(samples, str(policy_folders.new_folder(self._root, version)))

    def score(self, policy: Policy, samples: Sequence[Sample]) -> list[Logprobs]:
        """Return the log-probabilities [R] of each sample's reply under a version.

        Raises `StaleLease` if its files are damaged, after which the head or the candidate is another one.
        """
        if damage := self.load(policy):
            raise StaleLease(f"version {policy.version} is damaged: {damage}")
        return self._trainer.score(samples)

    def score_after_step_alone(
        self, head: Policy, batch: Sequence[Sample], samples: Sequence[Sample]
    ) -> list[Logprobs] | None:
        """Return the log-probabilities of `samples` after a step on `batch` without the moments of earlier steps.

        Momentum of good batches hides for some steps what a bad one teaches. None if the batch has no gradient.
        """
        disk_space.require_space(self._root, policy_folders.folder_bytes(head.path))
        start = (
            None
            if head.path is None
            else _copy_without_optimizer(head.path, self._root, head.version)
        )
        result = policy_folders.new_folder(self._root, head.version)
        try:
            self._load_folder(head, None if start is None else str(start))
            self._loaded = None
            took_step = self._trainer.step(batch, str(result)).folder is not None
            return self._trainer.score(samples) if took_step else None
        finally:
            for folder in (start, result):
                if folder is not None:
                    policy_folders.remove_folder(folder)

    def _load_folder(self, policy: Policy, folder: str | None) -> None:
        self._loaded = None
        self._trainer.load(folder=folder, method_state=policy.memory)


def _copy_without_optimizer(folder: str, root: Path, version: int) -> Path:
    """Return a new folder with links to the files, all but the optimizer state. Its trainer may die: an orphan."""
    copied = policy_folders.new_folder(root, version)
    copied.mkdir()
    for file in Path(folder).iterdir():
        if file.name != OPTIMIZER_FILE and file.is_file():
            try:
                os.link(file, copied / file.name)
            except OSError:
                # A file system without links.
                shutil.copy2(file, copied / file.name)
    return copied
