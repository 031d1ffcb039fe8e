"""The slow average of reply tokens: the only length in a denominator. Pure.

Dividing by the tokens of the batch itself ties the weight of a reply to the lengths of those beside it. At batch 4 that
pays for short replies whenever advantages are positive on average (tests/learner/test_learning.py measures it). An
average read before the batch cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEY = "reply_tokens"


class ReplyTokens:
    """Reads the average from a policy's memory; the very first batch stands for it."""

    def __init__(self, memory: Mapping[str, Any], *, decay: float) -> None:
        self._memory, self._decay = memory, decay

    def read(self, lengths: Sequence[int]) -> float:
        """Tokens per reply, as known before a batch with these `lengths`."""
        return float(self._memory[KEY]) if KEY in self._memory else sum(lengths) / len(lengths)

    def updated(self, lengths: Sequence[int]) -> dict[str, Any]:
        """The memory after the batch."""
        if not lengths:
            return dict(self._memory)
        average = self.read(lengths)
        if KEY in self._memory:
            for length in lengths:
                average = self._decay * average + (1 - self._decay) * length
        return dict(self._memory) | {KEY: average}
