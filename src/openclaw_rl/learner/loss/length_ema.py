"""Moving average of reply lengths, the only length in a loss denominator. Pure.

Dividing by the tokens of the batch itself would make the weight of a reply depend on the lengths of the others. At
batch size 4 that rewards short replies whenever advantages are positive on average (measured in
tests/learner/test_learning.py). An average that is read before the batch does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STATE_KEY = "reply_tokens"


class LengthEma:
    """Moving average of tokens per reply, kept in the method state; the first batch initialises it."""

    def __init__(self, state: Mapping[str, Any], *, decay: float) -> None:
        self._state = state
        self._decay = decay

    def average_length(self, lengths: Sequence[int]) -> float:
        """Return the average tokens per reply before the batch; before the first batch, the mean of `lengths`."""
        return (
            float(self._state[STATE_KEY])
            if STATE_KEY in self._state
            else sum(lengths) / len(lengths)
        )

    def updated_state(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Return the method state after the batch."""
        if not lengths:
            return dict(self._state)
        average = self.average_length(lengths)
        if STATE_KEY in self._state:
            for length in lengths:
                average = self._decay * average + (1 - self._decay) * length
        return dict(self._state) | {STATE_KEY: average}
