"""Sequences that the scheduler works on, and the events that a step returns."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from openclaw_rl.engines.base import VersionKey
from openclaw_rl.engines.embedded.sampler import SamplingState, TopTokens
from openclaw_rl.types import Ids, Logprobs, StateRequest, States


@dataclass(slots=True, eq=False)
class EngineSequence:
    """A reply to generate, or given ids to score (`targets`)."""

    owner: Any  # opaque to the scheduler: identifies the caller
    version: VersionKey  # version that the caller asked for, with its digest
    adapter: VersionKey | None  # key of its adapter; None: the base
    ids: Ids  # to prefill: the prompt; for a scoring also the response without its last id
    prompt: int  # number of prompt tokens
    state: SamplingState
    stop: frozenset[int] = frozenset()
    limit: int = 0
    targets: Ids | None = None
    sampled_ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    sampled_in_ids: int = 0  # number of sampled tokens that a restart appended to `ids`
    prefilled: int = 0  # number of tokens whose states are in the cache
    reused_tokens: int = 0  # number of tokens whose states came from the prefix cache
    # Monotonic seconds since it does not fit even alone; None: it fits.
    oom_since: float | None = None
    cancelled: bool = False
    background: bool = False  # no person waits for it

    @property
    def num_cached(self) -> int:
        """Number of tokens whose states are in the row: all but the last sampled one."""
        return len(self.ids) + len(self.sampled_ids) - self.sampled_in_ids - 1

    def cached_ids(self) -> Ids:
        """Return the ids of the `num_cached` tokens."""
        return np.concatenate(
            [self.ids, np.asarray(self.sampled_ids[self.sampled_in_ids : -1], dtype=np.int32)]
        )

    def restart_prefill(self) -> None:
        """Reset for a new prefill of prompt and sampled tokens; its cached states were freed."""
        self.ids = np.concatenate(
            [self.ids, np.asarray(self.sampled_ids[self.sampled_in_ids :], dtype=np.int32)]
        )
        if self.targets is None:
            self.prompt = len(self.ids)
        self.sampled_in_ids = len(self.sampled_ids)
        self.prefilled = 0
        self.reused_tokens = 0
        self.scores.clear()


@dataclass(frozen=True, slots=True)
class NewToken:
    """One more token of a reply. `finish`: the finish reason, None while it runs."""

    seq: EngineSequence
    token: int
    logprob: float
    top: TopTokens | None
    finish: str | None


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """A sequence failed: no token fits its grammar (`grammar`), or it does not fit into memory."""

    seq: EngineSequence
    reason: str
    grammar: bool = True


@dataclass(frozen=True, slots=True)
class SequenceScored:
    seq: EngineSequence
    logprobs: Logprobs


StepEvent = NewToken | SequenceFailed | SequenceScored


@dataclass(slots=True, eq=False)
class StateSequence:
    """A text whose states are read. `layers` [K]: by `EmbeddedModel.hidden_states`."""

    owner: Any  # opaque to the reader: identifies the caller
    request: StateRequest
    layers: tuple[int, ...]
    read: int = 0  # number of tokens whose states are in the cache
    queued_at: float = field(default_factory=time.monotonic)
    sums: Tensor | None = None  # [K, S, D] sums over the tokens of each span that were read
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class StatesRead:
    """The states of a text. `states` [K, S, D]."""

    seq: StateSequence
    states: States


@dataclass(frozen=True, slots=True)
class StatesFailed:
    """A text does not fit into memory."""

    seq: StateSequence
    reason: str


StateEvent = StatesRead | StatesFailed
