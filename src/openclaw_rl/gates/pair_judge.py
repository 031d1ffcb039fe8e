"""Preference of a language-model judge between two replies. It sees both orders: the place does not count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import prompts
from openclaw_rl.judge.answer_schemas import EVALUATION_ANSWER
from openclaw_rl.judge.llm import VotingModel
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Message

log = logging.getLogger(__name__)


class PairJudge:
    """Asks the judge of the settings (`judge.kind` llm)."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def preference(self, messages: Sequence[Message], head: str, candidate: str) -> float | None:
        """Return how much better the candidate's reply is, from -1 to 1; 0 for a tie; None without a usable answer."""
        if head == candidate:
            return 0.0
        try:
            return asyncio.run(self._both_orders(messages, head, candidate))
        except JudgeError as error:
            log.warning("the judge did not compare two replies: %s", error)
            return None

    async def _both_orders(
        self, messages: Sequence[Message], head: str, candidate: str
    ) -> float | None:
        voters = VotingModel(self._config, EVALUATION_ANSWER)
        try:
            forward = await voters.request_votes(
                prompts.build_pair_messages(messages, head, candidate)
            )
            record_progress()
            backward = await voters.request_votes(
                prompts.build_pair_messages(messages, candidate, head)
            )
            record_progress()
        finally:
            await voters.close()
        if forward.score is None or backward.score is None:
            return None
        return (forward.score - backward.score) / 2
