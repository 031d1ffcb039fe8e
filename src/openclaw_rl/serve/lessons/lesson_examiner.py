"""Examine lessons: whether the base and the version that answers stay right with them in the prompt.

The lessons of a prompt are examined at once, beside the replies to people: that takes a few short answers, once for
each set of lessons. Sets that the trainer requests, and the number of lessons that the base carries, are examined while
nobody waits for a reply.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlalchemy import Connection

from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import OpenClawError
from openclaw_rl.examination.lesson_choice import LeftOut, LessonChoice
from openclaw_rl.examination.probe_set import Probe, load_lesson_probes, load_typical_lessons
from openclaw_rl.examination.reference import accepted_losses, reference_probes
from openclaw_rl.serve.lessons.lesson_set import LessonSetOfPrompt
from openclaw_rl.serve.lessons.probe_asker import ProbeAsker
from openclaw_rl.serve.versions.version_manager import VersionManager
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import examinations, withdrawals
from openclaw_rl.store.lessons.examinations import BASE_VERSION, ExaminationResult, Withdrawal
from openclaw_rl.store.lessons.fitting import MAX_PROMPT_LESSONS
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.withdrawals import count_by_owner

log = logging.getLogger(__name__)
MAX_WAITING_SETS = 64
"""Sets of lessons that wait for their examination; a prompt with another one asks for it again."""
_MAX_REQUESTED = 16
_POLL_SECONDS = 2.0
_RETRY_SECONDS = 5.0


class LessonExaminer:
    """Examines sets of lessons, and withdraws the lessons that cost correctness."""

    def __init__(
        self,
        store: Store,
        asker: ProbeAsker,
        versions: VersionManager,
        *,
        identity: str,
        is_idle: Callable[[], bool],
        measures_at_start: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`identity`: of the base. `is_idle`: whether nobody waits for a reply. `clock`: seconds since the epoch.

        `measures_at_start`: whether the capacity is measured before there is any lesson.
        """
        self._store = store
        self._asker = asker
        self._versions = versions
        self._identity = identity
        self._is_idle = is_idle
        self._clock = clock
        self._probes = load_lesson_probes()
        self._waiting: dict[tuple[str, ...], LessonSetOfPrompt] = {}
        self._wake_event = asyncio.Event()
        self._references: list[Probe] | None = None
        self._measures_at_start = measures_at_start
        self._is_measured = False

    def submit(self, lessons: LessonSetOfPrompt) -> None:
        """Examine the lessons of a prompt, as soon as possible."""
        key = (lessons.policy, *(text.text for text in lessons.texts))
        if key in self._waiting or len(self._waiting) < MAX_WAITING_SETS:
            self._waiting[key] = lessons
            self._wake_event.set()

    async def run(self) -> None:
        """Examine until cancelled.

        Consumes: lessons of prompts, and requests of the trainer. Produces: results, and withdrawn lessons.
        Waits for: `submit`. Unblocked by: `submit`, or a poll.
        """
        while True:
            self._wake_event.clear()
            try:
                await self.examine_waiting()
                await self._examine_in_idle_time()
                pause = _POLL_SECONDS
            except OpenClawError as error:
                log.debug("lessons are examined later: %s", error)
                pause = _RETRY_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._wake_event.wait()
            except TimeoutError:
                continue

    async def examine_all(self) -> bool:
        """Examine all submitted sets and all that the trainer requests. Returns whether there was any.

        Raises as `ProbeAsker.ask` does.
        """
        is_any = bool(self._waiting)
        await self.examine_waiting()
        while requested := await asyncio.to_thread(self._read_requested):
            is_any = True
            for texts in requested:
                await self._examine(texts, None, is_stopped=_never)
        return is_any

    async def examine_waiting(self) -> None:
        """Examine all submitted sets. Raises as `ProbeAsker.ask` does; sets that wait then still wait."""
        while self._waiting:
            key, lessons = next(iter(self._waiting.items()))
            await self._settle(lessons)
            if self._waiting.get(key) is lessons:
                del self._waiting[key]

    async def _settle(self, lessons: LessonSetOfPrompt) -> None:
        """Examine a set, and parts of it if it costs correctness, until the choice for the prompt is known."""
        while True:
            choice = await asyncio.to_thread(self._choose, lessons)
            if choice.missing is None:
                break
            await self._examine(lessons.texts_at(choice.missing), lessons.policy, is_stopped=_never)
        await asyncio.to_thread(self._apply, lessons, choice)

    def _choose(self, lessons: LessonSetOfPrompt) -> LessonChoice:
        with self._store.read() as conn:
            return lessons.choose(conn, self._identity, self._store.secret)

    async def _examine(
        self, texts: Sequence[str], policy: str | None, *, is_stopped: Callable[[], bool]
    ) -> bool:
        """Examine texts under the base, and under the version that answers for a policy. False if it was stopped."""
        base_result = await self._compare(BASE_VERSION, texts, is_stopped)
        if base_result is None:
            return False
        results = {BASE_VERSION: base_result}
        version = BASE_VERSION if policy is None else self._serving_version(policy)
        if version != BASE_VERSION and base_result.is_sound:
            version_result = await self._compare(version, texts, is_stopped)
            if version_result is None:
                return False
            results[version] = version_result
        await asyncio.to_thread(self._record, texts, results)
        return True

    def _serving_version(self, policy: str) -> int:
        version = self._versions.acquire_current(policy)
        self._versions.release(version)
        return version

    async def _compare(
        self, version: int, texts: Sequence[str], is_stopped: Callable[[], bool]
    ) -> ExaminationResult | None:
        """Compare the answers of a version with the lessons and without; None if it was stopped.

        It ends as soon as more answers are lost than is accepted.
        """
        probes = await self._find_reference(is_stopped)
        if probes is None:
            return None
        allowed = accepted_losses(len(probes))
        asked = 0
        right = 0
        lost = 0
        for part in self._parts(probes):
            answers = await self._asker.ask(version, part, texts, is_stopped)
            if answers is None:
                return None
            wrong = [
                probe
                for probe, answer in zip(part, answers, strict=True)
                if not probe.is_correct(answer)
            ]
            right_without = await self._right_without(version, wrong, is_stopped)
            if right_without is None:
                return None
            asked += len(part)
            right += len(part) - len(wrong)
            lost += right_without
            record_progress()
            if lost > allowed:
                break
        return ExaminationResult(
            asked=asked,
            right_with=right,
            right_without=right + lost,
            is_sound=lost <= allowed,
            at=self._clock(),
        )

    def _parts(self, probes: Sequence[Probe]) -> Iterator[Sequence[Probe]]:
        size = self._asker.at_once
        return (probes[start : start + size] for start in range(0, len(probes), size))

    async def _right_without(
        self, version: int, probes: Sequence[Probe], is_stopped: Callable[[], bool]
    ) -> int | None:
        """Return how many of the questions a version answers right without lessons; None if it was stopped."""
        if version == BASE_VERSION or not probes:
            return len(probes)
        answers = await self._asker.ask(version, probes, (), is_stopped)
        if answers is None:
            return None
        return sum(probe.is_correct(answer) for probe, answer in zip(probes, answers, strict=True))

    async def _find_reference(self, is_stopped: Callable[[], bool]) -> list[Probe] | None:
        """Return the questions that count, which the base is asked once; None if it was stopped."""
        if self._references is not None:
            return self._references
        answers = await asyncio.to_thread(self._read_base_answers)
        if answers is None:
            answers = await self._ask_base(is_stopped)
            if answers is None:
                return None
            await asyncio.to_thread(self._record_base_answers, answers)
        self._references = reference_probes(self._probes, answers)
        return self._references

    async def _ask_base(self, is_stopped: Callable[[], bool]) -> dict[str, str] | None:
        """Return the base's answer to each question; None if it was stopped."""
        answers: dict[str, str] = {}
        for part in self._parts(self._probes):
            sampled = await self._asker.ask(BASE_VERSION, part, (), is_stopped)
            if sampled is None:
                return None
            questions = [probe.question for probe in part]
            answers |= zip(questions, sampled, strict=True)
            record_progress()
        return answers

    # In idle time.

    async def _examine_in_idle_time(self) -> None:
        """Examine the sets that the trainer requests, then measure the capacity. Ends when a person wants a reply."""

        def is_stopped() -> bool:
            return not self._is_idle() or bool(self._waiting)

        if is_stopped():
            return
        for texts in await asyncio.to_thread(self._read_requested):
            if not await self._examine(texts, None, is_stopped=is_stopped):
                return
        if not self._is_measured and await asyncio.to_thread(self._needs_capacity):
            self._is_measured = await self.measure_capacity(is_stopped)

    async def measure_capacity(self, is_stopped: Callable[[], bool]) -> bool:
        """Measure how many typical lessons the base carries, once for each base. Returns False if it was stopped."""
        if await asyncio.to_thread(self._read_capacity) is not None:
            return True
        began = time.monotonic()
        carried: list[str] = []
        for text in load_typical_lessons():
            together = await self._compare(BASE_VERSION, [*carried, text], is_stopped)
            if together is None:
                return False
            if together.is_sound:
                carried.append(text)
            elif carried:
                alone = await self._compare(BASE_VERSION, [text], is_stopped)
                if alone is None:
                    return False
                # A lesson that costs correctness alone does not show how many the base carries.
                if alone.is_sound:
                    break
            if len(carried) == MAX_PROMPT_LESSONS:
                break
        capacity = max(1, len(carried))
        await asyncio.to_thread(self._record_capacity, capacity)
        log.info(
            "a prompt carries at most %d lessons (measured in %.0f s)",
            capacity,
            time.monotonic() - began,
        )
        return True

    # In threads.

    def _record(self, texts: Sequence[str], results: Mapping[int, ExaminationResult]) -> None:
        """Store the results of a set of lessons, by version."""
        digest = examinations.lessons_digest(texts, self._identity, self._store.secret)
        with self._store.write() as conn:
            for version, result in results.items():
                examinations.record_result(conn, digest, version, result)

    def _apply(self, lessons: LessonSetOfPrompt, choice: LessonChoice) -> None:
        """Withdraw the lessons that cost correctness, and restore withdrawn ones that do not."""
        now = self._clock()
        with self._store.write() as conn:
            for left_out in choice.left_out:
                withdrawal = _withdrawal_of(lessons, left_out, now)
                lesson = lessons.texts[left_out.place].lesson
                if lesson is not None and withdrawal is not None:
                    _withdraw(conn, lesson, withdrawal)
            for place in choice.chosen:
                lesson = lessons.texts[place].lesson
                if lesson is not None and lesson.state is LessonState.WITHDRAWN:
                    withdrawals.restore(conn, lesson.id, lesson.text, at=now)

    def _read_base_answers(self) -> dict[str, str] | None:
        with self._store.read() as conn:
            return examinations.read_base_answers(conn, self._identity)

    def _record_base_answers(self, answers: dict[str, str]) -> None:
        with self._store.write() as conn:
            examinations.record_base_answers(conn, self._identity, answers)

    def _read_requested(self) -> list[tuple[str, ...]]:
        with self._store.read() as conn:
            return examinations.waiting_texts(conn, _MAX_REQUESTED)

    def _needs_capacity(self) -> bool:
        if self._measures_at_start:
            return True
        with self._store.read() as conn:
            return bool(count_by_owner(conn, LessonState.ACTIVE))

    def _read_capacity(self) -> int | None:
        with self._store.read() as conn:
            return examinations.measured_capacity(conn, self._identity)

    def _record_capacity(self, capacity: int) -> None:
        with self._store.write() as conn:
            examinations.record_capacity(conn, self._identity, capacity)


def _withdraw(conn: Connection, lesson: Lesson, withdrawal: Withdrawal) -> None:
    if withdrawals.withdraw(conn, lesson.id, lesson.text, withdrawal):
        log.warning('lesson %s left the prompts: "%s" costs correctness', lesson.id, lesson.text)


def _withdrawal_of(lessons: LessonSetOfPrompt, left_out: LeftOut, now: float) -> Withdrawal | None:
    """Return the withdrawal of a lesson; None if it is only left out of this prompt.

    It is only left out if it costs correctness beside a wish of the newest message, or beside a lesson that is not in
    all prompts that this one is for.
    """
    lesson = lessons.texts[left_out.place].lesson
    if lesson is None:
        return None
    beside = []
    for place in left_out.beside:
        other = lessons.texts[place].lesson
        if other is None or not other.covers(lesson):
            return None
        beside.append(other.id)
    return Withdrawal(
        code=left_out.code,
        asked=left_out.result.asked,
        right_with=left_out.result.right_with,
        right_without=left_out.result.right_without,
        beside=tuple(beside),
        at=now,
    )


def _never() -> bool:
    return False
