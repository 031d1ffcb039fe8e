"""Handling of steps that run out of memory, e.g. beside a trainer on the same device.

The engine clears the prefix cache. A sequence in prefill returns to the end of the queue until a row ends, or for
`PREFILL_RETRY_DELAY`. If that does not help, running rows free their states and restart one by one from their tokens.
A sequence that does not fit alone for `SINGLE_SEQUENCE_TIMEOUT` fails with a message. The process never exits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from openclaw_rl.engines.embedded.sequence import EngineSequence

# Seconds for which one sequence is tried alone before it fails.
SINGLE_SEQUENCE_TIMEOUT = 60.0
# Seconds between two attempts.
RETRY_INTERVAL = 0.2
# Seconds until a prefill is tried again although no row has ended.
PREFILL_RETRY_DELAY = 2.0


@dataclass(slots=True)
class OomState:
    """Out-of-memory state. `rows`: batch size at the last failure."""

    rows: int
    again: float  # monotonic time at which a prefill is tried although no row has ended

    @classmethod
    def at_failure(cls, rows: int) -> OomState:
        return cls(rows=rows, again=time.monotonic() + PREFILL_RETRY_DELAY)

    def may_prefill(self, rows: int) -> bool:
        return rows == 0 or rows < self.rows or time.monotonic() >= self.again


def has_timed_out(seq: EngineSequence) -> bool:
    """Record that a sequence does not fit alone. Return whether that has lasted for the timeout."""
    now = time.monotonic()
    seq.oom_since = seq.oom_since or now
    return now - seq.oom_since >= SINGLE_SEQUENCE_TIMEOUT


def oom_reason(tokens: int, device: torch.device) -> str:
    """Return the error message for a sequence of `tokens` tokens that does not fit."""
    return (
        f"{tokens} tokens do not fit into the memory of {device}, tried for {SINGLE_SEQUENCE_TIMEOUT:g} s. "
        "Start a new conversation, or free memory: lower engine.max_context, engine.max_batch or engine.prefill_chunk, "
        "move the trainer to another device (train.gpus), or use a smaller model"
    )
