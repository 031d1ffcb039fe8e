"""Progress of long work, and what the work is: from both follows whether a process hangs.

A hang is work that does not advance although it has the processor. How long a piece of work may take follows from its
size: a pass says how many seconds it is expected to need, and the heartbeat of the process carries that to the
supervisor (`supervisor/hang_verdict.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

MAX_LIBRARY_SECONDS = 1800.0
"""Seconds that a call of a library may take that reports nothing, as while a worker starts."""

ShowProgress = Callable[[str, int, int | None], None]
"""Shows a person what is being done, how much of it is finished, and how much there is, if that is known."""


class Wait(StrEnum):
    """Event for which a worker, or one of the policies that it trains, waits."""

    TURNS = "turns"  # too few turns for a batch
    TRAINER = "trainer"  # the service or the program that takes the steps is absent
    LEASE = "lease"  # another trainer works on the home
    MAX_STEPS = "max_steps"  # `train.max_steps` is reached, so that it waits for nothing
    FROZEN = "frozen"  # `openclaw-rl policies freeze`
    SETTLING = "settling"  # scored turns after an automatic rollback
    GATE = "gate"  # evidence on a candidate


_WAIT_PREFIXES = {Wait.TURNS: "waiting for turns: ", Wait.TRAINER: "waiting for the trainer: "}


@dataclass(frozen=True, slots=True)
class WorkNote:
    """Note on a worker, or on one of its policies: its waits, and the details for people; no waits: it works."""

    details: str
    waits: frozenset[Wait] = frozenset()

    def describe(self) -> str:
        """Return the note as text, such as `waiting for turns: 3 of 4`."""
        if len(self.waits) != 1:
            return self.details
        (wait,) = self.waits
        return _WAIT_PREFIXES.get(wait, "") + self.details


def join_notes(notes: Mapping[str, WorkNote], most: int = 3) -> WorkNote:
    """Return the notes on several policies as one, each with the policy's name; that on one without it."""
    if len(notes) == 1:
        return next(iter(notes.values()))
    waits = frozenset[Wait]().union(*(note.waits for note in notes.values()))
    is_same = all(note.waits == waits for note in notes.values())
    named = []
    for name, note in notes.items():
        text = note.details if is_same else note.describe()
        named.append(f"{name}: {text}")
    joined = "; ".join(named[:most])
    if len(named) > most:
        joined += f"; and {len(named) - most} more"
    return WorkNote(joined, waits)


class WorkKind(StrEnum):
    """Kind of a piece of work."""

    SCORE = "score"  # a forward pass that scores replies
    TRAIN = "train"  # a forward and backward pass of a step
    LOSS = "loss"  # a call of the owner's loss function
    REWARD = "reward"  # a call of a reward model or of the owner's judge
    LIBRARY = "library"  # a call that reads, writes or compiles a whole model


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A piece of work in progress: the pass `number` of `total`.

    Seconds are those of a free processor, except for `remaining`.
    """

    kind: WorkKind
    number: int = 1
    total: int = 1
    expected: float | None = None
    """Seconds that this piece takes by the measured speed; None: not measured."""
    allowed: float | None = None
    """Seconds within which this piece must end; None: it follows from `expected` and `run.heartbeat_timeout`."""
    remaining: float | None = None
    """Seconds by the clock from `began_at` to the end of the last piece, at the speed so far; None: not measured."""
    began_at: float | None = None
    """When this piece began, in seconds since the epoch."""


_PASS_NAMES = {WorkKind.SCORE: "scoring pass", WorkKind.TRAIN: "training pass"}
_CALL_NAMES = {
    WorkKind.LOSS: "the loss function of train.loss.path",
    WorkKind.REWARD: "a call of the reward model",
    WorkKind.LIBRARY: "a model is read, written or compiled",
}


def describe_activity(activity: Activity) -> str:
    """Return what a process works on, for people, such as `training pass 2 of 3`."""
    if activity.kind in _CALL_NAMES:
        return _CALL_NAMES[activity.kind]
    return f"{_PASS_NAMES[activity.kind]} {activity.number} of {activity.total}"


_count = 0
_activity: Activity | None = None


def record_progress() -> None:
    """Record that the work of this process has advanced. It takes a fraction of a microsecond."""
    global _count
    _count += 1


def progress_count() -> int:
    """Return a number that changes with each `record_progress`."""
    return _count


def current_activity() -> Activity | None:
    """Return what this process works on; None if it is nothing that takes long."""
    return _activity


def set_activity(activity: Activity | None) -> None:
    """Set what this process works on, or what another process works on for it."""
    global _activity
    _activity = activity


@contextmanager
def working_on(activity: Activity) -> Iterator[None]:
    """Report `activity` during a block. Its begin and its end are progress.

    Inside of a block that is allowed a time, it is allowed the same.
    """
    previous = _activity
    if previous is not None and activity.allowed is None:
        activity = replace(activity, allowed=previous.allowed)
    set_activity(activity)
    record_progress()
    try:
        yield
    finally:
        set_activity(previous)
        record_progress()


@contextmanager
def library_call() -> Iterator[None]:
    """Allow a block `MAX_LIBRARY_SECONDS`: a library reads, writes or compiles a whole model in it."""
    with working_on(Activity(kind=WorkKind.LIBRARY, allowed=MAX_LIBRARY_SECONDS)):
        yield
