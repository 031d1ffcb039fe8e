"""Data of views that is costly to compute, kept for some seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from openclaw_rl.page.view import ViewRequest
from openclaw_rl.status.diagnose import find_diagnoses
from openclaw_rl.status.health import Diagnosis

_T = TypeVar("_T")
_DIAGNOSES_SECONDS = 10.0


def cached(request: ViewRequest, name: str, seconds: float, compute: Callable[[], _T]) -> _T:
    """Return the data of this name, at most some seconds old. `name`: a constant, so that the cache stays small."""
    known = request.cache.get(name)
    if known is not None and 0 <= request.now - known[0] < seconds:
        data: _T = known[1]
        return data
    data = compute()
    request.cache[name] = (request.now, data)
    return data


def current_diagnoses(request: ViewRequest) -> Sequence[Diagnosis]:
    """Return the diagnoses, for which the logs are read, at most ten seconds old."""
    return cached(
        request,
        "diagnoses",
        _DIAGNOSES_SECONDS,
        lambda: find_diagnoses(request.config, request.conn, request.now),
    )
