"""The closed turns that the judge worker knows of: one record each, with the state of its work. No store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from openclaw_rl.judge.user_feedback import explicit_verdict
from openclaw_rl.types import JudgeInput, Verdict

JudgeTask = asyncio.Task[Verdict | None]
"""The result is None if the judge failed."""

# Turn, revision of its reaction.
TurnKey = tuple[str, int]


class TurnProgress(Enum):
    """State of the work on a closed turn."""

    READY = "ready"  # it was in the last read, and may be started
    RUNNING = "running"  # it has a task
    WAITING = "waiting"  # for its next attempt


@dataclass(slots=True, kw_only=True)
class QueuedTurn:
    """A closed turn."""

    item: JudgeInput
    state: TurnProgress
    task: JudgeTask | None = None
    failures: int = 0
    # Whether the judge was not ready for it at its last attempt, which is no failure.
    is_postponed: bool = False
    # Answers on it that could not be read.
    unreadable: int = 0
    retry_at: float = 0.0  # earliest next attempt, on the monotonic clock

    @property
    def key(self) -> TurnKey:
        return turn_key(self.item)

    @property
    def was_tried(self) -> bool:
        """Whether its last attempt gave no verdict."""
        return self.failures > 0 or self.is_postponed

    def state_at(self, now: float) -> TurnProgress:
        """Return the state of a turn that does not run: it waits for its next attempt, or may be started."""
        waits = self.was_tried and self.retry_at > now
        return TurnProgress.WAITING if waits else TurnProgress.READY


def turn_key(item: JudgeInput) -> TurnKey:
    """Return the key of a turn with one revision of its reaction."""
    return item.turn, item.reaction.revision


def attempt_ref(key: TurnKey) -> str:
    """Return the name of a turn in the notes of what is being worked on."""
    return f"{key[0]} {key[1]}"


class TurnQueue:
    """Closed turns in the order of the last read."""

    def __init__(self, deaths: Mapping[str, int]) -> None:
        """`deaths`: how often an earlier worker died on a turn, by `attempt_ref`."""
        self._turns: dict[TurnKey, QueuedTurn] = {}
        self._deaths = dict(deaths)

    def in_state(self, state: TurnProgress) -> list[QueuedTurn]:
        """Return the turns in this state."""
        return [turn for turn in self._turns.values() if turn.state is state]

    def tasks(self) -> dict[TurnKey, JudgeTask]:
        """Return the tasks of the running turns."""
        return {key: turn.task for key, turn in self._turns.items() if turn.task is not None}

    def start(self, key: TurnKey, task: JudgeTask) -> None:
        """Note that a ready turn runs."""
        turn = self._turns[key]
        turn.state = TurnProgress.RUNNING
        turn.task = task

    def failed_count(self) -> int:
        """Return the number of turns whose last attempt failed, running or not."""
        return sum(turn.failures > 0 for turn in self._turns.values())

    def tried_count(self) -> int:
        """Return the number of turns whose last attempt failed or was postponed, running or not."""
        return sum(turn.was_tried for turn in self._turns.values())

    def is_retry_due(self, now: float) -> bool:
        """Return whether a turn that waits may be judged again. `now`: on the monotonic clock."""
        return any(
            turn.was_tried and turn.retry_at <= now
            for turn in self._turns.values()
            if turn.state is not TurnProgress.RUNNING
        )

    def set_deaths(self, deaths: Mapping[str, int]) -> None:
        """Replace how often workers died on turns, by `attempt_ref`."""
        self._deaths = dict(deaths)

    def replace_read(
        self, items: Sequence[JudgeInput], now: float, *, is_complete: bool
    ) -> list[TurnKey]:
        """Replace the turns that do not run by the result of a read. Return those that are no longer waited for.

        `is_complete`: turns that are not in it are no longer CLOSED, so their failures are forgotten.
        """
        gone = []
        before = self._turns
        listed = {turn_key(item): item for item in items}
        self._turns = {turn.key: turn for turn in self.in_state(TurnProgress.RUNNING)}
        for key, turn in before.items():
            if key in listed:
                continue
            if is_complete:
                if turn.was_tried and key not in self._turns:
                    gone.append(key)
                turn.failures = 0
                turn.is_postponed = False
            elif turn.was_tried and key not in self._turns:
                turn.state = TurnProgress.WAITING
                self._turns[key] = turn
        for key, item in listed.items():
            if key in self._turns:
                continue
            turn = before.get(key) or QueuedTurn(item=item, state=TurnProgress.READY)
            turn.item = item
            turn.state = turn.state_at(now)
            self._turns[key] = turn
        return gone

    def remove(self, key: TurnKey) -> None:
        """Remove a turn that does not run: another worker has it."""
        del self._turns[key]

    def choose_next(
        self, workers: int, busy: int, *, may_try: bool, is_down: bool
    ) -> list[QueuedTurn]:
        """Return the ready turns to start now, fewest failures first; only one while the judge is down.

        Turns with explicit feedback wait only for the teacher, so they are started even while the judge is down. A turn
        on which a worker died runs alone, so that its next death is the fault of no other turn.

        `busy`: turns that a worker compares; `may_try`: a judge that is down may be tried again.
        """
        ready = self.in_state(TurnProgress.READY)
        running = len(self.in_state(TurnProgress.RUNNING))
        suspects = [turn for turn in ready if self.deaths_on(turn.item)]
        if suspects or self.is_suspect_running():
            return [] if running else suspects[:1]

        chosen: list[QueuedTurn] = []
        others: list[QueuedTurn] = []
        for turn in ready:
            is_worker_free = running + len(chosen) < workers
            if is_worker_free and explicit_verdict(turn.item) is not None:
                chosen.append(turn)
            else:
                others.append(turn)
        allowed = workers
        if is_down:
            allowed = 1 if may_try else 0
        free = allowed - running - busy - len(chosen)
        others.sort(key=lambda turn: turn.failures)
        return chosen + others[: max(free, 0)]

    def is_suspect_running(self) -> bool:
        """Return whether a turn runs on which a worker died."""
        return any(self.deaths_on(turn.item) for turn in self.in_state(TurnProgress.RUNNING))

    def deaths_on(self, item: JudgeInput) -> int:
        """Return how often a worker died on a turn."""
        return self._deaths.get(attempt_ref(turn_key(item)), 0)

    def record_failure(self, key: TurnKey) -> QueuedTurn:
        """Count a failure of a running turn, and return the turn, whose `retry_at` the caller sets."""
        turn = self._turns[key]
        turn.failures += 1
        return turn

    def record_unreadable(self, key: TurnKey) -> QueuedTurn:
        """Count an answer that could not be read as a failure of its turn, and return the turn."""
        turn = self.record_failure(key)
        turn.unreadable += 1
        return turn

    def postpone(self, key: TurnKey, until: float) -> None:
        """Let a running turn wait, because the judge is not ready for it. `until`: on the monotonic clock."""
        turn = self._turns[key]
        turn.is_postponed = True
        turn.retry_at = until

    def retry_at_once(self) -> None:
        """Let all turns be judged again at once that wait for a judge that was down."""
        for turn in self._turns.values():
            if not turn.unreadable:
                turn.retry_at = 0.0

    def end(self, key: TurnKey, *, is_judged: bool) -> JudgeInput:
        """End the work on a running turn: remove it, or let it wait for its next attempt. Returns its input."""
        turn = self._turns[key]
        turn.task = None
        self._deaths.pop(attempt_ref(key), None)
        if is_judged:
            del self._turns[key]
        else:
            turn.state = TurnProgress.WAITING
        return turn.item
