"""Interfaces between the stages, with at most three methods each.

Each interface has a public test double in `testing/` and one contract test that every implementation passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.common.images.image_prompt import ImagePrompt
from openclaw_rl.common.progress import WorkNote
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.types import (
    Chunk,
    Generation,
    Ids,
    JudgedTurn,
    JudgeInput,
    Lease,
    Logprobs,
    Policy,
    PolicyRef,
    RepeatedBatch,
    StateRequest,
    States,
    Verdict,
)


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


OnConnect = Callable[[int], None]
"""Callback for each new connection; receives the epoch and must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Model, capacity and present state of an engine."""

    model: str
    context_length: int  # tokens, prompt and reply together
    device: str
    dtype: str
    vocab_size: int = 0  # 0: not reported by the engine
    versions: tuple[int, ...] = (0,)  # loaded policy versions
    running: int = 0  # sequences in the batch
    waiting: int = 0  # sequences that wait for a place in the batch
    pid: int | None = None  # of the engine process, if this system started it
    grammar: bool = False  # whether it can constrain a reply by a grammar
    images: bool = False  # whether it is an `ImageEngine` whose model reads images


class EngineLink(Engine, Protocol):
    """An engine behind a connection.

    Connects at the first call, and reconnects with a back-off after a loss. `epoch` counts the connections made: a
    restarted engine has only the base loaded, so whoever called `load` must call it again when `epoch` has changed.
    """

    epoch: int

    @property
    def connected(self) -> bool: ...

    async def info(self) -> EngineInfo:
        """Return the engine's present state. Raise `EngineGone` if it does not answer."""
        ...

    async def wait_ready(self, timeout: float) -> EngineInfo:  # noqa: ASYNC109 (a deadline over several attempts)
        """Wait until the engine answers. Raise `EngineGone` after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Close the connection for good; running streams raise `EngineGone`."""
        ...


@runtime_checkable
class ImageEngine(Protocol):
    """An engine that reads images. Its `generate` also takes an `ImageGeneration`."""

    async def render_images(self, prompt: ImagePrompt) -> Ids:
        """Return the prompt ids [P] of a conversation with images, as the model reads them.

        Raises `EngineError` if the model does not take these messages or images, `EngineGone` without an answer.
        """
        ...


@runtime_checkable
class StateEngine(Protocol):
    """An engine that reads hidden states of its base model (`EngineSpec.reads_states`)."""

    async def read_states(self, request: StateRequest) -> States:
        """Return the pooled states [K, S, D] in the base, version 0 without an adapter, whatever versions are loaded.

        People's replies come first: it may take long while they run. Raises `EngineError` if the text does not fit,
        `EngineGone` without an answer.
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

    def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
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


@runtime_checkable
class ResidentTrainer(Protocol):
    """A trainer that keeps the last policies in memory."""

    def has_resident(self, folder: str) -> bool:
        """Return whether `load` of this folder takes weights and moments from memory, not from its files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyWork:
    """One policy that may have something to train on, in one iteration of the training loop."""

    head: Policy
    candidate: Policy | None
    """A version that was trained from the head and is not decided on yet."""
    lease: Lease
    lease_now: float
    """Seconds, by the clock of the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Turns that one step is to be taken on, from `head`."""

    head: Policy
    turns: Sequence[JudgedTurn]
    is_fixed: bool = False
    """Whether a step is taken on exactly these turns, however few they are, and without replays."""
    undo: RepeatedBatch | None = None
    """What the batch repeats; None: it belongs to no undo. Turns of an undo may have any age."""
    undo_left: int = 0
    """Batches of the undo that are left, this one included."""
    replays: frozenset[str] = frozenset()
    """Those of the turns that the head's lineage was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why no batch is ready."""

    note: WorkNote
    has_worked: bool = False
    """Whether a piece of work was done, so that the next call has more to do."""
    polls: bool = False
    """Whether the next call may have something to do although nothing was committed to the store."""
    others_wait: bool = False
    """Whether the source has nothing for other policies either."""


class BatchSource(Protocol):
    """One source of batches. The training loop asks its sources in their order, for each policy."""

    def next_batch(self, policy: PolicyWork) -> Batch | Waiting | None:
        """Return a batch, or why no batch is ready; None leaves the policy to the next source.

        Raises `DamagedRow`, and `StaleLease` if the lease is lost.
        """
        ...
