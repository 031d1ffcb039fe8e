"""Judge based on a language model, local or behind an endpoint: several parallel votes make one verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.errors import JudgeError, UnreadableAnswer
from openclaw_rl.judge import local_model, prompts
from openclaw_rl.judge.answer_schemas import EVALUATION_ANSWER, JUDGE_ANSWER, AnswerSchema
from openclaw_rl.judge.chat_client import ChatClient, log_excerpt
from openclaw_rl.judge.hint_support import HintSupport
from openclaw_rl.judge.leak_check import LeakCheck
from openclaw_rl.judge.preflight import check_endpoint
from openclaw_rl.judge.vote_cache import VoteCache, question_key
from openclaw_rl.judge.vote_parser import parse_vote
from openclaw_rl.judge.voting import hints_of_majority, majority_score, make_verdict
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.types import JudgeInput, Message, Verdict, Vote

ChatModel = ChatClient | local_model.LocalModel


def make_chat_model(config: Config, answer: AnswerSchema) -> ChatModel:
    """Return the configured chat model. Raises `ConfigError` (see `check_endpoint`) or `ModelError`."""
    if config.judge.path is not None:
        return local_model.connect_model(config)
    check_endpoint("judge", config.judge, config)
    connections = config.judge.workers * config.judge.num_judges
    return ChatClient("judge", config.judge, connections=connections, answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote:
    """Result of several votes. `score`: +1, 0 or -1; None: no evidence, or no majority. `reason`: the tally."""

    score: int | None
    reason: str
    reason_code: ReasonCode | None = None  # why votes with scores give none
    votes: tuple[Vote, ...]


class VotingModel:
    """Chat model that gets the same question `judge.num_judges` times; the majority of its votes counts.

    It is `judge.model` at `judge.base_url`, or the model at `judge.path`, and never the live policy.
    """

    def __init__(
        self, config: Config, answer: AnswerSchema, *, asked: ChatModel | None = None
    ) -> None:
        """`asked` replaces the configured chat model. Raises `ConfigError` (see `check_endpoint`) or `ModelError`."""
        self._config = config.judge
        self._chat_model = asked or make_chat_model(config, answer)
        self.close = self._chat_model.close
        self.model = config.judge.model if config.judge.path is None else config.judge.path
        self.cache: VoteCache | None = None

    async def request_votes(
        self, messages: list[dict[str, str]], *, turn: str = "", prompt: str = ""
    ) -> MajorityVote:
        """Return the result of the votes. Raises `JudgeError` with the first vote's error if no vote is usable.

        With a cache, votes on the same messages are not requested again. `turn`: what the question is about. `prompt`:
        the version of its prompt. An unusable vote is not kept, and neither are those beside it.
        """
        settings = self._config
        options = (settings.num_judges, settings.temperature, settings.max_tokens)
        key = question_key(self._chat_model.url, self.model, prompt, *options, messages)
        known = await self.cache.find_votes(key) if self.cache is not None else None
        votes = known or await self._request_all(messages)
        errors = [vote.error for vote in votes if vote.error is not None]
        if self.cache is not None and not known and not errors:
            await self.cache.add_votes(key, turn, votes)
        majority = majority_score(votes, settings.consensus_threshold)
        reason = f"{majority.reason} (cached)" if known else majority.reason
        return MajorityVote(
            score=majority.score, reason=reason, reason_code=majority.code, votes=votes
        )

    async def _request_all(self, messages: list[dict[str, str]]) -> tuple[Vote, ...]:
        """Return the votes. If none is usable: raises `UnreadableAnswer` where all are answers, else `JudgeError`."""
        requests = [self._request_vote(messages) for _ in range(self._config.num_judges)]
        answers = await asyncio.gather(*requests)
        votes = tuple(vote for vote, _ in answers)
        errors = [vote.error for vote in votes if vote.error is not None]
        if len(errors) < len(votes):
            return votes
        kind = UnreadableAnswer if all(was_answered for _, was_answered in answers) else JudgeError
        raise kind(f"judge {self.model} at {self._chat_model.url}: no usable vote: {errors[0]}")

    async def _request_vote(self, messages: list[dict[str, str]]) -> tuple[Vote, bool]:
        """Return a vote, and whether the judge answered."""
        try:
            content = await self._chat_model.complete_chat(messages)
        except JudgeError as error:
            return Vote(score=None, error=str(error)), isinstance(error, UnreadableAnswer)
        vote = parse_vote(content)
        if vote.error:
            log_excerpt(f"No vote: {vote.error}", content)
        return vote, True


class LlmJudge:
    """Judge that reads the conversation and the reaction to a reply with a language model."""

    def __init__(self, config: Config, *, asked: ChatModel | None = None) -> None:
        """See `VotingModel`."""
        self._voters = VotingModel(config, JUDGE_ANSWER, asked=asked)
        self.close = self._voters.close
        self._is_ephemeral = EphemeralMatcher(config.serve.ephemeral_patterns)
        self._topics = load_topics(config.judge.wishes_path)
        self._threshold = config.judge.consensus_threshold
        self.name = f"llm:{self._voters.model}@{prompts.JUDGE_PROMPT['version']}"

    def use_cache(self, cache: VoteCache) -> None:
        """Keep votes in this cache, and do not ask for those that it has."""
        self._voters.cache = cache

    async def judge(self, item: JudgeInput) -> Verdict:
        """Return the majority verdict. Raises `JudgeError` with the first vote's error if no vote is usable.

        A hint that gives the answer away is dropped, with the reason in its vote and in the verdict. So is one that the
        person's words do not support; a vote whose hint repeats what others said does not count.
        """
        prompt = prompts.JUDGE_PROMPT
        messages = prompts.build_messages(prompt, item, self._is_ephemeral)
        vote = await self._voters.request_votes(messages, turn=item.turn, prompt=prompt["version"])
        support = HintSupport(item.reaction, self._topics, item.messages)
        supported = tuple(map(support.check_vote, vote.votes))
        if any(
            one.score != before.score for one, before in zip(supported, vote.votes, strict=True)
        ):
            majority = majority_score(supported, self._threshold)
            vote = replace(
                vote, score=majority.score, reason=majority.reason, reason_code=majority.code
            )
        checked = LeakCheck(item, self._is_ephemeral)
        votes = tuple(_without_leak(one, checked) for one in supported)
        return make_verdict(
            item,
            self.name,
            vote.score,
            _with_dropped(vote.reason, vote.votes, supported, votes),
            votes=votes,
            hints=hints_of_majority(votes, vote.score),
            reason_code=vote.reason_code,
        )


def _with_dropped(
    reason: str, asked: Sequence[Vote], supported: Sequence[Vote], votes: Sequence[Vote]
) -> str:
    """Return the reason of a verdict with the numbers of hints that were dropped."""
    unsupported = sum(one.hint != kept.hint for one, kept in zip(asked, supported, strict=True))
    if unsupported:
        reason += (
            f"; {unsupported} of {len(votes)} hints dropped: the person's words do not support them"
        )
    leaking = sum(one.hint != kept.hint for one, kept in zip(supported, votes, strict=True))
    if leaking:
        reason += f"; {leaking} of {len(votes)} hints dropped: they give the answer away"
    return reason


def _without_leak(vote: Vote, check: LeakCheck) -> Vote:
    leak = check.find_leak(vote.hint) if vote.hint else None
    if leak is None:
        return vote
    reason = f"{vote.reason} [hint dropped: it gives away {leak}]".strip()
    return replace(vote, hint=None, fact=vote.hint, reason=reason)


class ReplyGrader:
    """The llm judge for evaluations: it grades a reply by the request and reference answers, without a reaction.

    Reference-guided grading of a single answer, as in MT-Bench (arXiv:2306.05685, section 3.1). At most
    `judge.workers` replies are graded at once.
    """

    def __init__(self, config: Config, *, asked: ChatModel | None = None) -> None:
        """See `VotingModel`."""
        self._voters = VotingModel(config, EVALUATION_ANSWER, asked=asked)
        self.close = self._voters.close
        self._slots = asyncio.Semaphore(config.judge.workers)
        self.name = f"llm:{self._voters.model}@evaluation-{prompts.EVALUATION_PROMPT['version']}"

    async def grade_reply(
        self, messages: Sequence[Message], reply: Message, references: Sequence[str]
    ) -> MajorityVote:
        """Return the votes on `reply` to `messages`: +1 it serves the request, -1 it does not, 0 undecidable.

        `references`: answers that count as correct, may be empty. Raises `JudgeError` if no vote is usable.
        """
        question = prompts.build_evaluation_messages(messages, reply, references)
        async with self._slots:
            return await self._voters.request_votes(question)
