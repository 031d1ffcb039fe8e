"""Verdicts for comparison: those of the judge and of the signals on turns that a person scored. They never train."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from openclaw_rl.common.rules.lesson_topics import HintTopics
from openclaw_rl.judge.behaviour.verdicts import comparison_verdicts
from openclaw_rl.judge.heard import judge_heard
from openclaw_rl.judge.voting import replace_verdict_surrogates
from openclaw_rl.protocols import Judge
from openclaw_rl.settings.schema_judge import JudgeConfig
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.person_scores import Person, person_of
from openclaw_rl.types import JudgeInput, Verdict

log = logging.getLogger("openclaw_rl.judge")
# Seconds.
DAY = 86_400.0
# Turns of a person that wait for their comparison; older ones are left out.
MAX_WAITING = 256
PERSON_SHARE = 0.25
"""Share of the limit that one person's turns may use up, if others have turns to compare as well."""


class ComparisonQueue:
    """Judges turns with an explicit score too, without the feedback, whenever a worker is free.

    A turn that a judge has scored before is not judged again. At most `limit` turns in 24 hours, counted since the
    start of the process, in turn one of each person who has any. After a failure of the judge, the turn is left out.
    The signals need no worker and no limit.
    """

    def __init__(self, store: Store, judge: Judge, config: JudgeConfig, topics: HintTopics) -> None:
        """`topics`: of the rules."""
        self._topics = topics
        self._store = store
        self._judge = judge
        self._limit = config.max_comparisons
        self._signals = config.signals
        # Finished.
        self._by_signals: list[Verdict] = []
        self._new: list[JudgeInput] = []
        # By person; who was compared last comes last.
        self._waiting: OrderedDict[Person, deque[JudgeInput]] = OrderedDict()
        # Monotonic clock.
        self._started_at: deque[tuple[float, Person]] = deque()
        self.tasks: set[asyncio.Task[Verdict | None]] = set()

    def add(self, items: Iterable[JudgeInput]) -> None:
        """Add turns with an explicit verdict. Those without a score, or a message to judge, are not judged."""
        for item in filter(_is_scored, items):
            self._by_signals += comparison_verdicts(item, self._signals)
            if item.reaction.messages:
                self._new.append(item)

    async def start(self, free: int) -> None:
        """Start at most `free` comparisons, as far as the limit allows."""
        now = time.monotonic()
        while self._started_at and self._started_at[0][0] <= now - DAY:
            self._started_at.popleft()
        free = min(free - len(self.tasks), self._limit - len(self._started_at))
        if free <= 0 or not (self._new or self._waiting):
            return
        await self._sort_new()
        chosen = self._choose(free)
        known = await asyncio.to_thread(self._already_judged, [item.turn for _, item in chosen])
        for person, item in chosen:
            if item.turn not in known:
                self._started_at.append((now, person))
                name = f"compare {item.turn}"
                self.tasks.add(asyncio.create_task(self._compare(item), name=name))

    async def _sort_new(self) -> None:
        """Add the new turns to those of their people."""
        new = self._new
        self._new = []
        people = await asyncio.to_thread(self._read_people, [item.turn for item in new])
        for item in new:
            person = people.get(item.turn)
            # Else it was erased.
            if person is not None:
                waiting = self._waiting.setdefault(person, deque(maxlen=MAX_WAITING))
                waiting.append(item)

    def _choose(self, free: int) -> list[tuple[Person, JudgeInput]]:
        """Take at most `free` turns from the queues, one of each person in turn."""
        counts = Counter(person for _, person in self._started_at)
        chosen: list[tuple[Person, JudgeInput]] = []
        others = len(counts.keys() | self._waiting.keys()) > 1
        most = max(1, int(PERSON_SHARE * self._limit)) if others else self._limit
        waiting = [person for person in self._waiting if counts[person] < most]
        while waiting and len(chosen) < free:
            person = waiting.pop(0)
            items = self._waiting.pop(person)
            chosen.append((person, items.popleft()))
            counts[person] += 1
            if items:
                self._waiting[person] = items
                if counts[person] < most:
                    waiting.append(person)
        return chosen

    def _read_people(self, ids: Sequence[str]) -> dict[str, Person | None]:
        with self._store.read() as conn:
            return {turn: person_of(conn, turn) for turn in ids}

    def _already_judged(self, ids: Sequence[str]) -> set[str]:
        with self._store.read() as conn:
            return turns.judged_without_feedback(conn, ids)

    def take_finished(self) -> list[Verdict]:
        """Remove the finished tasks and return their verdicts."""
        done = {task for task in self.tasks if task.done()}
        self.tasks -= done
        verdicts = self._by_signals
        self._by_signals = []
        results = [task.result() for task in done]
        return verdicts + [verdict for verdict in results if verdict is not None]

    async def cancel_tasks(self) -> None:
        """Cancel what runs; these turns are not compared."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _compare(self, item: JudgeInput) -> Verdict | None:
        try:
            plain = replace(item, reaction=replace(item.reaction, feedback=()))
            return replace_verdict_surrogates(await judge_heard(self._judge, plain, self._topics))
        except Exception as error:  # noqa: BLE001  a plug-in judge may raise anything; a comparison is not repeated
            log.debug("%s: no comparison: %s", item.turn, error)
            return None


def _is_scored(item: JudgeInput) -> bool:
    return any(feedback.score is not None for feedback in item.reaction.feedback)
