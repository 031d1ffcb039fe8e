"""Log of what clients saw: every request with its outcome, and every acknowledged feedback."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, TextIO

Allowed = Literal["nothing", "errors", "unavailable"]
"""Which answers other than replies a fault may cause: none, any, or only 503 with Retry-After."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One request as its client saw it. Times are in seconds since the epoch."""

    began: float
    ended: float
    text: str  # content of the last user message
    previous: str | None = None  # id of the reply that the message reacts to
    is_probe: bool = False  # sent to measure outages, as side traffic
    status: int = 0  # 0: the connection broke before a status came
    retry_after: str | None = None
    id: str | None = None  # set once the first chunk came, so the request was accepted
    version: int | None = None
    reply: str = ""
    tokens: int | None = None  # `completion_tokens` of the usage
    finished: bool = False  # a finish reason and the end of the stream came
    error: str = ""

    def overlaps(self, began: float, ended: float) -> bool:
        return self.began <= ended and self.ended >= began


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedFeedback:
    """Feedback that the gateway acknowledged."""

    id: str
    target: str
    score: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWindow:
    """The time from the cause of a fault until all workers ran again."""

    name: str
    began: float
    ended: float  # the cause's end
    recovered: float
    allows: Allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedVersion:
    """A policy version whose files were damaged from `since`, when all processes had been restarted, to `until`."""

    version: int
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenLesson:
    """A lesson that was forgotten by hand."""

    id: str
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCut:
    """A kill at `at`, in seconds since the epoch, while the episodes of a run were played."""

    process: Literal["runner", "gateway"]
    run: str
    at: float


@dataclass(slots=True)
class ClientLog:
    """What clients saw, and the faults of that time. With `file`, each entry is also written as a line of JSON."""

    file: TextIO | None = None
    requests: list[ClientRequest] = field(default_factory=list)
    feedback: list[AcknowledgedFeedback] = field(default_factory=list)
    windows: list[FaultWindow] = field(default_factory=list)
    damaged_versions: list[DamagedVersion] = field(default_factory=list)
    forgotten: list[ForgottenLesson] = field(default_factory=list)
    cuts: list[EpisodeCut] = field(default_factory=list)
    damaged_rows: set[str] = field(
        default_factory=set
    )  # ids of exchanges whose rows were damaged on purpose
    finished: dict[str, str] = field(
        default_factory=dict
    )  # id -> text of each reply that came whole
    versions: set[int] = field(default_factory=set)  # that finished replies came from
    broken: list[str] = field(default_factory=list)  # errors of the others

    def add_request(self, request: ClientRequest) -> None:
        self.requests.append(request)
        if request.finished and request.id is not None and request.version is not None:
            self.finished[request.id] = request.reply
            self.versions.add(request.version)
        else:
            self.broken.append(request.error)
        self._write(request)

    def add_feedback(self, feedback: AcknowledgedFeedback) -> None:
        self.feedback.append(feedback)
        self._write(feedback)

    def add_window(self, window: FaultWindow) -> None:
        self.windows.append(window)
        self._write(window)

    def copy_entries(self) -> ClientLog:
        """Return a copy that does not grow while the clients continue."""
        return replace(
            self,
            file=None,
            requests=list(self.requests),
            feedback=list(self.feedback),
            windows=list(self.windows),
            damaged_versions=list(self.damaged_versions),
            forgotten=list(self.forgotten),
            cuts=list(self.cuts),
        )

    def requests_during(self, began: float, ended: float) -> Iterator[ClientRequest]:
        return (request for request in self.requests if request.overlaps(began, ended))

    def longest_gap(self, began: float, ended: float) -> float:
        """Return the longest time in seconds between two successes of the probe, as far as it lies in this time."""
        at = [r.ended for r in self.requests if r.is_probe and r.finished]
        before = [t for t in at if t <= began]
        points = [*before[-1:], *(t for t in at if began < t <= ended)]
        after = [t for t in at if t > ended]
        points += after[:1] or [time.time()]
        return max((b - a for a, b in itertools.pairwise(points)), default=0.0)

    def _write(self, entry: ClientRequest | AcknowledgedFeedback | FaultWindow) -> None:
        if self.file is not None:
            self.file.write(json.dumps({"kind": type(entry).__name__} | asdict(entry)) + "\n")


def open_log(path: Path) -> ClientLog:
    """Return an empty log that is written to `path`, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return ClientLog(file=path.open("w", encoding="utf-8", buffering=1))
