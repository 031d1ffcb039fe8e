"""Teacher: a model that writes, in hindsight, the hint that would have led to a better reply.

A text endpoint returns no log-probabilities of our tokens, so it cannot be distilled from directly. Its text becomes a
hint of the verdict, as a user's correction does, and `opd` learns from the frozen base that was given the hint.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from openclaw_rl.common.message_hash import Transience
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import prompts
from openclaw_rl.judge.backoff import delay
from openclaw_rl.judge.chat_client import Completions
from openclaw_rl.judge.preflight import check_endpoint
from openclaw_rl.judge.vote_parser import parse_hint
from openclaw_rl.settings.load import Config
from openclaw_rl.types import JudgeInput, Verdict

log = logging.getLogger("openclaw_rl.judge")

PATIENCE = 3  # consecutive failures after which the teacher is skipped for a while
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds


class Teacher:
    """Teacher `teacher.model` at `teacher.base_url`. Never the live policy, see `check_endpoint`.

    A verdict never waits for a teacher that is down: it is kept without a hint and counted in `missed`.
    """

    def __init__(self, config: Config) -> None:
        """Raise `ConfigError` if the endpoint is not a URL or may serve the policy that is being trained."""
        check_endpoint("teacher", config.teacher, config)
        self._when = config.teacher.when
        self._completions = Completions("teacher", config.teacher, connections=config.judge.workers)
        self._transient = Transience(config.serve.transient_patterns)
        self.name = f"teacher:{config.teacher.model}@{prompts.TEACHER_VERSION}"
        self.hints = 0  # number of hints written
        self.missed = 0  # number of verdicts left without a hint
        self.words = ""  # last error; empty while the teacher answers
        self._failures = 0
        self._pause_until = 0.0

    def wants(self, item: JudgeInput, verdict: Verdict) -> bool:
        """Whether the teacher is asked about this verdict. A user's own correction is never replaced."""
        if any(given.correction for given in item.reaction.feedback):
            return False
        return self._when == "always" or (self._when == "negative" and verdict.score == -1)

    async def taught(self, item: JudgeInput, verdict: Verdict) -> Verdict:
        """Return the verdict with the teacher's hint instead of the judge's; unchanged without one. Never raises."""
        if not self.wants(item, verdict):
            return verdict
        if time.monotonic() < self._pause_until:
            return self._without(verdict)
        try:
            hint = parse_hint(await self._completions.ask(prompts.build_teaching(item, self._transient)))
        except JudgeError as error:
            self._failed(str(error))
            return self._without(verdict)
        self._failures, self.words = 0, ""
        if hint is None:
            return verdict
        self.hints += 1
        return replace(verdict, hints=(hint,), reason=f"{verdict.reason}; hint by {self.name}")

    async def close(self) -> None:
        """Close the connections."""
        await self._completions.close()

    @property
    def note(self) -> str:
        """Text for `status`: numbers of hints and of verdicts without one, and the last error."""
        told = f"{self.hints} hints by the teacher"
        if self.missed:
            told += f", {self.missed} verdicts without a hint"
        return told + (f" ({self.words.rstrip('.')})" if self.words else "")

    def _failed(self, words: str) -> None:
        if not self._failures:
            log.warning(
                "No hint from %s: %s. Verdicts are kept without one. If it persists, check teacher.* in the settings.",
                self.name,
                words.rstrip("."),
            )
        self._failures, self.words = self._failures + 1, words
        if self._failures >= PATIENCE:
            longer = delay(self._failures - PATIENCE + 1, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
            self._pause_until = time.monotonic() + longer

    def _without(self, verdict: Verdict) -> Verdict:
        self.missed += 1
        return replace(verdict, reason=f"{verdict.reason}; {self.name} gave no hint")
