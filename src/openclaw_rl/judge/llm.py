"""A judge behind any OpenAI-compatible endpoint: m votes in parallel, one verdict or none."""

from __future__ import annotations

import asyncio
import logging
import time

from openclaw_rl.canon import Transience
from openclaw_rl.config import Config
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import prompts
from openclaw_rl.judge.answer import parse
from openclaw_rl.judge.completions import Completions
from openclaw_rl.judge.endpoint import check_endpoint
from openclaw_rl.judge.votes import agreeing, majority
from openclaw_rl.types import JudgeInput, Verdict, Vote

log = logging.getLogger("openclaw_rl.judge")

_EXCERPT_CHARS = 200  # of an answer, in the debug log only: it may quote the conversation


class LlmJudge:
    """Asks `judge.model` at `judge.base_url`. Never the live policy: see `check_endpoint`."""

    def __init__(self, config: Config) -> None:
        """Raises `ConfigError` when the endpoint is missing, no URL, or the policy that is being trained."""
        check_endpoint("judge", config.judge, config)
        self._config = config.judge
        connections = config.judge.workers * config.judge.num_judges
        self._completions = Completions("judge", config.judge, connections=connections)
        self._transient = Transience(config.serve.transient_patterns)
        self.name = f"llm:{config.judge.model}@{prompts.VERSION}"

    async def judge(self, item: JudgeInput) -> Verdict:
        """Raises `JudgeError` when not one vote is usable; the reason says what came instead."""
        messages = prompts.build(item, self._transient)
        votes = tuple(await asyncio.gather(*(self._vote(messages) for _ in range(self._config.num_judges))))
        if all(vote.score is None for vote in votes):
            where = f"judge {self._config.model} at {self._completions.url}"
            raise JudgeError(f"{where}: no usable vote: {votes[0].error}")
        score, reason = majority(votes, self._config.consensus_threshold)
        return Verdict(
            turn=item.turn,
            revision=item.reaction.revision,
            judge=self.name,
            score=score,
            votes=votes,
            hints=agreeing(votes, score),
            reason=reason,
            at=time.time(),
        )

    async def close(self) -> None:
        """Let go of the connections."""
        await self._completions.close()

    async def _vote(self, messages: list[dict[str, str]]) -> Vote:
        try:
            content = await self._completions.ask(messages)
        except JudgeError as error:
            return Vote(score=None, error=str(error))
        vote = parse(content)
        if vote.error:
            log.debug("No vote: %s: %r", vote.error, content[:_EXCERPT_CHARS])
        return vote
