"""Out-of-memory handling: retry the step with smaller passes, then raise an error that names the settings to change."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import torch

from openclaw_rl.errors import ModelError, TooLarge, is_lack_of_memory

log = logging.getLogger(__name__)
_T = TypeVar("_T")
CURE = (
    "To make the step smaller, try in this order: train.checkpointing true if it is false, a smaller "
    "train.micro_tokens, train.base_bits 4, a smaller train.lora.rank, train.offload_optimizer true, a shorter "
    "engine.max_context"
)
_OWN = 2 * 2**30  # bytes of GPU memory that CUDA and its libraries may use per process, besides tensors
_GROUPS = Path("/sys/fs/cgroup")
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


class Lacking(torch.OutOfMemoryError):
    """A pass did not fit into memory on some rank. Raised on every rank, so all of them can retry together."""


class Divisible(Protocol):
    """Forward and backward passes whose memory use can be reduced."""

    size: Any  # the limits that `reduce_memory` changes

    @property
    def ranks(self) -> int: ...

    def shrink(self) -> str | None:
        """Reduce the memory of later passes and return a description; None, without a change, at the minimum."""
        ...


def fitted(attempt: Callable[[], _T], passes: Divisible, begun: Callable[[], bool]) -> _T:
    """Return `attempt()`. When it runs out of memory, retry with ever smaller passes, down to one row a pass.

    `begun` returns True once state has changed, so that a retry could not start from the same point. Raises `TooLarge`
    when one row does not fit (the pass limits are then restored, since their size was not the cause), and `ModelError`
    when a retry is impossible. Both messages name the settings to change.
    """
    before = passes.size
    while True:
        try:
            return attempt()
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and not is_lack_of_memory(error):
                raise
            why, alone = str(error), passes.ranks > 1 and not isinstance(error, Lacking)
        if alone or begun():  # the other ranks have not seen this failure and would not retry
            raise ModelError(f"the step does not fit into memory ({why}). {CURE}")
        if (smaller := passes.shrink()) is None:
            passes.size = before
            raise TooLarge(f"a step with one row per pass does not fit into memory ({why}). {CURE}")
        _collect()  # only here: until now the exception kept the tensors of the attempt alive
        log.error("a step does not fit into memory (%s). Retrying with %s. %s", why, smaller, CURE)


def available(device: torch.device) -> int:
    """Return the bytes that this process can still allocate, on the GPU or on this machine (or container)."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min([int(psutil.virtual_memory().available), *_granted(_GROUPS, Path("/proc/self/cgroup"))])


def alone_on(device: torch.device) -> bool:
    """Return whether no other process, such as an engine, uses much of this GPU's memory."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) < _OWN


def _granted(groups: Path, own: Path) -> Iterator[int]:
    """Yield the free bytes under the limit of each control group of this process (Linux cgroups v1 and v2).

    File cache that the kernel would drop on demand does not count as used.
    """
    lines = own.read_text(encoding="utf-8").splitlines() if own.exists() else []
    paths = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in lines if line.count(":") > 1}
    for controller, root, limit, usage, cached in (
        ("", groups, "memory.max", "memory.current", "inactive_file"),
        ("memory", groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        leaf = root / paths.get(controller, "/").strip("/")
        for folder in (leaf, *leaf.parents):
            if folder.is_relative_to(root) and (most := _number(folder / limit)) is not None:
                taken = (_number(folder / usage) or 0) - (_number(folder / "memory.stat", cached) or 0)
                yield max(0, most - taken)


def _number(file: Path, key: str = "") -> int | None:
    """Return the number in a file, or after `key` in a table file. None if there is no file or no number."""
    try:
        words = file.read_text(encoding="utf-8").split()
    except OSError:
        return None
    word = words[words.index(key) + 1] if key in words else "" if key else words[0]
    return int(word) if word.isdigit() else None


def give_back() -> None:
    """Return freed memory to the system, which glibc's malloc would keep.

    The gaps between live tensors rarely fit the next allocation: without this call, a step can use four times the
    memory of its tensors.
    """
    if _TRIM is not None:
        _TRIM(0)


def _collect() -> None:
    gc.collect()
    give_back()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
