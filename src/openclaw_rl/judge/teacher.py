"""A teacher by text: with hindsight it writes the hint that would have led to the better reply.

A text endpoint has no log-probabilities of our tokens, so it is no teacher to distil from by itself. Its words become
a hint of the verdict, as a user's correction does, and `opd` learns from the frozen base that was told the hint.
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

PATIENCE = 3  # failures in a row after which turns go by without it for a while
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds


class Teacher:
    """Asks `teacher.model` at `teacher.base_url`. Never the live policy: see `check_endpoint`.

    No verdict ever waits for a teacher that is down: it stands as it was, and `missed` counts it.
    """

    def __init__(self, config: Config) -> None:
        """Raises `ConfigError` when the endpoint is no URL, or the policy that is being trained."""
        check_endpoint("teacher", config.teacher, config)
        self._when = config.teacher.when
        self._completions = Completions("teacher", config.teacher, connections=config.judge.workers)
        self._transient = Transience(config.serve.transient_patterns)
        self.name = f"teacher:{config.teacher.model}@{prompts.TEACHER_VERSION}"
        self.hints = 0  # that were written
        self.missed = 0  # verdicts that went without
        self.words = ""  # what failed last; empty while it answers
        self._failures = 0
        self._pause_until = 0.0

    def wants(self, item: JudgeInput, verdict: Verdict) -> bool:
        """Whether it is asked about this verdict. What the user wrote as a correction is not rewritten."""
        if any(given.correction for given in item.reaction.feedback):
            return False
        return self._when == "always" or (self._when == "negative" and verdict.score == -1)

    async def taught(self, item: JudgeInput, verdict: Verdict) -> Verdict:
        """The verdict with the teacher's hint in place of the judge's; as it was when there is none. Never raises."""
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
        """Let go of the connections."""
        await self._completions.close()

    @property
    def note(self) -> str:
        """For `status`: what it wrote, what it missed, and why."""
        told = f"{self.hints} hints by the teacher"
        if self.missed:
            told += f", {self.missed} verdicts without"
        return told + (f" ({self.words.rstrip('.')})" if self.words else "")

    def _failed(self, words: str) -> None:
        if not self._failures:
            log.warning(
                "No hint by %s: %s. Verdicts stand without it. If it lasts, check teacher.* in the settings.",
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
