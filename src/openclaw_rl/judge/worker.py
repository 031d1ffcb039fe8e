"""Judge worker: reads closed turns and writes durable verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from openclaw_rl.errors import OpenClawError
from openclaw_rl.judge import plugin, reward_model, user_feedback
from openclaw_rl.judge.backoff import delay
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.judge.teacher import Teacher
from openclaw_rl.judge.vote_parser import sound
from openclaw_rl.judge.voting import sound_verdict
from openclaw_rl.protocols import Judge
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.types import JudgeInput, Verdict

log = logging.getLogger("openclaw_rl.judge")

READ_AHEAD = 64  # maximum number of turns per read
READ_EVERY = 0.5  # seconds between two reads while turns of the last read are not started
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0  # seconds until a failed turn is judged again
LONGEST_PROBE = 15.0  # seconds between two attempts while the judge is down
LOG_EVERY = 30.0  # seconds between two warnings
BEAT_EVERY = 1.0

Key = tuple[str, int]  # turn, revision of its reaction


async def run(config: Config, *, stop: asyncio.Event, judge: Judge | None = None) -> None:
    """Judge closed turns until `stop` is set. `judge` replaces the configured judge.

    Consumes: turns CLOSED whose current reaction has no verdict.
    Produces: one durable verdict for each, and the turn JUDGED.
    Waits for: `collect` closing turns; the judge's answers, `workers` turns at once.
    Unblocked by: a commit of another process, an answer, a back-off that ends, `stop`.
    """
    judge = judge or make(config)
    teacher = Teacher(config) if config.teacher.wanted else None
    store = await asyncio.to_thread(Store.open, config.store_path)
    desk = _Desk(config, store, judge, teacher)
    try:
        await desk.work(stop)
    finally:
        await desk.leave()
        for asked in (judge, teacher):
            if isinstance(asked, LlmJudge | Teacher):
                await asked.close()
        store.close()


def make(config: Config) -> Judge:
    """Return the configured judge. Raises `ConfigError`, `ModelError`, `PluginError`."""
    match config.judge.kind:
        case "llm":
            return LlmJudge(config)
        case "classifier":
            return reward_model.make(config)
        case "plugin":
            return plugin.make(config)
        case "rules":
            return RulesJudge.load(config.judge.rules_path)


def _key(item: JudgeInput) -> Key:
    return item.turn, item.reaction.revision


class _Desk:
    """Queue of closed turns: running judge tasks, ready turns, and failed turns that wait for a retry."""

    def __init__(self, config: Config, store: Store, judge: Judge, teacher: Teacher | None) -> None:
        self._poll = config.judge.poll
        self._workers = config.judge.workers
        self._store = store
        self._judge = judge
        self._teacher = teacher
        self._ready: dict[Key, JudgeInput] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._late: dict[Key, tuple[int, float]] = {}  # (number of failures, earliest retry on the monotonic clock)
        self._look, self._read_at = True, 0.0
        self._judged = 0
        self._trouble = Trouble()
        self._probe_at = 0.0
        self._beat_at = 0.0

    async def work(self, stop: asyncio.Event) -> None:
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._beat()
                await self._read()
                self._start()
                done, _ = await asyncio.wait(
                    {stopped, *self._tasks.values()}, timeout=self._poll, return_when=asyncio.FIRST_COMPLETED
                )
                for key in [key for key, task in self._tasks.items() if task in done]:
                    self._tasks.pop(key).result()  # raise store errors: the worker cannot continue without the store
        finally:
            stopped.cancel()

    async def leave(self) -> None:
        """Cancel unfinished tasks: their turns stay CLOSED in the store and are judged after the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _read(self) -> None:
        """Read closed turns if there may be new ones, and save verdicts from explicit feedback at once."""
        if await asyncio.to_thread(self._store.changed):
            self._look = True
        now = time.monotonic()
        due = any(at <= now and key not in self._tasks for key, (_, at) in self._late.items())
        if not (self._look or due) or (self._ready and now < self._read_at):
            return
        self._look, self._read_at = False, now + READ_EVERY
        limit = READ_AHEAD + len(self._tasks) + len(self._late)
        items = await asyncio.to_thread(self._closed, limit)
        if len(items) < limit:  # complete list: turns that are not in it are no longer CLOSED
            self._late = {key: self._late[key] for key in map(_key, items) if key in self._late}
        else:
            self._look = True
        settled = {_key(i): v for i in items if (v := user_feedback.verdict(i)) and not self._taught(i, v)}
        if settled:
            await asyncio.to_thread(self._keep, list(settled.values()))
        fresh = {_key(i): i for i in items if _key(i) not in self._tasks and _key(i) not in settled}
        self._ready = {k: i for k, i in fresh.items() if self._late.get(k, (0, 0.0))[1] <= now}

    def _start(self) -> None:
        """Start tasks for ready turns on free workers, fewest failures first; only one while the judge is down.

        Turns with explicit feedback wait only for the teacher, so they are started even while the judge is down.
        """
        outright = [key for key, item in self._ready.items() if user_feedback.verdict(item)]
        for key in outright[: max(self._workers - len(self._tasks), 0)]:
            self._begin(key)
        down = self._down()
        free = (1 if down else self._workers) - len(self._tasks)
        if down and time.monotonic() < self._probe_at:
            return
        for key in sorted(self._ready, key=lambda k: self._late.get(k, (0, 0.0))[0])[: max(free, 0)]:
            self._begin(key)

    def _begin(self, key: Key) -> None:
        self._tasks[key] = asyncio.create_task(self._one(self._ready.pop(key)), name=f"judge {key[0]}")

    def _taught(self, item: JudgeInput, verdict: Verdict) -> bool:
        return self._teacher is not None and self._teacher.wants(item, verdict)

    def _down(self) -> bool:
        return self._trouble.in_a_row >= self._workers

    async def _one(self, item: JudgeInput) -> None:
        outright = user_feedback.verdict(item)
        try:
            verdict = outright or user_feedback.corrected(item, await self._judge.judge(item))
        except Exception as error:  # noqa: BLE001  a plug-in judge may raise anything; only this turn is delayed
            self._failed(_key(item), error)
            return
        if self._teacher is not None:
            verdict = await self._teacher.taught(item, verdict)
        await asyncio.to_thread(self._keep, [sound_verdict(verdict)])
        self._late.pop(_key(item), None)
        if outright:
            return  # the judge was not called: it may still be down
        if self._down():  # the judge has recovered: retry the failed turns at once
            self._late = {key: (failures, 0.0) for key, (failures, _) in self._late.items()}
        self._trouble.over()

    def _failed(self, key: Key, error: Exception) -> None:
        failures = self._late.get(key, (0, 0.0))[0] + 1
        now = time.monotonic()
        self._late[key] = failures, now + delay(failures, first=FIRST_WAIT, longest=LONGEST_WAIT)
        words = sound(str(error) if isinstance(error, OpenClawError) else f"{type(error).__name__}: {error}")
        self._trouble.add(words, len(self._late), now)
        self._probe_at = now + delay(self._trouble.in_a_row, first=self._poll, longest=LONGEST_PROBE)

    def _closed(self, limit: int) -> list[JudgeInput]:
        with self._store.read() as conn:
            return turns.closed(conn, limit)

    def _keep(self, verdicts: Sequence[Verdict]) -> None:
        with self._store.write() as conn:
            for verdict in verdicts:
                with contextlib.suppress(KeyError):  # the turn was erased while it was being judged
                    # False: the reaction changed in the meantime; its new revision is read as a separate item.
                    self._judged += turns.add_verdict(conn, verdict)

    async def _beat(self) -> None:
        now = time.monotonic()
        if now < self._beat_at:
            return
        self._beat_at = now + BEAT_EVERY
        note = f"{self._judged} judged" + (f", {len(self._late)} waiting" if self._late else "")
        if self._teacher is not None:
            note += f"; {self._teacher.note}"
        if self._trouble.in_a_row:
            note += f"; {self._trouble.words}"
        await asyncio.to_thread(heartbeats.beat, self._store, "judge", note)


class Trouble:
    """Counts consecutive failures and logs a warning about them at a limited rate."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self.words = ""
        self._said_at = float("-inf")

    def add(self, words: str, waiting: int, now: float) -> None:
        """Record a failure; log a warning unless one was logged within `LOG_EVERY` seconds."""
        self.in_a_row += 1
        self.words = words
        if now - self._said_at >= LOG_EVERY:
            self._said_at = now
            log.warning(
                "No verdict: %s. Expected a usable answer; %d turn(s) are waiting and will be judged again. "
                "If it persists, check judge.* in the settings.",
                words.rstrip("."),
                waiting,
            )

    def over(self) -> None:
        """Record that the judge answers again."""
        if self.in_a_row:
            log.info("The judge answers again after %d failure(s).", self.in_a_row)
        self.in_a_row = 0
