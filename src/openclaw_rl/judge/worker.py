"""Judge worker: reads closed turns and writes durable verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common import disk_space
from openclaw_rl.common.progress import current_activity, record_progress
from openclaw_rl.common.retries.backoff import backoff_delay
from openclaw_rl.common.worker_loop import DiskPause, HeartbeatTimer
from openclaw_rl.errors import (
    DamagedRow,
    JudgeNotReady,
    OpenClawError,
    StoreError,
    UnreadableAnswer,
)
from openclaw_rl.judge import reward_model, user_feedback
from openclaw_rl.judge.behaviour import verdicts as behaviour
from openclaw_rl.judge.comparison import ComparisonQueue
from openclaw_rl.judge.failure_log import FailureLog
from openclaw_rl.judge.head.auto import AutoJudge
from openclaw_rl.judge.heard import heard_item, judge_heard
from openclaw_rl.judge.lessons.lesson_maker import LessonMaker
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.judge.teacher import Teacher
from openclaw_rl.judge.turn_queue import (
    JudgeTask,
    QueuedTurn,
    TurnKey,
    TurnProgress,
    TurnQueue,
    attempt_ref,
    turn_key,
)
from openclaw_rl.judge.verdict_writer import VerdictWriter
from openclaw_rl.judge.vote_cache import VoteCache
from openclaw_rl.judge.vote_parser import replace_surrogates
from openclaw_rl.judge.voting import make_verdict, replace_verdict_surrogates
from openclaw_rl.protocols import Judge
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import judge_spec
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.db import Store
from openclaw_rl.store.workers.attempts import MAX_DEATHS, AttemptLog
from openclaw_rl.store.workers.registry import WorkerEntry
from openclaw_rl.types import JudgeInput, Verdict

log = logging.getLogger("openclaw_rl.judge")

HEARTBEAT_NAME = "judge"
# Maximum number of turns per read.
READ_AHEAD = 64
READ_EVERY = 0.5  # seconds between two reads while turns of the last read are not started
MAX_UNREADABLE = 6
"""Answers on a turn that cannot be read, after which the judge is not asked again: each may cost money."""
UNREADABLE_JUDGE = "unreadable"
"""Judge of a turn that was given up."""
# Seconds until a failed turn is judged again.
FIRST_WAIT = 1.0
LONGEST_WAIT = 300.0
# Seconds between two attempts while the judge is down.
LONGEST_PROBE = 15.0


async def run(config: Config, *, stop: asyncio.Event, judge: Judge | None = None) -> None:
    """Judge closed turns until `stop` is set. `judge` replaces the configured judge.

    Consumes: turns CLOSED whose current reaction has no verdict, and that no other judge has claimed.
    Produces: one durable verdict for each, and the turn JUDGED.
    Waits for: `collect` closing turns; the judge's answers, `workers` turns at once.
    Unblocked by: a commit of another process, an answer, a back-off that ends, `stop`.
    Raises `WorkerNameTaken` if a judge runs on the home.
    """
    judge = judge or make_judge(config)
    log.info("judge.kind %s, %d turns at once", config.judge.kind, config.judge.workers)
    teacher = Teacher(config) if config.teacher.wanted else None
    store = await asyncio.to_thread(Store.open, config.store_path)
    if isinstance(judge, LlmJudge) and config.judge.cache:
        judge.use_cache(VoteCache(store, config.judge.cache))
    if isinstance(judge, AutoJudge):
        judge.open(store)
    try:
        entry = await asyncio.to_thread(WorkerEntry, store, HEARTBEAT_NAME)
        try:
            queue = JudgeQueue(config, store, judge, teacher, worker=entry.id)
            await _judge_until_stopped(queue, stop)
        finally:
            await asyncio.to_thread(entry.close)
    finally:
        for asked in (judge, teacher):
            if isinstance(asked, LlmJudge | AutoJudge | Teacher):
                await asked.close()
        store.close()


async def _judge_until_stopped(queue: JudgeQueue, stop: asyncio.Event) -> None:
    try:
        await queue.run(stop)
    finally:
        await queue.cancel_tasks()
        await queue.lessons.close()


def make_judge(config: Config) -> Judge:
    """Return the configured judge. Raises `ConfigError`, `ModelError`, `PluginError`."""
    return judge_spec(config).create(config)


def _set_aside(conn: Connection, turn: str, reason: Reason) -> None:
    log.warning("turn %s: %s", turn, reason)
    turns.set_aside(conn, turn, reason, at=time.time())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedTurns:
    """The result of a read of closed turns."""

    items: Sequence[JudgeInput]  # that no other worker has
    deaths: Mapping[str, int]  # how often workers died on turns, by `attempt_ref`
    is_complete: bool  # all closed turns were read


class JudgeQueue:
    """Judges closed turns, several at once, and writes the verdicts."""

    def __init__(
        self,
        config: Config,
        store: Store,
        judge: Judge,
        teacher: Teacher | None,
        *,
        worker: str = "",
    ) -> None:
        """`worker`: id of the worker's entry, by which turns are claimed."""
        self._config = config.judge
        self._store = store
        self._judge = judge
        self._teacher = teacher
        # Why it is the rules, if the settings leave the choice.
        self._choice = judge_spec(config).describe(config) if isinstance(judge, RulesJudge) else ""
        self.lessons = LessonMaker(config, store, judge)
        self._topics = self.lessons.topics
        self._turns = TurnQueue({})
        self._may_have_new = True
        self._last_read_at = float("-inf")
        self._failures = FailureLog()
        self._heartbeat = HeartbeatTimer(self._write_heartbeat)
        self._pause = DiskPause()
        self._progress = heartbeats.ProgressReader()
        self._attempts = AttemptLog(store, "judge", worker)
        self._comparisons = ComparisonQueue(store, judge, config.judge, self._topics)
        self._verdicts = VerdictWriter(store, self._attempts, self.lessons, config.judge.min_kappa)

    async def run(self, stop: asyncio.Event) -> None:
        self._turns = TurnQueue(await asyncio.to_thread(self._attempts.deaths))
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                if not self._is_scoring():
                    record_progress()
                await self._heartbeat.write_if_due(self._pause.problem)
                try:
                    await self._run_once(stopped)
                except StoreError as error:
                    full = disk_space.to_disk_full(error)
                    if full is None:
                        raise
                    self._may_have_new = True
                    await self._pause.begin(full, stop, self._heartbeat)
                else:
                    self._pause.end()
        finally:
            stopped.cancel()

    async def _run_once(self, stopped: asyncio.Task[Any]) -> None:
        if not self._verdicts.trust_is_current:
            await asyncio.to_thread(self._verdicts.save_comparisons, [])
        if await self._is_read_due():
            await self._read_closed_turns()
        await self._fill_workers()
        tasks = self._turns.tasks()
        running = {stopped, *tasks.values(), *self._comparisons.tasks}
        done, _ = await asyncio.wait(
            running, timeout=self._config.poll, return_when=asyncio.FIRST_COMPLETED
        )
        await self._save_judged({key: task for key, task in tasks.items() if task in done})
        compared = self._comparisons.take_finished()
        if compared:
            await asyncio.to_thread(self._verdicts.save_comparisons, compared)

    def _is_scoring(self) -> bool:
        """Return whether a reward model runs in this process: then only the ends of its calls are progress."""
        return isinstance(self._judge, reward_model.RewardJudge) and self._judge.is_scoring

    async def cancel_tasks(self) -> None:
        """Cancel unfinished tasks: their turns stay CLOSED in the store and are judged after the next start."""
        tasks = self._turns.tasks()
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        with contextlib.suppress(StoreError):
            self._attempts.forget_own()
        await self._comparisons.cancel_tasks()

    # ---------------------------------------------------------------- reading

    async def _is_read_due(self) -> bool:
        """Return whether there may be new closed turns, or failed ones to judge again."""
        if await asyncio.to_thread(self._store.has_changed):
            self._may_have_new = True
        now = time.monotonic()
        is_ready = bool(self._turns.in_state(TurnProgress.READY))
        interval = READ_EVERY if is_ready else self._config.poll
        if now < self._last_read_at + interval:
            return False
        return self._may_have_new or self._turns.is_retry_due(now)

    async def _read_closed_turns(self) -> None:
        """Read closed turns, and save verdicts that need neither judge nor teacher at once."""
        now = time.monotonic()
        self._may_have_new = False
        self._last_read_at = now
        limit = READ_AHEAD + len(self._turns.tasks()) + self._turns.tried_count()
        read = await asyncio.to_thread(self._query_closed_turns, limit)
        self._turns.set_deaths(read.deaths)
        items = read.items
        if any(self._turns.deaths_on(item) >= MAX_DEATHS for item in items):
            items = await asyncio.to_thread(self._give_up_fatal_turns, items)
        if not read.is_complete:
            self._may_have_new = True
        settled: dict[TurnKey, Verdict] = {}
        for item in items:
            verdict = self._verdict_without_judge(item)
            if verdict is None or self._wants_hint(item, verdict):
                continue
            if not self.lessons.needs_model(verdict):
                settled[turn_key(item)] = verdict
        if settled:
            await asyncio.to_thread(self._verdicts.save_verdicts, list(settled.values()))
            self._comparisons.add(item for item in items if turn_key(item) in settled)
        unsettled = [item for item in items if turn_key(item) not in settled]
        gone = self._turns.replace_read(unsettled, now, is_complete=read.is_complete)
        if gone:
            await asyncio.to_thread(self._attempts.forget, list(map(attempt_ref, gone)))

    def _query_closed_turns(self, limit: int) -> ClosedTurns:
        """Return closed turns that no other worker has; those that cannot be read are set aside."""
        while True:
            try:
                with self._store.read() as conn:
                    notes = self._attempts.read(conn)
                    most = limit + len(notes.elsewhere)
                    closed = list(map(heard_item, turns.closed_turns(conn, most)))
            except DamagedRow as error:
                with self._store.write(durable=False) as conn:
                    _set_aside(conn, error.turn, Reason(ReasonCode.DAMAGED, str(error)))
            else:
                free = [
                    item for item in closed if attempt_ref(turn_key(item)) not in notes.elsewhere
                ]
                is_complete = len(closed) < most
                return ClosedTurns(items=free, deaths=notes.deaths, is_complete=is_complete)

    def _give_up_fatal_turns(self, items: Sequence[JudgeInput]) -> list[JudgeInput]:
        """Set aside the turns on which workers died twice, and return the others."""
        others = []
        with self._store.write(durable=False) as conn:
            for item in items:
                ref = attempt_ref(turn_key(item))
                reason = self._attempts.give_up(conn, ref, self._turns.deaths_on(item))
                if reason is None:
                    others.append(item)
                else:
                    _set_aside(conn, item.turn, reason)
        return others

    def _verdict_without_judge(self, item: JudgeInput) -> Verdict | None:
        """Return the verdict from explicit feedback, or from behaviour if nothing can be read; else None."""
        if behaviour.has_only_behaviour(item):
            return behaviour.behaviour_verdict(item, self._config.signals)
        return user_feedback.explicit_verdict(item)

    def _wants_hint(self, item: JudgeInput, verdict: Verdict) -> bool:
        """Return whether the teacher is asked. Behaviour does not show what a better reply would have been like."""
        if self._teacher is None or is_signal(verdict.judge):
            return False
        return self._teacher.wants_hint(item, verdict)

    # ---------------------------------------------------------------- judging

    async def _fill_workers(self) -> None:
        """Start tasks for ready turns on free workers, after a note of what is being worked on."""
        chosen = self._turns.choose_next(
            self._config.workers,
            len(self._comparisons.tasks),
            is_down=self._is_judge_down(),
            may_try=time.monotonic() >= self._failures.next_probe_at,
        )
        for turn in await self._claim(chosen):
            name = f"judge {turn.item.turn}"
            task = asyncio.create_task(self._judge_turn(turn.item), name=name)
            self._turns.start(turn.key, task)
        if self._may_compare():
            await self._comparisons.start(self._config.workers - len(self._turns.tasks()))

    async def _claim(self, chosen: Sequence[QueuedTurn]) -> list[QueuedTurn]:
        """Claim turns before they are started. Return those that no other worker was faster to take."""
        if not chosen:
            return []
        keys = await asyncio.to_thread(self._claim_closed, [turn.key for turn in chosen])
        claimed = []
        for turn in chosen:
            if turn.key in keys:
                claimed.append(turn)
            else:
                self._turns.remove(turn.key)
                self._may_have_new = True
        return claimed

    def _claim_closed(self, keys: Sequence[TurnKey]) -> set[TurnKey]:
        """Claim turns. Return those that are ours now, and that nobody has judged since they were read."""
        refs = self._attempts.claim([attempt_ref(key) for key in keys]).refs
        ours = [key for key in keys if attempt_ref(key) in refs]
        with self._store.read() as conn:
            waiting = {key for key in ours if turns.awaits_verdict(conn, *key)}
        judged = [attempt_ref(key) for key in ours if key not in waiting]
        if judged:
            self._attempts.forget(judged)
        return waiting

    def _may_compare(self) -> bool:
        if isinstance(self._judge, AutoJudge) and not self._judge.is_ready:
            return False
        return not self._is_judge_down() and not self._turns.is_suspect_running()

    def _is_judge_down(self) -> bool:
        return self._failures.consecutive_failures >= self._config.workers

    async def _judge_turn(self, item: JudgeInput) -> Verdict | None:
        """Return the verdict on one turn; None if the judge failed, or is not ready for it."""
        explicit = user_feedback.explicit_verdict(item)
        try:
            verdict = explicit
            if verdict is None:
                verdict = await judge_heard(self._judge, item, self._topics)
                verdict = user_feedback.apply_corrections(item, verdict)
            verdict = behaviour.apply_signals(item, verdict, self._config.signals)
        except JudgeNotReady as waits:
            self._turns.postpone(turn_key(item), time.monotonic() + waits.retry_after)
            return None
        except UnreadableAnswer as error:
            return self._record_unreadable(item, error)
        except Exception as error:  # noqa: BLE001  a plug-in judge may raise anything; only this turn is delayed
            self._record_failure(turn_key(item), error)
            return None
        if self._teacher is not None and self._wants_hint(item, verdict):
            verdict = await self._teacher.add_hint(item, verdict)
        # Else the judge was not called: it may still be down.
        if explicit is None:
            if self._is_judge_down():
                self._turns.retry_at_once()
            self._failures.record_recovery()
        verdict = replace_verdict_surrogates(verdict)
        await self.lessons.read_lesson(item, verdict)
        return verdict

    def _record_unreadable(self, item: JudgeInput, error: UnreadableAnswer) -> Verdict | None:
        """Let a turn wait longer each time for an answer that can be read; after some, it has no verdict."""
        now = time.monotonic()
        turn = self._turns.record_unreadable(turn_key(item))
        turn.retry_at = now + backoff_delay(turn.unreadable, first=FIRST_WAIT, longest=LONGEST_WAIT)
        message = replace_surrogates(str(error))
        self._failures.record_unreadable(message, self._turns.failed_count(), now)
        if turn.unreadable < MAX_UNREADABLE:
            return None
        reason = (
            f"given up after {MAX_UNREADABLE} answers that cannot be read; the last one: {message}"
        )
        return make_verdict(item, UNREADABLE_JUDGE, None, reason, reason_code=ReasonCode.UNREADABLE)

    def _record_failure(self, key: TurnKey, error: Exception) -> None:
        now = time.monotonic()
        turn = self._turns.record_failure(key)
        wait = backoff_delay(turn.failures, first=FIRST_WAIT, longest=LONGEST_WAIT)
        turn.retry_at = now + wait
        is_known = isinstance(error, OpenClawError)
        message = str(error) if is_known else f"{type(error).__name__}: {error}"
        waiting = self._turns.failed_count()
        self._failures.record_failure(replace_surrogates(message), waiting, now)
        failures = self._failures.consecutive_failures
        probe_wait = backoff_delay(failures, first=self._config.poll, longest=LONGEST_PROBE)
        self._failures.next_probe_at = now + probe_wait

    async def _save_judged(self, done: Mapping[TurnKey, JudgeTask]) -> None:
        """Save the verdicts of finished tasks in one transaction, which also ends the work on them."""
        if not done:
            return
        results = {key: task.result() for key, task in done.items()}
        verdicts = [verdict for verdict in results.values() if verdict is not None]
        refs = [attempt_ref(key) for key in done]
        with self._attempts.interrupted_by(StoreError):
            await asyncio.to_thread(self._verdicts.save_verdicts, verdicts, refs)
        # Only now: on a full disk the verdicts are saved later.
        for key, verdict in results.items():
            item = self._turns.end(key, is_judged=verdict is not None)
            self._comparisons.add([item])

    def _write_heartbeat(self, problem: str | None) -> None:
        note = f"{self._verdicts.judged_count} judged"
        waiting = self._turns.failed_count()
        if waiting:
            note += f", {waiting} waiting"
        if isinstance(self._judge, AutoJudge):
            note += f"; {self._judge.status_note}"
        elif self._choice:
            note += f"; judge: {self._choice}"
        if self._teacher is not None:
            note += f"; {self._teacher.status_note}"
        untrusted = ", ".join(self._verdicts.trust.named)
        if untrusted:
            note += f"; not trained on (judge.min_kappa): {untrusted}"
        if self._failures.consecutive_failures:
            note += f"; {self._failures.last_error}"
        state = heartbeats.RUNNING
        if self._is_judge_down():
            state = heartbeats.PARKED
            note = f"parked, tries again at growing intervals: {note.rstrip('.')}. Check judge.* in the settings"
        if problem is not None:
            state = heartbeats.PARKED
            note = problem
        heartbeats.write_heartbeat(
            self._store,
            HEARTBEAT_NAME,
            note,
            state,
            advanced=self._progress.has_advanced(),
            activity=current_activity(),
        )
