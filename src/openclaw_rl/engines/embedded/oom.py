"""A step that did not fit into memory: beside a trainer on the same device, for one, which takes what is free.

The core then lets go of what it only kept for later; what is being prefilled waits for a row to end, or a moment,
behind what else waits; running rows give up their states and begin again, one after the other, from the tokens that
they have. Who does not fit alone for `PATIENCE` fails, in words. The process never ends for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from openclaw_rl.engines.embedded.sequence import Job

PATIENCE = 60.0  # seconds for which one sequence is tried alone
PAUSE = 0.2  # seconds between two tries of it
BESIDE = 2.0  # seconds after which what waits is tried beside rows of which none has ended


@dataclass(slots=True)
class Lack:
    """Of memory, since a step did not fit. `rows`: that were running when one last did not."""

    rows: int
    again: float  # when what waits is tried although none of them has ended

    @classmethod
    def now(cls, rows: int) -> Lack:
        return cls(rows=rows, again=time.monotonic() + BESIDE)

    def may_prefill(self, rows: int) -> bool:
        return rows == 0 or rows < self.rows or time.monotonic() >= self.again


def is_hopeless(job: Job) -> bool:
    """It was tried alone, and does not fit. Whether that has been so for long enough."""
    now = time.monotonic()
    job.lacking = job.lacking or now
    return now - job.lacking >= PATIENCE


def told(tokens: int, device: torch.device) -> str:
    """What a client is told of a sequence of so many tokens."""
    return (
        f"{tokens} tokens do not fit into the memory of {device}, tried for {PATIENCE:g} s. Begin a new conversation, "
        "or make room: a smaller engine.max_context, engine.max_batch or engine.prefill_chunk, the trainer on another "
        "device (train.gpus), a smaller model"
    )
