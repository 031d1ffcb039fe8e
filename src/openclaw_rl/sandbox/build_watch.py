"""Ends a build whose layer grows too large, or that leaves too little of the disk to this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import SandboxError

GIBIBYTE = 2**30
# Seconds between two measurements.
_INTERVAL = 2.0
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskBounds:
    """Bounds of one build, in bytes. `layer`: what it may write; `free`: what it leaves of the disk."""

    layer: int = 30 * GIBIBYTE
    free: int = 2 * GIBIBYTE


@contextlib.asynccontextmanager
async def watch_disk(
    folder: Path, bounds: DiskBounds, end_build: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Measure the folder of a layer while the block runs, and call `end_build` if a bound is passed.

    Raises `SandboxError` with the reason then, in place of what the block raises.
    """
    problem = await asyncio.to_thread(_find_problem, folder, bounds)
    if problem is not None:
        raise SandboxError(problem)
    reasons: list[str] = []

    async def watch() -> None:
        while not reasons:
            await asyncio.sleep(_INTERVAL)
            reason = await asyncio.to_thread(_find_problem, folder, bounds)
            if reason is not None:
                reasons.append(reason)
        await end_build()

    watcher = asyncio.create_task(watch(), name="disk of a build")
    try:
        yield
    except SandboxError as error:
        if reasons:
            raise SandboxError(reasons[0]) from error
        raise
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    problem = await asyncio.to_thread(_find_problem, folder, bounds)
    if problem is not None:
        raise SandboxError(problem)


def _find_problem(folder: Path, bounds: DiskBounds) -> str | None:
    free = shutil.disk_usage(folder).free
    if free < bounds.free:
        return (
            f"{free / GIBIBYTE:.1f} GiB of the disk of {folder.parent} are free: a build leaves at least "
            f"{bounds.free / GIBIBYTE:.1f} GiB. Free some, or set sandbox.roots to a folder of another disk"
        )
    if _size_of(folder) > bounds.layer:
        return (
            f"the build wrote more than {bounds.layer / GIBIBYTE:.1f} GiB, the most for one layer"
        )
    return None


def _size_of(folder: Path) -> int:
    """Return the bytes on the disk of all files below a folder, which may change meanwhile."""
    size = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                size += Path(parent, name).lstat().st_blocks * _BLOCK_BYTES
    return size
