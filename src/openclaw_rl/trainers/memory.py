"""When a step does not fit into the device's memory: a smaller one, and then words that help."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from openclaw_rl.errors import ModelError

log = logging.getLogger(__name__)
_T = TypeVar("_T")
CURE = (
    "What makes a step smaller: train.checkpointing true, a smaller train.micro_tokens, train.base_bits 4, a smaller "
    "train.lora.rank, train.offload_optimizer true, a shorter engine.max_context; in this order"
)


def fitted(attempt: Callable[[], _T], halve: Callable[[], int | None]) -> _T:
    """What `attempt` gives; once more with half of the tokens in a pass, where the first time did not fit.

    `halve`: takes half of them and says how many are left, None where a second attempt could not start from where the
    first one did. Raises `ModelError` that names what would make it fit.
    """
    try:
        return attempt()
    except torch.OutOfMemoryError as error:
        why, tokens = str(error), halve()
    if tokens is None:
        raise ModelError(f"the step does not fit into memory ({why}). {CURE}")
    _collect()  # only now: what was raised has held the first attempt's tensors until here
    log.error("a step does not fit into memory (%s). Trying passes of %d tokens instead. %s", why, tokens, CURE)
    try:
        return attempt()
    except torch.OutOfMemoryError as error:
        raise ModelError(f"a step of {tokens} tokens a pass does not fit into memory ({error}). {CURE}") from error


def _collect() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
