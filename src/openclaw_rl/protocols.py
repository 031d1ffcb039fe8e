"""Interfaces between the stages, with at most three methods each.

Each interface has a public test double in `testing.py` and one contract test that every implementation passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.common.images.image_prompt import ImagePrompt
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.types import Chunk, Generation, Ids, JudgeInput, Logprobs, PolicyRef, Verdict


class Engine(Protocol):
    """Samples token ids from token ids. The policy, the judge and the teacher each use one."""

    def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """Stream the tokens of the reply; the last chunk has `finish`. Closing the iterator cancels the generation.

        Raises `EngineError` if the version is not loaded or the prompt does not fit, `EngineGone` if the engine dies
        before or during the stream.
        """
        ...

    async def score(
        self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> Logprobs:
        """Return [R] log softmax(logits / temperature) of the response ids that follow the prompt."""
        ...

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """Load exactly these versions. Returns when all of them can answer; running replies are not disturbed.

        A version that is not in `policies` is unloaded when its last reply ends. Raises `EngineError` if an adapter's
        files are missing, do not match their digest, or do not fit the base.
        """
        ...


@runtime_checkable
class ImageEngine(Protocol):
    """An engine that reads images. Its `generate` also takes an `ImageGeneration`."""

    async def render_images(self, prompt: ImagePrompt) -> Ids:
        """Return the prompt ids [P] of a conversation with images, as the model reads them.

        Raises `EngineError` if the model does not take these messages or images, `EngineGone` without an answer.
        """
        ...


class Judge(Protocol):
    """Scores a closed turn."""

    async def judge(self, item: JudgeInput) -> Verdict:
        """Return the verdict; abstaining is a verdict with score None. Raises `JudgeError` without a usable answer."""
        ...


class Trainer(Protocol):
    """Trains the next policy on samples. It never publishes: the train loop does that, under its lease."""

    computes_here: bool
    """Whether this process or its ranks compute the steps, so that a turn may be why they die."""

    def load(self, *, folder: str | None, memory: Mapping[str, Any]) -> None:
        """Load the policy in `folder` (adapter, optimizer, scheduler, random state); None loads the base."""
        ...

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """Take one optimizer step from the loaded policy and write the result (synced) to `out`.

        A batch without a gradient takes no step: `folder` is None, and `dropped` has the reason for each turn.
        After a step the trainer has the new weights loaded; if they are not published, the caller loads the old ones.
        """
        ...

    def score(self, samples: Sequence[Sample]) -> list[Logprobs]:
        """Return the log-probabilities [R] of the reply of each sample under the loaded policy, at its temperature."""
        ...


@runtime_checkable
class ConfirmedTrainer(Protocol):
    """A trainer that waits until it is decided whether the weights of its last step are kept."""

    def confirm_step(self) -> None:
        """Take note that the next step starts from these weights. Does nothing if no step waits."""
        ...

    def reject_step(self, reason: str) -> None:
        """Take note that the weights are not kept: `load` follows before a next step. Does nothing if no step waits."""
        ...
