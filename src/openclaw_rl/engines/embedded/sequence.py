"""Sequences that the scheduler works on, and the events that a step returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openclaw_rl.engines.embedded.multi_lora import Key
from openclaw_rl.engines.embedded.sampler import Draw, Top
from openclaw_rl.types import Ids, Logprobs


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A reply to generate, or given ids to score (`targets`)."""

    owner: Any  # opaque to the scheduler: identifies the caller
    held: Key  # version that the caller asked for, with its digest
    key: Key | None  # key of its adapter; None: the base
    ids: Ids  # to prefill: the prompt; for a scoring also the response without its last id
    prompt: int  # number of prompt tokens
    draw: Draw
    stop: frozenset[int] = frozenset()
    limit: int = 0
    targets: Ids | None = None
    drawn: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    taken: int = 0  # number of sampled tokens that a restart appended to `ids`
    start: int = 0  # number of tokens whose states are in the cache
    reused: int = 0  # number of tokens whose states came from the prefix cache
    lacking: float | None = None  # monotonic seconds since it does not fit even alone; None: it fits
    cancelled: bool = False

    @property
    def cached(self) -> int:
        """Number of tokens whose states are in the row: all but the last sampled one."""
        return len(self.ids) + len(self.drawn) - self.taken - 1

    def all_ids(self) -> Ids:
        """Return the ids of the `num_cached` tokens."""
        return np.concatenate([self.ids, np.asarray(self.drawn[self.taken : -1], dtype=np.int32)])

    def begin_again(self) -> None:
        """Reset for a new prefill of prompt and sampled tokens; its cached states were freed."""
        self.ids = np.concatenate([self.ids, np.asarray(self.drawn[self.taken :], dtype=np.int32)])
        if self.targets is None:
            self.prompt = len(self.ids)
        self.taken, self.start, self.reused = len(self.drawn), 0, 0
        self.scores.clear()


@dataclass(frozen=True, slots=True)
class Token:
    """One more token of a reply. `finish`: the finish reason, None while it runs."""

    job: Job
    token: int
    logprob: float
    top: Top | None
    finish: str | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """A sequence failed: no token fits its grammar (`grammar`), or it does not fit into memory."""

    job: Job
    why: str
    grammar: bool = True


@dataclass(frozen=True, slots=True)
class Scored:
    job: Job
    logprobs: Logprobs


Out = Token | Stuck | Scored
