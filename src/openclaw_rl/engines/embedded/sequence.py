"""What the core works on, and what it gives out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openclaw_rl.engines.embedded.multi_lora import Key
from openclaw_rl.engines.embedded.sampler import Draw, Top
from openclaw_rl.types import Ids, Logprobs


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One sequence: a reply to generate, or given ids to score (`targets`)."""

    owner: Any  # whom to tell
    held: Key  # (version, digest) that answers
    key: Key | None  # its adapter; None: the base
    ids: Ids  # what is prefilled: the prompt, and for scoring the response less its last id
    prompt: int  # tokens of the prompt
    draw: Draw
    stop: frozenset[int] = frozenset()
    limit: int = 0
    targets: Ids | None = None
    drawn: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    taken: int = 0  # of the drawn tokens, those that were put behind `ids` when its states were given up
    start: int = 0  # tokens whose states are in the slots
    reused: int = 0  # tokens whose states came from the prefix cache
    lacking: float | None = None  # since when it does not fit into memory alone, in monotonic seconds
    cancelled: bool = False

    @property
    def cached(self) -> int:
        """Tokens whose states are in the row: all but the one drawn last."""
        return len(self.ids) + len(self.drawn) - self.taken - 1

    def all_ids(self) -> Ids:
        """The ids of `cached`."""
        return np.concatenate([self.ids, np.asarray(self.drawn[self.taken : -1], dtype=np.int32)])

    def begin_again(self) -> None:
        """Its states are gone: what it has is prefilled anew, and it goes on from there."""
        self.ids = np.concatenate([self.ids, np.asarray(self.drawn[self.taken :], dtype=np.int32)])
        if self.targets is None:
            self.prompt = len(self.ids)
        self.taken, self.start, self.reused = len(self.drawn), 0, 0
        self.scores.clear()


@dataclass(frozen=True, slots=True)
class Token:
    """A reply got one more token."""

    job: Job
    token: int
    logprob: float
    top: Top | None
    finish: str | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """A sequence cannot go on: in the format that it was forced into (`grammar`), or in the memory that there is."""

    job: Job
    why: str
    grammar: bool = True


@dataclass(frozen=True, slots=True)
class Scored:
    job: Job
    logprobs: Logprobs


Out = Token | Stuck | Scored
