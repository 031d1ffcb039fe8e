"""When a step does not fit into the device's memory: a smaller one, and then words that help."""

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
    "What makes a step smaller: train.checkpointing true where it is false, a smaller train.micro_tokens, "
    "train.base_bits 4, a smaller train.lora.rank, train.offload_optimizer true, a shorter engine.max_context; in this "
    "order"
)
_OWN = 2 * 2**30  # bytes of a GPU that CUDA and its libraries may take for a process, beside its tensors
_GROUPS = Path("/sys/fs/cgroup")
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


class Lacking(torch.OutOfMemoryError):
    """A pass did not fit on some rank, and every rank knows it: all of them may try again."""


class Divisible(Protocol):
    """Passes that can be made smaller."""

    size: Any  # what `shrink` changes

    @property
    def ranks(self) -> int: ...

    def shrink(self) -> str | None:
        """How the passes from now on take less; None, and nothing has changed, when they take the least they can."""
        ...


def fitted(attempt: Callable[[], _T], passes: Divisible, begun: Callable[[], bool]) -> _T:
    """What `attempt` gives; where it does not fit, in passes that take less, and less again, down to one row.

    `begun`: whether another attempt could not start from where the first one did. Raises `TooLarge` when one row does
    not fit (the passes are then as large again as they were: it was not them), `ModelError` when nothing can be tried
    again; both name what would make it fit.
    """
    before = passes.size
    while True:
        try:
            return attempt()
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and not is_lack_of_memory(error):
                raise
            why, alone = str(error), passes.ranks > 1 and not isinstance(error, Lacking)
        if alone or begun():  # the other ranks know nothing of what failed here alone
            raise ModelError(f"the step does not fit into memory ({why}). {CURE}")
        if (smaller := passes.shrink()) is None:
            passes.size = before
            raise TooLarge(f"a step of one row a pass does not fit into memory ({why}). {CURE}")
        _collect()  # only now: what was raised has held the attempt's tensors until here
        log.error("a step does not fit into memory (%s). Trying it with %s instead. %s", why, smaller, CURE)


def available(device: torch.device) -> int:
    """Bytes that a process can still have: of a GPU's memory, or of this machine's (or container's)."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min([int(psutil.virtual_memory().available), *_granted(_GROUPS, Path("/proc/self/cgroup"))])


def alone_on(device: torch.device) -> bool:
    """Whether no other process holds much of this GPU's memory, as an engine would."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device) < _OWN


def _granted(groups: Path, own: Path) -> Iterator[int]:
    """What the control groups that hold this process leave of their limits (Linux; versions 1 and 2 of them).

    What the kernel would drop of cached files for us does not count as taken.
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
    """What a file says, of a table the line of `key`. None: no number, or no file."""
    try:
        words = file.read_text(encoding="utf-8").split()
    except OSError:
        return None
    word = words[words.index(key) + 1] if key in words else "" if key else words[0]
    return int(word) if word.isdigit() else None


def give_back() -> None:
    """Memory that was freed goes back to the system, where malloc (glibc's) would hold on to it.

    Between tensors that stay, what others leave is seldom of the size that is asked for next: a step can take four
    times what is in it.
    """
    if _TRIM is not None:
        _TRIM(0)


def _collect() -> None:
    gc.collect()
    give_back()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
