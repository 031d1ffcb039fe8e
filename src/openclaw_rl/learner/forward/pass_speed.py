"""Speed of forward and backward passes on a processor: how long one takes, and how many tokens it may have.

On a GPU nothing is measured, and the settings alone decide on the tokens of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.common.progress import Activity, WorkKind, working_on

MAX_PASS_SECONDS = 30.0
"""Seconds of a free processor that a pass may take at most, as long as it has more than one row."""
MIN_PASS_TOKENS = 32
"""Tokens below which a pass is not made smaller: its fixed cost would be most of it."""
TRAIN_COST = 3.0
"""Seconds of a forward and backward pass for each second of a forward pass, until one was measured."""
# Weight of the newest pass in the average of the speed.
_NEW_WEIGHT = 0.5


class PassSpeed:
    """Measured speed of the passes of one model."""

    def __init__(self, *, is_measured: bool) -> None:
        """`is_measured`: whether the model computes on a processor; else nothing is expected and every size fits."""
        self.is_measured = is_measured
        # Seconds of a free processor per token.
        self._processor: dict[WorkKind, float] = {}
        # Seconds by the clock per token.
        self._clock: dict[WorkKind, float] = {}

    def expected_seconds(self, kind: WorkKind, tokens: int) -> float | None:
        """Return the seconds of a free processor that a pass of `tokens` takes; None if no pass was measured."""
        rate = _rate_of(self._processor, kind)
        return None if rate is None else rate * tokens

    def remaining_seconds(self, kind: WorkKind, tokens: int) -> float | None:
        """Return the seconds by the clock that `tokens` take at the speed so far; None if no pass was measured."""
        rate = _rate_of(self._clock, kind)
        return None if rate is None else rate * tokens

    def fits(self, tokens: int) -> bool:
        """Return whether a training pass of so many tokens takes at most `MAX_PASS_SECONDS`, or is the smallest."""
        seconds = self.expected_seconds(WorkKind.TRAIN, tokens)
        return tokens <= MIN_PASS_TOKENS or seconds is None or seconds <= MAX_PASS_SECONDS

    def record_pass(self, kind: WorkKind, tokens: int, *, processor: float, clock: float) -> None:
        """Record a pass. `processor`: processor time of all threads, in seconds; `clock`: seconds by the clock.

        A pass that had to wait for a processor took longer by the clock than it needs; one with several threads used
        more processor time.
        """
        if not self.is_measured or tokens < 1:
            return
        for rates, seconds in ((self._processor, min(processor, clock)), (self._clock, clock)):
            rate = seconds / tokens
            if kind in rates:
                rate = _NEW_WEIGHT * rate + (1 - _NEW_WEIGHT) * rates[kind]
            rates[kind] = rate

    @contextmanager
    def measure_pass(
        self,
        kind: WorkKind,
        tokens: int,
        *,
        number: int = 1,
        total: int = 1,
        later_tokens: int = 0,
        whole: bool = True,
    ) -> Iterator[None]:
        """Report a pass as this process's activity, and record its speed.

        `later_tokens`: of the passes after this one; `whole`: whether the block is all of the pass, so that its speed
        counts.
        """
        activity = Activity(
            kind=kind,
            number=number,
            total=total,
            expected=self.expected_seconds(kind, tokens),
            remaining=self.remaining_seconds(kind, tokens + later_tokens),
            began_at=time.time(),
        )
        with working_on(activity):
            clock = time.perf_counter()
            processor = time.process_time()
            yield
            if whole:
                self.record_pass(
                    kind,
                    tokens,
                    processor=time.process_time() - processor,
                    clock=time.perf_counter() - clock,
                )


def _rate_of(rates: dict[WorkKind, float], kind: WorkKind) -> float | None:
    """Return the seconds per token of a kind of pass; until a training pass was measured, by those of scoring."""
    if kind in rates:
        return rates[kind]
    if kind is WorkKind.TRAIN and WorkKind.SCORE in rates:
        return TRAIN_COST * rates[WorkKind.SCORE]
    return None
