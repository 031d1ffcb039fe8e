"""Examine lessons: whether the base and the version that answers stay right with them in the prompt.

What stands in a prompt is examined at once, beside the replies to people: it is a few short answers, once for each set
of lessons. What the trainer asks for, and how many lessons the base carries, is examined while nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

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
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lessons.withdrawals import count_by_owner

log = logging.getLogger(__name__)
MAX_WAITING_SETS = 64
"""Sets of lessons that wait for their examination; a prompt with another one asks for it again."""
_MAX_REQUESTED = 16
_POLL_SECONDS, _RETRY_SECONDS = 2.0, 5.0


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
        self._store, self._asker, self._versions = store, asker, versions
        self._identity, self._is_idle, self._clock = identity, is_idle, clock
        self._probes = load_lesson_probes()
        self._waiting: dict[tuple[str, ...], LessonSetOfPrompt] = {}
        self._wake_event = asyncio.Event()
        self._references: list[Probe] | None = None
        self._measures_at_start = measures_at_start
        self._is_measured = False

    def submit(self, lessons: LessonSetOfPrompt) -> None:
        """Examine what stands in a prompt, as soon as possible."""
        key = (lessons.policy, *(text.text for text in lessons.texts))
        if key in self._waiting or len(self._waiting) < MAX_WAITING_SETS:
            self._waiting[key] = lessons
            self._wake_event.set()

    async def run(self) -> None:
        """Examine until cancelled.

        Consumes: lessons of prompts, and what the trainer asks for. Produces: results, and withdrawn lessons.
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
        """Examine all that was submitted and all that the trainer asks for. Returns whether there was anything.

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
        """Examine all that was submitted. Raises as `ProbeAsker.ask` does, and what waits then still waits."""
        while self._waiting:
            key, lessons = next(iter(self._waiting.items()))
            await self._settle(lessons)
            if self._waiting.get(key) is lessons:
                del self._waiting[key]

    async def _settle(self, lessons: LessonSetOfPrompt) -> None:
        """Examine a set, and parts of it if it costs correctness, until it is known what stands in the prompt."""
        while True:
            choice = await asyncio.to_thread(self._choose, lessons)
            if choice.missing is None:
                break
            await self._examine(lessons.texts_at(choice.missing), lessons.policy, is_stopped=_never)
        await asyncio.to_thread(self._apply, lessons, choice)

    def _choose(self, lessons: LessonSetOfPrompt) -> LessonChoice:
        with self._store.read() as conn:
            return lessons.choose(conn, self._identity, self._store.secret)

    async def _examine(self, texts: Sequence[str], policy: str | None, *, is_stopped: Callable[[], bool]) -> bool:
        """Examine texts under the base, and under the version that answers for a policy. False if it was stopped."""
        found: list[tuple[int, ExaminationResult]] = []
        base = await self._compare(BASE_VERSION, texts, is_stopped)
        if base is None:
            return False
        found.append((BASE_VERSION, base))
        version = BASE_VERSION if policy is None else self._serving_version(policy)
        if version != BASE_VERSION and base.is_sound:
            served = await self._compare(version, texts, is_stopped)
            if served is None:
                return False
            found.append((version, served))
        await asyncio.to_thread(self._record, texts, found)
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
        asked = right = lost = 0
        for some in self._parts(probes):
            answers = await self._asker.ask(version, some, texts, is_stopped)
            if answers is None:
                return None
            wrong = [probe for probe, answer in zip(some, answers, strict=True) if not probe.is_correct(answer)]
            plain = await self._right_without(version, wrong, is_stopped)
            if plain is None:
                return None
            asked += len(some)
            right += len(some) - len(wrong)
            lost += plain
            record_progress()
            if lost > allowed:
                break
        return ExaminationResult(
            asked=asked, right_with=right, right_without=right + lost, is_sound=lost <= allowed, at=self._clock()
        )

    def _parts(self, probes: Sequence[Probe]) -> Iterator[Sequence[Probe]]:
        size = self._asker.at_once
        return (probes[start : start + size] for start in range(0, len(probes), size))

    async def _right_without(self, version: int, probes: Sequence[Probe], is_stopped: Callable[[], bool]) -> int | None:
        """Return how many of the questions a version answers right without lessons; None if it was stopped."""
        if version == BASE_VERSION or not probes:
            return len(probes)
        answers = await self._asker.ask(version, probes, (), is_stopped)
        if answers is None:
            return None
        return sum(probe.is_correct(answer) for probe, answer in zip(probes, answers, strict=True))

    async def _find_reference(self, is_stopped: Callable[[], bool]) -> list[Probe] | None:
        """Return the questions that count, which the base is asked once; None if it was stopped."""
        if self._references is None:
            answers = await asyncio.to_thread(self._read_base_answers)
            if answers is None:
                answers = {}
                for some in self._parts(self._probes):
                    said = await self._asker.ask(BASE_VERSION, some, (), is_stopped)
                    if said is None:
                        return None
                    answers |= {probe.question: answer for probe, answer in zip(some, said, strict=True)}
                    record_progress()
                await asyncio.to_thread(self._record_base_answers, answers)
            self._references = reference_probes(self._probes, answers)
        return self._references

    # In idle time.

    async def _examine_in_idle_time(self) -> None:
        """Examine what the trainer asks for, then measure the capacity. Ends when a person wants a reply."""

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
                # A lesson that costs correctness alone says nothing about their number.
                if alone.is_sound:
                    break
            if len(carried) == MAX_PROMPT_LESSONS:
                break
        capacity = max(1, len(carried))
        await asyncio.to_thread(self._record_capacity, capacity)
        log.info("a prompt carries at most %d lessons (measured in %.0f s)", capacity, time.monotonic() - began)
        return True

    # In threads.

    def _record(self, texts: Sequence[str], found: Sequence[tuple[int, ExaminationResult]]) -> None:
        digest = examinations.lessons_digest(texts, self._identity, self._store.secret)
        with self._store.write() as conn:
            for version, result in found:
                examinations.record_result(conn, digest, version, result)

    def _apply(self, lessons: LessonSetOfPrompt, choice: LessonChoice) -> None:
        """Withdraw the lessons that cost correctness, and restore withdrawn ones that do not."""
        now = self._clock()
        with self._store.write() as conn:
            for left in choice.left_out:
                withdrawal = _withdrawal_of(lessons, left, now)
                lesson = lessons.texts[left.place].lesson
                if lesson is None or withdrawal is None:
                    continue
                if withdrawals.withdraw(conn, lesson.id, lesson.text, withdrawal):
                    log.warning('lesson %s left the prompts: "%s" costs correctness', lesson.id, lesson.text)
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


def _withdrawal_of(lessons: LessonSetOfPrompt, left: LeftOut, now: float) -> Withdrawal | None:
    """Return why a lesson is withdrawn; None if it is only left out of this prompt.

    That is so where a wish of the newest message, or a lesson that is not for all prompts of this one, is what it costs
    correctness beside.
    """
    lesson = lessons.texts[left.place].lesson
    others = [lessons.texts[place].lesson for place in left.beside]
    if lesson is None or any(other is None or not other.covers(lesson) for other in others):
        return None
    return Withdrawal(
        code=left.code,
        asked=left.result.asked,
        right_with=left.result.right_with,
        right_without=left.result.right_without,
        beside=tuple(other.id for other in others if other is not None),
        at=now,
    )


def _never() -> bool:
    return False
