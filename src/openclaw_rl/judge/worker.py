"""Judge worker: reads closed turns and writes durable verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common import disk_space
from openclaw_rl.common.progress import current_activity, record_progress
from openclaw_rl.common.retries.backoff import backoff_delay
from openclaw_rl.common.worker_loop import DiskPause, HeartbeatTimer
from openclaw_rl.errors import DamagedRow, OpenClawError, StoreError
from openclaw_rl.judge import reward_model, user_feedback
from openclaw_rl.judge.behaviour import verdicts as behaviour
from openclaw_rl.judge.comparison import ComparisonQueue
from openclaw_rl.judge.failure_log import FailureLog
from openclaw_rl.judge.lessons.lesson_maker import LessonMaker
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.teacher import Teacher
from openclaw_rl.judge.vote_cache import VoteCache
from openclaw_rl.judge.vote_parser import replace_surrogates
from openclaw_rl.judge.voting import replace_verdict_surrogates
from openclaw_rl.protocols import Judge
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import judge_spec
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.behaviour.observations import is_signal
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import version_stats
from openclaw_rl.types import JudgeInput, Verdict

log = logging.getLogger("openclaw_rl.judge")

# Maximum number of turns per read.
READ_AHEAD = 64
READ_EVERY = 0.5  # seconds between two reads while turns of the last read are not started
# seconds until a failed turn is judged again
FIRST_WAIT = 1.0
LONGEST_WAIT = 300.0
# Seconds between two attempts while the judge is down.
LONGEST_PROBE = 15.0

# Turn, revision of its reaction.
TurnKey = tuple[str, int]


async def run(config: Config, *, stop: asyncio.Event, judge: Judge | None = None) -> None:
    """Judge closed turns until `stop` is set. `judge` replaces the configured judge.

    Consumes: turns CLOSED whose current reaction has no verdict.
    Produces: one durable verdict for each, and the turn JUDGED.
    Waits for: `collect` closing turns; the judge's answers, `workers` turns at once.
    Unblocked by: a commit of another process, an answer, a back-off that ends, `stop`.
    """
    judge = judge or make_judge(config)
    log.info("judge.kind %s, %d turns at once", config.judge.kind, config.judge.workers)
    teacher = Teacher(config) if config.teacher.wanted else None
    store = await asyncio.to_thread(Store.open, config.store_path)
    if isinstance(judge, LlmJudge) and config.judge.cache:
        judge.use_cache(VoteCache(store, config.judge.cache))
    queue = JudgeQueue(config, store, judge, teacher)
    try:
        await queue.run(stop)
    finally:
        await queue.cancel_tasks()
        await queue.lessons.close()
        for asked in (judge, teacher):
            if isinstance(asked, LlmJudge | Teacher):
                await asked.close()
        store.close()


def make_judge(config: Config) -> Judge:
    """Return the configured judge. Raises `ConfigError`, `ModelError`, `PluginError`."""
    return judge_spec(config).create(config)


def _turn_key(item: JudgeInput) -> TurnKey:
    return item.turn, item.reaction.revision


def _attempt_ref(key: TurnKey) -> str:
    return f"{key[0]} {key[1]}"


def _set_aside(conn: Connection, turn: str, reason: Reason) -> None:
    log.warning("turn %s: %s", turn, reason)
    turns.set_aside(conn, turn, reason, at=time.time())


class JudgeQueue:
    """Queue of closed turns: running judge tasks, ready turns, and failed turns that wait for a retry."""

    def __init__(self, config: Config, store: Store, judge: Judge, teacher: Teacher | None) -> None:
        self._poll = config.judge.poll
        self._min_kappa = config.judge.min_kappa
        self._workers = config.judge.workers
        self._signals = config.judge.signals
        self._store = store
        self._judge = judge
        self._teacher = teacher
        self.lessons = LessonMaker(config, store, judge)
        self._ready: dict[TurnKey, JudgeInput] = {}
        self._tasks: dict[TurnKey, asyncio.Task[Verdict | None]] = {}
        self._running: dict[TurnKey, JudgeInput] = {}  # the inputs of the tasks
        # (number of failures, earliest retry on the monotonic clock)
        self._retries: dict[TurnKey, tuple[int, float]] = {}
        self._may_have_new = True
        self._last_read_at = float("-inf")
        self._judged_count = 0
        self._failure_log = FailureLog()
        self._next_probe_at = 0.0
        self._heartbeat = HeartbeatTimer(self._write_heartbeat)
        self._pause = DiskPause()
        self._progress = heartbeats.ProgressReader()
        self._attempts = heartbeats.AttemptLog(store, "judge")
        # Turns on which an earlier worker died (`_attempt_ref`).
        self._deaths: dict[str, int] = {}
        self._comparisons = ComparisonQueue(store, judge, config.judge)
        # Judges whose verdicts are not trained on.
        self._untrusted: set[str] = set()
        # Since the last process, `judge.min_kappa` may have changed.
        self._trust_is_current = False

    async def run(self, stop: asyncio.Event) -> None:
        self._deaths = await asyncio.to_thread(self._attempts.deaths)
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                if not self._is_scoring():
                    record_progress()
                await self._heartbeat.write_if_due(self._pause.problem)
                try:
                    await self._run_once(stopped)
                except StoreError as error:
                    if (full := disk_space.to_disk_full(error)) is None:
                        raise
                    self._may_have_new = True
                    await self._pause.begin(full, stop, self._heartbeat)
                else:
                    self._pause.end()
        finally:
            stopped.cancel()

    async def _run_once(self, stopped: asyncio.Task[Any]) -> None:
        if not self._trust_is_current:
            await asyncio.to_thread(self._save_comparisons, [])
        await self._read_closed_turns()
        await self._fill_workers()
        running = {stopped, *self._tasks.values(), *self._comparisons.tasks}
        done, _ = await asyncio.wait(
            running, timeout=self._poll, return_when=asyncio.FIRST_COMPLETED
        )
        await self._save_judged([key for key, task in self._tasks.items() if task in done])
        if compared := self._comparisons.take_finished():
            await asyncio.to_thread(self._save_comparisons, compared)

    def _is_scoring(self) -> bool:
        """Return whether a reward model runs in this process: then only the ends of its calls are progress."""
        return isinstance(self._judge, reward_model.RewardJudge) and self._judge.is_scoring

    async def cancel_tasks(self) -> None:
        """Cancel unfinished tasks: their turns stay CLOSED in the store and are judged after the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        with contextlib.suppress(StoreError):
            self._attempts.forget([_attempt_ref(key) for key in self._tasks])
        await self._comparisons.cancel_tasks()

    async def _read_closed_turns(self) -> None:
        """Read closed turns if there may be new ones, and save verdicts that need neither judge nor teacher at once."""
        if await asyncio.to_thread(self._store.has_changed):
            self._may_have_new = True
        now = time.monotonic()
        due = any(at <= now and key not in self._tasks for key, (_, at) in self._retries.items())
        if not (self._may_have_new or due) or now < self._last_read_at + (
            READ_EVERY if self._ready else self._poll
        ):
            return
        self._may_have_new = False
        self._last_read_at = now
        limit = READ_AHEAD + len(self._tasks) + len(self._retries)
        items = await asyncio.to_thread(self._query_closed_turns, limit)
        if any(self._deaths_on(item) >= heartbeats.MAX_DEATHS for item in items):
            items = await asyncio.to_thread(self._give_up_fatal_turns, items)
        # Complete list: turns that are not in it are no longer CLOSED.
        if len(items) < limit:
            self._retries = {
                key: self._retries[key] for key in map(_turn_key, items) if key in self._retries
            }
        else:
            self._may_have_new = True
        outright = {_turn_key(i): (i, v) for i in items if (v := self._verdict_without_judge(i))}
        settled = {
            key: v
            for key, (i, v) in outright.items()
            if not self._wants_hint(i, v) and not self.lessons.needs_model(v)
        }
        if settled:
            await asyncio.to_thread(self._save_verdicts, list(settled.values()))
            self._comparisons.add(item for item in items if _turn_key(item) in settled)
        fresh = {
            _turn_key(i): i
            for i in items
            if _turn_key(i) not in self._tasks and _turn_key(i) not in settled
        }
        self._ready = {k: i for k, i in fresh.items() if self._retries.get(k, (0, 0.0))[1] <= now}

    async def _fill_workers(self) -> None:
        """Start tasks for ready turns on free workers, after a note of what is being worked on."""
        keys = self._next_turns()
        if keys:
            await asyncio.to_thread(self._attempts.begin, [_attempt_ref(key) for key in keys])
        for key in keys:
            self._start_task(key)
        if not self._is_judge_down() and not self._is_suspect_running():
            await self._comparisons.start(self._workers - len(self._tasks))

    def _next_turns(self) -> list[TurnKey]:
        """Return the ready turns to start now, fewest failures first; only one while the judge is down.

        Turns with explicit feedback wait only for the teacher, so they are started even while the judge is down. A turn
        on which a worker died runs alone, so that its next death is the fault of no other turn.
        """
        suspects = [key for key in self._ready if _attempt_ref(key) in self._deaths]
        if suspects or self._is_suspect_running():
            return [] if self._tasks else suspects[:1]
        outright = [
            key for key, item in self._ready.items() if user_feedback.explicit_verdict(item)
        ]
        chosen = outright[: max(self._workers - len(self._tasks), 0)]
        down = self._is_judge_down()
        if down and time.monotonic() < self._next_probe_at:
            return chosen
        busy = len(self._tasks) + len(self._comparisons.tasks)
        free = (1 if down else self._workers) - busy - len(chosen)
        others = [key for key in self._ready if key not in chosen]
        others.sort(key=lambda k: self._retries.get(k, (0, 0.0))[0])
        return chosen + others[: max(free, 0)]

    def _is_suspect_running(self) -> bool:
        return any(_attempt_ref(key) in self._deaths for key in self._tasks)

    def _start_task(self, key: TurnKey) -> None:
        item = self._running[key] = self._ready.pop(key)
        self._tasks[key] = asyncio.create_task(self._judge_turn(item), name=f"judge {key[0]}")

    def _verdict_without_judge(self, item: JudgeInput) -> Verdict | None:
        """Return the verdict from explicit feedback, or from behaviour if nothing can be read; else None."""
        if behaviour.has_only_behaviour(item):
            return behaviour.behaviour_verdict(item, self._signals)
        return user_feedback.explicit_verdict(item)

    def _wants_hint(self, item: JudgeInput, verdict: Verdict) -> bool:
        """Return whether the teacher is asked. Behaviour does not show what a better reply would have been like."""
        if self._teacher is None or is_signal(verdict.judge):
            return False
        return self._teacher.wants_hint(item, verdict)

    def _is_judge_down(self) -> bool:
        return self._failure_log.consecutive_failures >= self._workers

    async def _judge_turn(self, item: JudgeInput) -> Verdict | None:
        """Return the verdict on one turn; None if the judge failed."""
        outright = user_feedback.explicit_verdict(item)
        try:
            verdict = outright or user_feedback.apply_corrections(
                item, await self._judge.judge(item)
            )
            verdict = behaviour.apply_signals(item, verdict, self._signals)
        except Exception as error:  # noqa: BLE001  a plug-in judge may raise anything; only this turn is delayed
            self._record_failure(_turn_key(item), error)
            return None
        if self._teacher is not None and self._wants_hint(item, verdict):
            verdict = await self._teacher.add_hint(item, verdict)
        # Else the judge was not called: it may still be down.
        if not outright:
            # The judge has recovered: retry the failed turns at once.
            if self._is_judge_down():
                self._retries = {
                    key: (failures, 0.0) for key, (failures, _) in self._retries.items()
                }
            self._failure_log.record_recovery()
        verdict = replace_verdict_surrogates(verdict)
        await self.lessons.read_lesson(item, verdict)
        return verdict

    async def _save_judged(self, keys: Sequence[TurnKey]) -> None:
        """Save the verdicts of finished tasks in one transaction, which also ends the work on them."""
        done = {key: self._tasks[key].result() for key in keys}
        if not done:
            return
        verdicts = {key: verdict for key, verdict in done.items() if verdict is not None}
        refs = [_attempt_ref(key) for key in done]
        with self._attempts.interrupted_by(StoreError):
            await asyncio.to_thread(self._save_verdicts, list(verdicts.values()), refs)
        for key in keys:
            # Only now: on a full disk the verdicts are saved later.
            del self._tasks[key]
        self._comparisons.add(self._running.pop(key) for key in keys)
        for ref in refs:
            self._deaths.pop(ref, None)
        for key in verdicts:
            self._retries.pop(key, None)

    def _record_failure(self, key: TurnKey, error: Exception) -> None:
        failures = self._retries.get(key, (0, 0.0))[0] + 1
        now = time.monotonic()
        self._retries[key] = (
            failures,
            now + backoff_delay(failures, first=FIRST_WAIT, longest=LONGEST_WAIT),
        )
        words = replace_surrogates(
            str(error) if isinstance(error, OpenClawError) else f"{type(error).__name__}: {error}"
        )
        self._failure_log.record_failure(words, len(self._retries), now)
        self._next_probe_at = now + backoff_delay(
            self._failure_log.consecutive_failures, first=self._poll, longest=LONGEST_PROBE
        )

    def _query_closed_turns(self, limit: int) -> list[JudgeInput]:
        """Return closed turns; those that cannot be read are set aside."""
        while True:
            try:
                with self._store.read() as conn:
                    return turns.closed_turns(conn, limit)
            except DamagedRow as error:
                with self._store.write(durable=False) as conn:
                    _set_aside(conn, error.turn, Reason(ReasonCode.DAMAGED, str(error)))

    def _give_up_fatal_turns(self, items: Sequence[JudgeInput]) -> list[JudgeInput]:
        """Set aside the turns on which workers died twice, and return the others."""
        kept = []
        with self._store.write(durable=False) as conn:
            for item in items:
                ref = _attempt_ref(_turn_key(item))
                if why := self._attempts.give_up(conn, ref, self._deaths_on(item)):
                    _set_aside(conn, item.turn, why)
                else:
                    kept.append(item)
        return kept

    def _deaths_on(self, item: JudgeInput) -> int:
        return self._deaths.get(_attempt_ref(_turn_key(item)), 0)

    def _save_verdicts(self, verdicts: Sequence[Verdict], refs: Sequence[str] = ()) -> None:
        """Store verdicts; `refs`: the notes of the work that ends with them."""
        with self._store.write(durable=False) as conn:
            if refs:
                self._attempts.end(conn, refs)
            for verdict in verdicts:
                log.debug(
                    "%s: score %s by %s, %d votes, %d hints",
                    *(
                        verdict.turn,
                        verdict.score,
                        verdict.judge,
                        len(verdict.votes),
                        len(verdict.hints),
                    ),
                )
                with contextlib.suppress(KeyError):  # the turn was erased while it was being judged
                    # False: the reaction changed in the meantime; its new revision is read as a separate item.
                    if turns.add_verdict(conn, verdict):
                        self._judged_count += 1
                        self.lessons.update(
                            conn, verdict, is_trusted=verdict.judge not in self._untrusted
                        )
            if any(verdict.explicit for verdict in verdicts):
                self._update_trust(conn)

    def _save_comparisons(self, verdicts: Sequence[Verdict]) -> None:
        """Store the verdicts of judge and signals on turns that have an explicit one, which stays in force."""
        with self._store.write(durable=False) as conn:
            for verdict in verdicts:
                # The turn was erased meanwhile.
                with contextlib.suppress(KeyError):
                    turns.add_comparison(conn, verdict)
            self._update_trust(conn)

    def _update_trust(self, conn: Connection) -> None:
        before, self._untrusted = version_stats.update_untrusted_judges(conn, self._min_kappa)
        self._trust_is_current = True
        for judge in sorted(self._untrusted - before):
            log.warning(
                "%s does not agree with people's explicit feedback (judge.min_kappa %g): its verdicts are no longer "
                "trained on, explicit feedback is. `openclaw-rl doctor --troubles` shows the figures and the cure.",
                *(judge, self._min_kappa),
            )
        for judge in sorted(before - self._untrusted):
            log.info("The verdicts of %s are trained on again.", judge)

    def _write_heartbeat(self, problem: str | None) -> None:
        note = f"{self._judged_count} judged" + (
            f", {len(self._retries)} waiting" if self._retries else ""
        )
        if self._teacher is not None:
            note += f"; {self._teacher.status_note}"
        if self._untrusted:
            note += f"; not trained on (judge.min_kappa): {', '.join(sorted(self._untrusted))}"
        if self._failure_log.consecutive_failures:
            note += f"; {self._failure_log.last_error}"
        state = heartbeats.RUNNING
        if self._is_judge_down():
            state = heartbeats.PARKED
            note = f"parked, tries again at growing intervals: {note.rstrip('.')}. Check judge.* in the settings"
        if problem is not None:
            state = heartbeats.PARKED
            note = problem
        heartbeats.write_heartbeat(
            self._store,
            "judge",
            note,
            state,
            advanced=self._progress.has_advanced(),
            activity=current_activity(),
        )
