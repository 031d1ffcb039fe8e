"""Tokens that training has sent to the service, in a file of the home: it outlives restarts and rollbacks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from openclaw_rl.errors import ModelError, TrainerAbsent

USAGE_FILE = "tinker_usage.json"


class TrainingBudget:
    """Counts tokens, and refuses steps and calls that would exceed the budget."""

    def __init__(self, home: Path, budget: int | None) -> None:
        """`budget`: tokens in all; None: no limit. Raises `ModelError` if the file cannot be read."""
        self._file = home / USAGE_FILE
        self._budget = budget
        self.total = self._read_total()
        # Since `begin_step`.
        self.scored = self.trained = 0

    def _read_total(self) -> int:
        if not self._file.exists():
            return 0
        try:
            return int(json.loads(self._file.read_text(encoding="utf-8"))["training_tokens"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ModelError(
                f"{self._file} cannot be read ({error}). Correct it, or remove it to count from zero"
            ) from None

    def begin_step(self, tokens: int) -> None:
        """Start to count a step that sends up to `tokens`. Raises `TrainerAbsent` if they exceed the budget.

        A step that is taken again at half the rate sends more; `spend_tokens` refuses that.
        """
        self.scored = self.trained = 0
        self._require_left(tokens)

    def spend_tokens(self, count: int, *, trained: bool) -> None:
        """Count the tokens of a call before it is made: what was sent is paid for, whatever becomes of the answer.

        Raises `TrainerAbsent`, with nothing counted, if they exceed the budget: the call is not made.
        """
        self._require_left(count)
        self.total += count
        if trained:
            self.trained += count
        else:
            self.scored += count
        fresh = self._file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"training_tokens": self.total}))
            file.flush()
            # Else a power failure may leave it empty, which stops training.
            os.fsync(file.fileno())
        os.replace(fresh, self._file)  # noqa: PTH105 - the atomic one

    def _require_left(self, tokens: int) -> None:
        if self._budget is not None and self.total + tokens > self._budget:
            raise TrainerAbsent(
                f"tinker.budget_tokens ({self._budget}) is reached: training has sent {self.total} tokens, and would "
                f"send {tokens} more. Raise it to train on; serving is not affected"
            )

    @property
    def metrics(self) -> dict[str, float]:
        """Tokens of this step, and of all steps so far."""
        counts = {"scored": self.scored, "trained": self.trained, "total": self.total}
        return {f"tinker/tokens/{name}": float(count) for name, count in counts.items()}
