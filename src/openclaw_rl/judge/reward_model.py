"""Judge based on a reward model: inputs, batching, and the mapping from rewards to scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.common.message_hash import EphemeralMatcher, visible_text
from openclaw_rl.common.progress import Activity, WorkKind, working_on
from openclaw_rl.judge.voting import make_verdict
from openclaw_rl.settings.load import Config
from openclaw_rl.types import JudgeInput, Message, Verdict, Vote

# Limit for the conversation; the end of a longer one is used.
PROMPT_CHARS = 8_000
# Turns in one batch.
MAX_BATCH_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """Plain-text input of a reward model. `prompt`: conversation before the reply, one line per message."""

    prompt: str
    response: str
    outcome: str  # everything that answered the reply


RewardFunction = Callable[[Sequence[RewardInput]], list[float]]


class RewardJudge:
    """`protocols.Judge` on a function that maps inputs to rewards in [0, 1]; runs batches in a thread."""

    def __init__(self, config: Config, name: str, answer: RewardFunction) -> None:
        self.name = name
        self._low = config.judge.reward_low
        self._high = config.judge.reward_high
        self._is_ephemeral = EphemeralMatcher(config.serve.ephemeral_patterns)
        self._batcher = RewardBatcher(answer)

    @property
    def is_scoring(self) -> bool:
        """Whether the model works in this process, where it can hang."""
        return self._batcher.is_scoring

    async def judge(self, item: JudgeInput) -> Verdict:
        """Return the verdict; abstain if nothing answered the reply. Raises what the model raises."""
        question = make_reward_input(item, self._is_ephemeral)
        if not question.outcome:
            return make_verdict(item, self.name, None, "abstained: the reaction has no text")
        reward = await self._batcher.request_reward(question)
        score = 0
        if reward > self._high:
            score = 1
        elif reward < self._low:
            score = -1
        reason = f"reward {reward:.3f} ({self._low:g} to {self._high:g} is 0)"
        return make_verdict(
            item, self.name, score, reason, votes=[Vote(score=score, reason=reason)]
        )


def make_reward_input(item: JudgeInput, is_ephemeral: Callable[[Message], bool]) -> RewardInput:
    """Return the reward model's input for a turn, without ephemeral messages."""
    history = _spoken(item.messages, is_ephemeral)
    prompt = "\n".join(f"{role}: {text}" for role, text in history)
    if len(history) == 1:
        # A single message needs no role before it.
        prompt = history[0][1]
    outcome = [text for _, text in _spoken(item.reaction.messages, is_ephemeral)]
    outcome += [feedback.comment for feedback in item.reaction.feedback if feedback.comment]
    return RewardInput(
        prompt=prompt[-PROMPT_CHARS:],
        response=visible_text(item.reply),
        outcome="\n".join(outcome),
    )


def _spoken(
    messages: Sequence[Message], is_ephemeral: Callable[[Message], bool]
) -> list[tuple[str, str]]:
    """Return role and text of the messages with text, without ephemeral ones."""
    lasting = [message for message in messages if not is_ephemeral(message)]
    spoken = [(str(message.get("role")), visible_text(message)) for message in lasting]
    return [(role, text) for role, text in spoken if text]


class RewardBatcher:
    """Batches concurrent requests; one batch runs at a time, in a thread, while the next is collected."""

    def __init__(self, answer: RewardFunction, *, most: int = MAX_BATCH_SIZE) -> None:
        self._reward_function = answer
        self._max_size = most
        self._waiting: list[tuple[RewardInput, asyncio.Future[float]]] = []
        self._task: asyncio.Task[None] | None = None
        # The reward function runs in a thread.
        self.is_scoring = False

    async def request_reward(self, question: RewardInput) -> float:
        """Return the reward of one input. Raises what the reward function raises for it."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run_batches(), name="rewards")
        return await future

    async def _run_batches(self) -> None:
        while self._waiting:
            batch = self._waiting[: self._max_size]
            self._waiting = self._waiting[self._max_size :]
            if not await self._score_batch(batch) and len(batch) > 1:
                # Retry one by one: an input that fails must not block the others.
                for one in batch:
                    await self._score_batch([one])

    async def _score_batch(
        self, batch: Sequence[tuple[RewardInput, asyncio.Future[float]]]
    ) -> bool:
        """Score a batch; return False if it failed. A single input gets the exception."""
        self.is_scoring = True
        try:
            with working_on(Activity(kind=WorkKind.REWARD)):
                rewards = await asyncio.to_thread(
                    self._reward_function, [question for question, _ in batch]
                )
        except Exception as error:  # noqa: BLE001  a plug-in may raise anything; the caller gets it
            if len(batch) == 1 and not batch[0][1].done():
                batch[0][1].set_exception(error)
            return False
        finally:
            self.is_scoring = False
        for (_, future), reward in zip(batch, rewards, strict=True):
            if not future.done():
                future.set_result(reward)
        return True


def make_judge(config: Config) -> RewardJudge:
    """Return a judge with the classifier at `judge.reward_path`. Raises `ModelError`."""
    # Imports torch, so only when needed.
    from openclaw_rl.engines.embedded.classifier import SequenceClassifier

    path = config.judge.reward_source
    assert path is not None, "the settings were checked"
    model = SequenceClassifier(path, device=config.model.device)

    def score_inputs(questions: Sequence[RewardInput]) -> list[float]:
        return model.probabilities([format_input(q) for q in questions])

    return RewardJudge(config, f"classifier:{path}", score_inputs)


def format_input(question: RewardInput) -> str:
    """Return the input in the text format that such classifiers are trained on."""
    return f"Prompt: {question.prompt}\nResponse: {question.response}\nOutcome: {question.outcome}"
