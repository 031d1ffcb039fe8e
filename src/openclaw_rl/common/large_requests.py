"""Threads for the work of large requests: few, so that other work finds a thread, and stopped with the request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_THREADS = 2
_executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="large-request")
_current = threading.local()
_T = TypeVar("_T")


class RequestCancelled(Exception):
    """Raised in the thread of a request that was cancelled. No caller sees it."""


async def run_large(function: Callable[..., _T], *args: Any) -> _T:
    """Call `function` in a thread for large requests. If the caller is cancelled, `stop_if_cancelled` ends the call."""
    cancelled = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(
            _executor, _call_cancellable, cancelled, function, args
        )
    except asyncio.CancelledError:
        cancelled.set()
        raise


def _call_cancellable(
    cancelled: threading.Event, function: Callable[..., _T], args: tuple[Any, ...]
) -> _T:
    _current.cancelled = cancelled
    try:
        return function(*args)
    finally:
        _current.cancelled = None


async def call_in(function: Callable[..., _T], *args: Any, in_thread: bool) -> _T:
    """Call `function` directly, or in a thread for large requests."""
    return await run_large(function, *args) if in_thread else function(*args)


def stop_if_cancelled() -> None:
    """Raise `RequestCancelled` if the request that this thread works for was cancelled. For use in long loops."""
    cancelled: threading.Event | None = getattr(_current, "cancelled", None)
    if cancelled is not None and cancelled.is_set():
        raise RequestCancelled
