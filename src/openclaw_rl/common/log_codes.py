"""Codes of log lines, for programs that read the logs.

A JSON line has a code if something decides by it. Errors among a line's arguments give the line their code
(`logging_metrics.JsonLinesFormatter`), so that a caller only logs the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from openclaw_rl.errors import OutOfMemory, RayUnusable, is_out_of_memory

ENGINE_WORKERS = frozenset({"engine", "judge-engine"})
"""Names of the workers that run an engine."""


class LogCode(StrEnum):
    """The event that a log line reports; the field `code` of its JSON."""

    WORKER_ENDED = "worker_ended"  # with the fields of `worker_end_fields`
    OUT_OF_MEMORY = "out_of_memory"
    RAY_UNUSABLE = "ray_unusable"


class EndCause(StrEnum):
    """Why the process of a worker ended."""

    EXIT = "exit"  # by itself, with an exit code
    CRASH = "crash"  # by a signal of its own fault, such as SIGSEGV
    HANG = "hang"  # it hung, and the supervisor killed it
    WRITE_LOCK = "write_lock"  # it kept the write lock of the store, and the supervisor killed it
    STOPPED = "stopped"  # it was stopped by a signal from outside, and the supervisor killed it
    KILLED = "killed"  # by SIGKILL from outside
    # The system killed it, or another process, because memory ran out.
    OUT_OF_MEMORY = "out_of_memory"


MEMORY_CAUSES = frozenset({EndCause.KILLED, EndCause.OUT_OF_MEMORY})
"""Causes of ends whose usual reason is that memory ran out."""


def code_of_error(error: BaseException) -> LogCode | None:
    """Return the code of a line that reports this error, or None."""
    if isinstance(error, OutOfMemory | MemoryError):
        return LogCode.OUT_OF_MEMORY
    # Of torch, which is not imported here.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, RuntimeError) and ("OutOfMemoryError" in kinds or is_out_of_memory(error)):
        return LogCode.OUT_OF_MEMORY
    return LogCode.RAY_UNUSABLE if isinstance(error, RayUnusable) else None


def first_code(values: Iterable[object]) -> LogCode | None:
    """Return the code of the first error among the arguments of a line that has one."""
    codes = (code_of_error(value) for value in values if isinstance(value, BaseException))
    return next((code for code in codes if code is not None), None)


def error_fields(error: BaseException) -> dict[str, str]:
    """Return the fields (`extra`) of a line that reports an error in words of its own."""
    code = code_of_error(error)
    return {} if code is None else {"code": code.value}


def worker_end_fields(worker: str, cause: EndCause) -> dict[str, str]:
    """Return the fields (`extra`) of a line that reports the end of a worker's process."""
    return {"code": LogCode.WORKER_ENDED.value, "worker": worker, "cause": cause.value}
