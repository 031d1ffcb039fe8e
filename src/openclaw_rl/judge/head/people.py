"""The heads of single people: the shared rows and what a person scored, corrected or undid.

A person's rows are in no head but that person's own, and their weight is bounded. The store is looked at from time to
time; new rows are read and fitted in the background, while the head so far answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openclaw_rl.errors import OpenClawError
from openclaw_rl.judge.head.base_states import BaseStates
from openclaw_rl.judge.head.features import make_features
from openclaw_rl.judge.head.model import CLASSES, Head, LabelledRows, fit_person_head
from openclaw_rl.judge.head.records import make_record
from openclaw_rl.judge.head.regression import Floats
from openclaw_rl.judge.heard import heard_item
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.store import person_scores
from openclaw_rl.store.db import Store
from openclaw_rl.store.person_scores import Person, PersonScore
from openclaw_rl.types import JudgeInput

log = logging.getLogger("openclaw_rl.judge")

LOOK_EVERY = 10.0
"""Seconds between two looks into the store for new scores."""
MIN_ROWS = 4
"""Rows of a person from which on a head is fitted to them."""
MAX_ROWS = 200
"""Rows of a person that count: the newest ones."""
MAX_PEOPLE = 64
"""Heads of people that are kept in memory."""
MAX_FEATURES = 4096
"""Turns whose columns are kept in memory."""


@dataclass(frozen=True, slots=True)
class _PersonHead:
    scores: tuple[PersonScore, ...]
    head: Head


class FeatureReader:
    """Reads the columns of turns, and keeps those of the newest."""

    def __init__(self, states: BaseStates, rules: RulesJudge) -> None:
        self._states = states
        self._rules = rules
        self._known: OrderedDict[tuple[str, int], Floats] = OrderedDict()

    async def read_features(self, item: JudgeInput) -> Floats | None:
        """Return the columns [D] of a turn; None if its reaction has no text. Raises what the engine raises."""
        key = (item.turn, item.reaction.revision)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        record = make_record(item)
        if record is None:
            return None
        states = await self._states.read(record)
        features = make_features(record, states, await self._rules.judge(item))
        self._known[key] = features
        if len(self._known) > MAX_FEATURES:
            self._known.popitem(last=False)
        return features


class PeoplesHeads:
    """The head of each person who has scored enough turns; of all others, the shared one."""

    def __init__(self, shared: Head, reader: FeatureReader, store: Store | None) -> None:
        """`store`: of the people's turns; None: there are no people."""
        self._shared = shared
        self._reader = reader
        self._store = store
        self._heads: OrderedDict[Person, _PersonHead] = OrderedDict()
        self._looked_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def head_of(self, turn: str) -> Head:
        """Return the head of the person who had the turn."""
        if self._store is None:
            return self._shared
        self._start_refresh()
        person = await asyncio.to_thread(self._find_person, turn)
        if person is None or person not in self._heads:
            return self._shared
        self._heads.move_to_end(person)
        return self._heads[person].head

    async def refresh(self) -> None:
        """Read the scores of people, and fit the heads of those who have new ones."""
        assert self._store is not None
        by_person = await asyncio.to_thread(self._read_scores)
        for person, scores in by_person.items():
            known = self._heads.get(person)
            if len(scores) < MIN_ROWS or (known is not None and known.scores == tuple(scores)):
                continue
            rows = await self._read_rows(scores)
            if len(rows) >= MIN_ROWS:
                head = await asyncio.to_thread(fit_person_head, self._shared, rows)
                self._heads[person] = _PersonHead(tuple(scores), head)
                log.debug(
                    "the judge's head of a person was fitted to %d of their scores", len(rows)
                )
        while len(self._heads) > MAX_PEOPLE:
            self._heads.popitem(last=False)

    async def close(self) -> None:
        """Stop the fit in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start_refresh(self) -> None:
        now = time.monotonic()
        is_running = self._task is not None and not self._task.done()
        if is_running or now < self._looked_at + LOOK_EVERY:
            return
        self._looked_at = now
        self._task = asyncio.create_task(self._refresh_quietly(), name="people's heads")

    async def _refresh_quietly(self) -> None:
        try:
            await self.refresh()
        except OpenClawError as error:
            # The engine is away: the next look tries again.
            log.debug("the heads of people were not fitted: %s", error)

    def _find_person(self, turn: str) -> Person | None:
        assert self._store is not None
        with self._store.read() as conn:
            return person_scores.person_of(conn, turn)

    def _read_scores(self) -> dict[Person, list[PersonScore]]:
        assert self._store is not None
        with self._store.read() as conn:
            return person_scores.scores_by_person(conn, MAX_ROWS)

    async def _read_rows(self, scores: Sequence[PersonScore]) -> LabelledRows:
        """Return the rows of a person's scores whose reactions have a text."""
        items = await asyncio.to_thread(self._read_items, [one.turn for one in scores])
        features = []
        labels = []
        texts = []
        for score in scores:
            item = items.get(score.turn)
            read = None if item is None else await self._reader.read_features(item)
            record = None if item is None else make_record(item)
            if read is None or record is None:
                continue
            features.append(read)
            labels.append(CLASSES.index(score.score))
            texts.append(record.reaction)
        width = self._shared.rows.features.shape[1]
        return LabelledRows(
            features=np.stack(features) if features else np.zeros((0, width)),
            labels=np.array(labels, dtype=np.int64),
            texts=texts,
        )

    def _read_items(self, turns: Sequence[str]) -> dict[str, JudgeInput]:
        assert self._store is not None
        with self._store.read() as conn:
            read = person_scores.judge_inputs(conn, turns)
        return {turn: without_feedback(heard_item(item)) for turn, item in read.items()}


def without_feedback(item: JudgeInput) -> JudgeInput:
    """Return a turn without its explicit feedback: the head reads what the person said next."""
    return replace(item, reaction=replace(item.reaction, feedback=()))
