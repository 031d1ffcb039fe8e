"""Echoes of lessons: a version that writes the text of a lesson into answers to other questions has learned its words.

A lesson is an instruction. A version follows it, and does not recite it.
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.common.rules.word_runs import repeats_whole, runs_of
from openclaw_rl.reasons import Reason, ReasonCode

MIN_ECHOES = 2
"""Questions with an echo from which a version is refused: a single one may be chance."""


class LessonEchoes:
    """Counts the questions whose answers repeat the text of a lesson. `lessons`: the texts."""

    def __init__(self, lessons: Sequence[str]) -> None:
        self._lessons = tuple(lessons)
        self._runs = {run: text for text in lessons for run in runs_of(text)}
        self.echoed: list[str] = []

    def add(self, question: str, head_answer: str, candidate_answer: str) -> None:
        """Read the answers of both versions to one question, which is about none of the lessons."""
        known = f"{question}\n{head_answer}"
        text = self._find_echo(candidate_answer, known)
        if text is not None:
            self.echoed.append(text)

    def _find_echo(self, answer: str, known: str) -> str | None:
        """Return the lesson that an answer repeats, and that neither the question nor the head's answer has."""
        known_runs = set(runs_of(known))
        for run in runs_of(answer):
            if run in self._runs and run not in known_runs:
                return self._runs[run]
        for text in self._lessons:
            if repeats_whole(text, answer) and not repeats_whole(text, known):
                return text
        return None

    def rejection_reason(self) -> Reason | None:
        """Return why the candidate is refused, or None."""
        if len(self.echoed) < MIN_ECHOES:
            return None
        detail = (
            f"it writes the text of a lesson into answers to other questions: {len(self.echoed)} of its answers have "
            f'words of "{self.echoed[0]}"'
        )
        return Reason(ReasonCode.ECHO, detail)
