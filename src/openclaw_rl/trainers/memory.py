"""When a step does not fit into the device's memory: a smaller one, and then words that help."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from openclaw_rl.errors import ModelError, TooLarge

log = logging.getLogger(__name__)
_T = TypeVar("_T")
CURE = (
    "What makes a step smaller: train.checkpointing true, a smaller train.micro_tokens, train.base_bits 4, a smaller "
    "train.lora.rank, train.offload_optimizer true, a shorter engine.max_context; in this order"
)
_CPU = "can't allocate memory"  # what torch's allocator says


class Lacking(torch.OutOfMemoryError):
    """A pass did not fit on some rank, and every rank knows it: all of them may try again."""


class Divisible(Protocol):
    """Passes that can be made smaller."""

    budget: int  # tokens of a pass

    @property
    def ranks(self) -> int: ...

    def halve(self) -> int | None:
        """Half of the budget; None, and nothing has changed, when each row had a pass of its own already."""
        ...


def fitted(attempt: Callable[[], _T], passes: Divisible, begun: Callable[[], bool]) -> _T:
    """What `attempt` gives; where it does not fit, with half of the tokens in a pass, and again, down to one row.

    `begun`: whether another attempt could not start from where the first one did. Raises `TooLarge` when one row does
    not fit (the passes are then as large again as they were: it was not them), `ModelError` when nothing can be tried
    again; both name what would make it fit.
    """
    before = passes.budget
    while True:
        try:
            return attempt()
        except RuntimeError as error:  # of a GPU; torch has no kind of its own for a CPU's
            if not isinstance(error, torch.OutOfMemoryError) and _CPU not in str(error):
                raise
            why, alone = str(error), passes.ranks > 1 and not isinstance(error, Lacking)
        if alone or begun():  # the other ranks know nothing of what failed here alone
            raise ModelError(f"the step does not fit into memory ({why}). {CURE}")
        if (tokens := passes.halve()) is None:
            passes.budget = before
            raise TooLarge(f"a step of one row a pass does not fit into memory ({why}). {CURE}")
        _collect()  # only now: what was raised has held the attempt's tensors until here
        log.error("a step does not fit into memory (%s). Trying passes of %d tokens instead. %s", why, tokens, CURE)


def _collect() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
