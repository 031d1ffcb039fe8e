"""Lessons in the judge's worker: reads them from verdicts, by the rules or by the llm judge, and writes them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import HintTopics, normalise_lesson
from openclaw_rl.errors import DamagedRow
from openclaw_rl.judge.head.auto import AutoJudge
from openclaw_rl.judge.heard import heard_reaction
from openclaw_rl.judge.lessons.drafts import LessonDraft, facts_of
from openclaw_rl.judge.lessons.lesson_book import known_lessons, update_lessons
from openclaw_rl.judge.lessons.lesson_reader import LessonReader
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.protocols import Judge
from openclaw_rl.settings.load import Config
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.types import JudgeInput, Verdict

log = logging.getLogger("openclaw_rl.judge")


class LessonMaker:
    """Makes the lessons of verdicts. With the llm judge, the same model reads them; else the rules do."""

    def __init__(self, config: Config, store: Store, judge: Judge) -> None:
        """Raises as `LessonReader` does."""
        rules = judge.rules if isinstance(judge, AutoJudge) else judge
        if not isinstance(rules, RulesJudge):
            rules = RulesJudge.load()
        self.topics = HintTopics(rules.files)
        self._store = store
        self._per = config.policy.per
        self._is_shared = config.lessons.scope == "all"
        self._is_ephemeral = EphemeralMatcher(config.serve.ephemeral_patterns)
        self._reader = (
            LessonReader(config, self._is_ephemeral, self.topics)
            if isinstance(judge, LlmJudge)
            else None
        )
        # Turn -> (revision, what the model read).
        self._drafts: dict[str, tuple[int, LessonDraft]] = {}

    def needs_model(self, verdict: Verdict) -> bool:
        """Return whether a model is asked about the hints of this verdict."""
        return self._reader is not None and bool(verdict.hints or facts_of(verdict))

    async def read_lesson(self, item: JudgeInput, verdict: Verdict) -> None:
        """Ask the model about the hints of a verdict, for `update`. Never raises for an answer that is unusable."""
        if self._reader is not None and self.needs_model(verdict):
            try:
                known = await asyncio.to_thread(self._read_known, verdict.turn)
            except DamagedRow:
                # `update` reports it.
                return
            draft = await self._reader.read_lesson(item, verdict, known)
            if draft is not None:
                self._drafts[verdict.turn] = verdict.revision, draft

    def update(self, conn: Connection, verdict: Verdict, *, is_trusted: bool = True) -> None:
        """Update the lessons after a verdict has been stored, in the same transaction.

        Of a judge that is not trusted (`is_trusted`), only the person's own corrections count.
        """
        revision, draft = self._drafts.pop(verdict.turn, (0, None))
        drafts = None
        if draft is not None and revision == verdict.revision and is_trusted:
            drafts = [draft]
        try:
            if not is_trusted:
                verdict = _keep_corrections(conn, verdict)
                if not verdict.hints:
                    return
            update_lessons(
                conn,
                verdict,
                self.topics,
                per=self._per,
                drafts=drafts,
                is_shared=self._is_shared,
                is_ephemeral=self._is_ephemeral,
                key=self._store.secret,
            )
        except DamagedRow as error:
            log.warning("turn %s gives no lesson: %s", verdict.turn, error)

    async def close(self) -> None:
        """Close the connections to the model."""
        if self._reader is not None:
            await self._reader.close()

    def _read_known(self, turn: str) -> list[Lesson]:
        with self._store.read() as conn:
            return known_lessons(conn, turn, self._per)


def _keep_corrections(conn: Connection, verdict: Verdict) -> Verdict:
    """Return the verdict with those of its hints that are corrections of the person, and without votes."""
    reaction = turns.current_reaction(conn, verdict.turn)
    feedback = heard_reaction(reaction).feedback if reaction is not None else ()
    corrections = {normalise_lesson(one.correction) for one in feedback if one.correction}
    hints = [hint for hint in verdict.hints if normalise_lesson(hint) in corrections]
    return replace(verdict, hints=tuple(hints), votes=())
