"""Rewards as verdicts: what a reward model is asked, in which batches, and which of its numbers is which score."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.common.message_hash import Transience, visible_text
from openclaw_rl.settings.load import Config
from openclaw_rl.types import JudgeInput, Message, Verdict, Vote

PROMPT_CHARS = 8_000  # of the conversation; of a longer one the end
MOST = 16  # turns in one batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Plain words. The prompt is the conversation before the reply; of several messages, each has its line."""

    prompt: str
    response: str
    outcome: str  # all that answered the reply


Answer = Callable[[Sequence[Question]], list[float]]


class RewardJudge:
    """`protocols.Judge` over a function that gives each question a reward in [0, 1], in a thread and in batches."""

    def __init__(self, config: Config, name: str, answer: Answer) -> None:
        self.name = name
        self._low, self._high = config.judge.reward_low, config.judge.reward_high
        self._transient = Transience(config.serve.transient_patterns)
        self._batches = Batches(answer)

    async def judge(self, item: JudgeInput) -> Verdict:
        """Abstains where nothing answered the reply. Raises what the model raises: the turn waits."""
        question = question_of(item, self._transient)
        if not question.outcome:
            return self._verdict(item, None, "abstained: the reaction has no words", ())
        reward = await self._batches.ask(question)
        score = 1 if reward > self._high else -1 if reward < self._low else 0
        reason = f"reward {reward:.3f} ({self._low:g} to {self._high:g} is 0)"
        return self._verdict(item, score, reason, (Vote(score=score, reason=reason),))

    def _verdict(self, item: JudgeInput, score: int | None, reason: str, votes: tuple[Vote, ...]) -> Verdict:
        revision = item.reaction.revision
        return Verdict(
            turn=item.turn, revision=revision, judge=self.name, score=score, votes=votes, reason=reason, at=time.time()
        )


def question_of(item: JudgeInput, transient: Callable[[Message], bool]) -> Question:
    """In words, without what the client only passes along."""
    history = [(str(m.get("role")), visible_text(m)) for m in item.messages if not transient(m)]
    spoken = [(role, words) for role, words in history if words]
    prompt = spoken[0][1] if len(spoken) == 1 else "\n".join(f"{role}: {words}" for role, words in spoken)
    said = [visible_text(m) for m in item.reaction.messages if not transient(m)]
    said += [given.comment for given in item.reaction.feedback if given.comment]
    outcome = "\n".join(words for words in said if words)
    return Question(prompt=prompt[-PROMPT_CHARS:], response=visible_text(item.reply), outcome=outcome)


class Batches:
    """What is asked while one batch is answered makes the next. One batch at a time, in a thread."""

    def __init__(self, answer: Answer, *, most: int = MOST) -> None:
        self._answer, self._most = answer, most
        self._waiting: list[tuple[Question, asyncio.Future[float]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> float:
        """Raises what the answer raised."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="rewards")
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            if not await self._settle(batch) and len(batch) > 1:
                for one in batch:  # a question that cannot be answered must not hold up those beside it
                    await self._settle([one])

    async def _settle(self, batch: Sequence[tuple[Question, asyncio.Future[float]]]) -> bool:
        """False: not answered; a single one is then told so."""
        try:
            rewards = await asyncio.to_thread(self._answer, [question for question, _ in batch])
        except Exception as error:  # noqa: BLE001  the owner's model may raise anything: the asker is told
            if len(batch) == 1 and not batch[0][1].done():
                batch[0][1].set_exception(error)
            return False
        for (_, future), reward in zip(batch, rewards, strict=True):
            if not future.done():
                future.set_result(reward)
        return True


def make(config: Config) -> RewardJudge:
    """The model at `judge.reward_path`. Raises `ModelError`."""
    from openclaw_rl.engines.embedded.classifier import SequenceClassifier  # torch: only where it is asked for

    path = config.judge.reward_source
    assert path is not None, "the settings were checked"
    model = SequenceClassifier(path, device=config.model.device)

    def answer(questions: Sequence[Question]) -> list[float]:
        return model.probabilities([text(q) for q in questions])

    return RewardJudge(config, f"classifier:{path}", answer)


def text(question: Question) -> str:
    """As such models are trained on it."""
    return f"Prompt: {question.prompt}\nResponse: {question.response}\nOutcome: {question.outcome}"
