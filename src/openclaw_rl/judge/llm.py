"""Judge based on a language model, local or behind an endpoint: several parallel votes make one verdict."""

from __future__ import annotations

import asyncio

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import local_model, prompts
from openclaw_rl.judge.chat_client import ChatClient, log_excerpt
from openclaw_rl.judge.preflight import check_endpoint
from openclaw_rl.judge.vote_parser import parse_vote
from openclaw_rl.judge.voting import hints_of_majority, majority_score, make_verdict
from openclaw_rl.settings.load import Config
from openclaw_rl.types import JudgeInput, Verdict, Vote

ChatModel = ChatClient | local_model.LocalModel


def _make_chat_model(config: Config) -> ChatModel:
    if config.judge.path is not None:
        return local_model.connect_model(config)
    check_endpoint("judge", config.judge, config)
    return ChatClient("judge", config.judge, connections=config.judge.workers * config.judge.num_judges)


class LlmJudge:
    """Judge with `judge.model` at `judge.base_url`, or the model at `judge.path`. Never uses the live policy."""

    def __init__(self, config: Config, *, asked: ChatModel | None = None) -> None:
        """`asked` replaces the configured chat model. Raises `ConfigError` (see `check_endpoint`) or `ModelError`."""
        self._config = config.judge
        self._chat_model = asked or _make_chat_model(config)
        self.close = self._chat_model.close
        self._is_ephemeral = EphemeralMatcher(config.serve.ephemeral_patterns)
        self._model = config.judge.model if config.judge.path is None else config.judge.path
        self.name = f"llm:{self._model}@{prompts.JUDGE_PROMPT['version']}"

    async def judge(self, item: JudgeInput) -> Verdict:
        """Return the majority verdict. Raises `JudgeError` with the first vote's error if no vote is usable."""
        messages = prompts.build_messages(prompts.JUDGE_PROMPT, item, self._is_ephemeral)
        votes = tuple(await asyncio.gather(*(self._request_vote(messages) for _ in range(self._config.num_judges))))
        if all(vote.score is None for vote in votes):
            where = f"judge {self._model} at {self._chat_model.url}"
            raise JudgeError(f"{where}: no usable vote: {votes[0].error}")
        score, reason = majority_score(votes, self._config.consensus_threshold)
        hints = hints_of_majority(votes, score)
        return make_verdict(item, self.name, score, reason, votes=votes, hints=hints)

    async def _request_vote(self, messages: list[dict[str, str]]) -> Vote:
        try:
            content = await self._chat_model.complete_chat(messages)
        except JudgeError as error:
            return Vote(score=None, error=str(error))
        vote = parse_vote(content)
        if vote.error:
            log_excerpt(f"No vote: {vote.error}", content)
        return vote
