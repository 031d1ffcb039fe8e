"""The seams at the rooms' walls: at most three methods each.

Every seam has a public double in `testing.py` and one contract test that every implementation passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.types import Chunk, Generation, Ids, JudgeInput, Logprobs, PolicyRef, Verdict


class Engine(Protocol):
    """Token ids in, token ids out. Policy, judge and teacher are three uses of it."""

    def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """Stream the reply's tokens; the last chunk has `finish`. Closing the iterator cancels the generation.

        Raises `EngineError` when the version is not loaded or the prompt does not fit, `EngineGone` when the
        engine dies (before or in the middle of the stream).
        """
        ...

    async def score(self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Logprobs:
        """[R] log softmax(logits / temperature) of the given response ids after the prompt."""
        ...

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """Hold exactly these versions. Returns when all of them can answer; the replies that run are not disturbed.

        A version that is no longer named is let go as soon as the last reply on it ends. Raises `EngineError`
        when an adapter's files are missing, do not match their digest, or do not fit the base.
        """
        ...


class Judge(Protocol):
    """A closed turn in, a verdict out."""

    async def judge(self, item: JudgeInput) -> Verdict:
        """Raises `JudgeError` when there is no usable answer; abstaining is a verdict with score None."""
        ...


class Trainer(Protocol):
    """Steps on samples, from one policy to the next. Never publishes by itself: the loop does, under its lease."""

    def load(self, *, folder: str | None, memory: Mapping[str, Any]) -> None:
        """Stand on the policy in `folder` (adapter, optimizer, scheduler, random state); None: on the base."""
        ...

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """One optimizer step from the loaded policy, written (synced) to `out`.

        A batch with nothing to say takes no step: `folder` is None, and `dropped` says why, turn by turn.

        After a step the trainer stands on the new weights; the caller reloads when they were not published.
        """
        ...
