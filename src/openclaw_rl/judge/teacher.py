"""Teacher: a model that writes, in hindsight, the hint that would have led to a better reply.

A text endpoint returns no log-probabilities of our tokens, so it cannot be distilled from directly. Its text becomes a
hint of the verdict, as a user's correction does, and `opd` learns from the frozen base that was given the hint.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.retries.backoff import backoff_delay
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import prompts
from openclaw_rl.judge.answer_schemas import TEACHER_ANSWER
from openclaw_rl.judge.chat_client import ChatClient
from openclaw_rl.judge.hint_support import HintSupport, own_texts
from openclaw_rl.judge.leak_check import LeakCheck
from openclaw_rl.judge.preflight import check_endpoint
from openclaw_rl.judge.vote_parser import parse_hint
from openclaw_rl.settings.load import Config
from openclaw_rl.types import JudgeInput, Verdict

log = logging.getLogger("openclaw_rl.judge")

FAILURES_BEFORE_PAUSE = 3  # consecutive failures after which the teacher is skipped for a while
# Seconds.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0


class Teacher:
    """Teacher `teacher.model` at `teacher.base_url`. Never the live policy, see `check_endpoint`.

    A verdict never waits for a teacher that is down: it is kept without a hint and counted in `missed`.
    """

    def __init__(self, config: Config) -> None:
        """Raise `ConfigError` if the endpoint is not a URL or may serve the policy that is being trained."""
        check_endpoint("teacher", config.teacher, config)
        self._ask_when = config.teacher.when
        self._chat_client = ChatClient(
            "teacher", config.teacher, connections=config.judge.workers, answer=TEACHER_ANSWER
        )
        self.close = self._chat_client.close
        self._is_ephemeral = EphemeralMatcher(config.serve.ephemeral_patterns)
        self._topics = load_topics(config.judge.wishes_path)
        self.name = f"teacher:{config.teacher.model}@{prompts.TEACHER_PROMPT['version']}"
        # Number of hints written.
        self.hints = 0
        # Number of verdicts left without a hint.
        self.missed = 0
        # Last error; empty while the teacher answers.
        self.last_error = ""
        self._failures = 0
        self._pause_until = 0.0

    def wants_hint(self, item: JudgeInput, verdict: Verdict) -> bool:
        """Whether the teacher is asked about this verdict: only where the person said something.

        A user's own correction is never replaced.
        """
        if any(feedback.correction for feedback in item.reaction.feedback):
            return False
        if not own_texts(item.reaction):
            return False
        return self._ask_when == "always" or (self._ask_when == "negative" and verdict.score == -1)

    async def add_hint(self, item: JudgeInput, verdict: Verdict) -> Verdict:
        """Return the verdict with the teacher's hint instead of the judge's; unchanged without one. Never raises."""
        if not self.wants_hint(item, verdict):
            return verdict
        if time.monotonic() < self._pause_until:
            return self._without_hint(verdict)
        try:
            messages = prompts.build_messages(prompts.TEACHER_PROMPT, item, self._is_ephemeral)
            hint = parse_hint(await self._chat_client.complete_chat(messages))
        except JudgeError as error:
            self._record_failure(str(error))
            return self._without_hint(verdict)
        self._failures = 0
        self.last_error = ""
        if hint is None:
            return verdict
        leak = LeakCheck(item, self._is_ephemeral).find_leak(hint)
        if leak:
            self.missed += 1
            return replace(
                verdict,
                reason=f"{verdict.reason}; hint by {self.name} dropped: it gives away {leak}",
            )
        refusal = HintSupport(item.reaction, self._topics, item.messages).find_refusal(hint)
        if refusal is not None:
            self.missed += 1
            return replace(
                verdict, reason=f"{verdict.reason}; hint by {self.name} dropped: {refusal}"
            )
        self.hints += 1
        return replace(verdict, hints=(hint,), reason=f"{verdict.reason}; hint by {self.name}")

    @property
    def status_note(self) -> str:
        """Text for `status`: numbers of hints and of verdicts without one, and the last error."""
        missed = f", {self.missed} verdicts without a hint" if self.missed else ""
        error = f" ({self.last_error.rstrip('.')})" if self.last_error else ""
        return f"{self.hints} hints by the teacher{missed}{error}"

    def _record_failure(self, message: str) -> None:
        if not self._failures:
            log.warning(
                "No hint from %s: %s. Verdicts are kept without one. If it persists, check teacher.* in the settings.",
                self.name,
                message.rstrip("."),
            )
        self._failures = self._failures + 1
        self.last_error = message
        if self._failures >= FAILURES_BEFORE_PAUSE:
            longer = backoff_delay(
                self._failures - FAILURES_BEFORE_PAUSE + 1, first=FIRST_PAUSE, longest=LONGEST_PAUSE
            )
            self._pause_until = time.monotonic() + longer

    def _without_hint(self, verdict: Verdict) -> Verdict:
        self.missed += 1
        return replace(verdict, reason=f"{verdict.reason}; {self.name} gave no hint")
