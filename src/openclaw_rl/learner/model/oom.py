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

from openclaw_rl.common.log_codes import LogCode
from openclaw_rl.errors import OutOfMemory, TurnOutOfMemory, is_out_of_memory

log = logging.getLogger(__name__)
_T = TypeVar("_T")
OOM_HINT = (
    "To make the step smaller, try in this order: train.gradient_checkpointing true if it is false, a smaller "
    "train.batch.micro_tokens, train.base_quantization_bits 4, a smaller train.lora.rank, train.optimizer.offload "
    "true, a shorter engine.max_context"
)
# Bytes of GPU memory that CUDA and its libraries may use per process, besides tensors.
_CUDA_OVERHEAD = 2 * 2**30
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


class RankOutOfMemory(torch.OutOfMemoryError):
    """A pass did not fit into memory on some rank. Raised on every rank, so all of them can retry together."""


class ShrinkablePasses(Protocol):
    """Forward and backward passes whose memory use can be reduced."""

    memory_limits: Any  # the limits that `reduce_memory` changes

    @property
    def world_size(self) -> int: ...

    def reduce_memory(self) -> str | None:
        """Reduce the memory of later passes and return a description; None, without a change, at the minimum."""


def retry_on_oom(
    attempt: Callable[[], _T], passes: ShrinkablePasses, begun: Callable[[], bool]
) -> _T:
    """Return `attempt()`. When it runs out of memory, retry with ever smaller passes, down to one row a pass.

    `begun` returns True once state has changed, so that a retry could not start from the same point. Raises
    `TurnOutOfMemory` when one row does not fit (the pass limits are then restored, since their size was not the cause),
    and `OutOfMemory` when a retry is impossible. Both messages name the settings to change.
    """
    before = passes.memory_limits
    while True:
        try:
            return attempt()
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and not is_out_of_memory(error):
                raise
            reason = str(error)
            alone = passes.world_size > 1 and not isinstance(error, RankOutOfMemory)
        # The other ranks have not seen this failure and would not retry.
        if alone or begun():
            raise OutOfMemory(f"the step does not fit into memory ({reason}). {OOM_HINT}")
        smaller = passes.reduce_memory()
        if smaller is None:
            passes.memory_limits = before
            raise TurnOutOfMemory(
                f"a step with one row per pass does not fit into memory ({reason}). {OOM_HINT}"
            )
        # Only here: until now the exception kept the tensors of the attempt alive.
        _free_unused_memory()
        log.error(
            "a step does not fit into memory (%s). Retrying with %s. %s",
            reason,
            smaller,
            OOM_HINT,
            extra={"code": LogCode.OUT_OF_MEMORY.value},
        )


def available_memory(device: torch.device) -> int:
    """Return the bytes that this process can still allocate, on the GPU or on this machine (or container)."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(
        [
            int(psutil.virtual_memory().available),
            *_cgroup_free_bytes(_CGROUP_ROOT, Path("/proc/self/cgroup")),
        ]
    )


def is_alone_on_gpu(device: torch.device) -> bool:
    """Return whether no other process, such as an engine, uses much of this GPU's memory."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) < _CUDA_OVERHEAD


def _cgroup_free_bytes(groups: Path, membership: Path) -> Iterator[int]:
    """Yield the free bytes under the limit of each control group of this process (cgroup v2).

    File cache that the kernel would drop on demand does not count as used.
    """
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.exists() else []
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    leaf = groups / path.strip("/")
    for folder in (leaf, *leaf.parents):
        if not folder.is_relative_to(groups):
            return
        limit = _read_number(folder / "memory.max")
        if limit is not None:
            cached = _read_number(folder / "memory.stat", "inactive_file") or 0
            used = (_read_number(folder / "memory.current") or 0) - cached
            yield max(0, limit - used)


def _read_number(file: Path, key: str = "") -> int | None:
    """Return the number in a file, or after `key` in a table file. None if there is no file or no number."""
    try:
        fields = file.read_text(encoding="utf-8").split()
    except OSError:
        return None
    if key and key not in fields:
        return None
    number = fields[fields.index(key) + 1] if key else fields[0]
    return int(number) if number.isdigit() else None


def trim_malloc() -> None:
    """Return freed memory to the system, which glibc's malloc would keep.

    The gaps between live tensors rarely fit the next allocation: without this call, a step can use four times the
    memory of its tensors.
    """
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def _free_unused_memory() -> None:
    gc.collect()
    trim_malloc()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
