"""Tokens that training has sent to the service, in a file of the home: it outlives restarts and rollbacks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from openclaw_rl.errors import ModelError, TrainerAbsent

USAGE_FILE = "tinker_usage.json"


class TrainingBudget:
    """Counts tokens, and stops training at the budget."""

    def __init__(self, home: Path, budget: int | None) -> None:
        """`budget`: tokens in all; None: no limit. Raises `ModelError` if the file cannot be read."""
        self._file, self._budget = home / USAGE_FILE, budget
        self.total = self._read_total()
        self.scored = self.trained = 0  # since `begin_step`

    def _read_total(self) -> int:
        if not self._file.exists():
            return 0
        try:
            return int(json.loads(self._file.read_text(encoding="utf-8"))["training_tokens"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise ModelError(
                f"{self._file} cannot be read ({error}). Correct it, or remove it to count from zero"
            ) from None

    def begin_step(self) -> None:
        """Start to count a step. Raises `TrainerAbsent` if the budget is used up."""
        self.scored = self.trained = 0
        if self._budget is not None and self.total >= self._budget:
            raise TrainerAbsent(
                f"tinker.budget_tokens ({self._budget}) is used up: training has sent {self.total} tokens. Raise it to "
                "train on; serving is not affected"
            )

    def add_tokens(self, count: int, *, trained: bool) -> None:
        """Count tokens before they are sent: what was sent is paid for, whatever becomes of the answer."""
        self.total += count
        if trained:
            self.trained += count
        else:
            self.scored += count
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps({"training_tokens": self.total}), encoding="utf-8")
        os.replace(fresh, self._file)  # noqa: PTH105 - the atomic one

    @property
    def metrics(self) -> dict[str, float]:
        """Tokens of this step, and of all steps so far."""
        counts = {"scored": self.scored, "trained": self.trained, "total": self.total}
        return {f"tinker/tokens/{name}": float(count) for name, count in counts.items()}
