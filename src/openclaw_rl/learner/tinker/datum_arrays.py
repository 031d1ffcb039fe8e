"""One sample in the layout that Tinker trains on. Pure. Shapes: P prompt and R response tokens, N = P + R - 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.errors import EngineError, ModelError
from openclaw_rl.types import Ids, Logprobs

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatumArrays:
    """Input and target tokens [N] each; `logprobs` and `advantages` [N] are zero where the target is of the prompt."""

    input_ids: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    logprobs: FloatArray
    advantages: FloatArray


def make_datum(
    prompt: Ids,
    response: Ids,
    logprobs: FloatArray | None = None,
    advantages: FloatArray | None = None,
) -> DatumArrays:
    """Return the arrays of one sequence. `logprobs`, `advantages`: [R] each, zeros by default."""
    whole = np.concatenate([prompt, response]).astype(np.int64)

    def aligned(values: FloatArray | None) -> FloatArray:
        out = np.zeros(len(whole) - 1, dtype=np.float32)
        if values is not None:
            out[len(prompt) - 1 :] = values
        return out

    return DatumArrays(
        input_ids=whole[:-1],
        target_ids=whole[1:],
        logprobs=aligned(logprobs),
        advantages=aligned(advantages),
    )


def scale_for_reduction(
    data: Sequence[DatumArrays], reduction: Literal["sum", "mean"]
) -> list[FloatArray]:
    """Return advantages [N] with which the service's reduction gives the sum over all tokens of all samples.

    mean: it divides by the tokens of a sample, and by the number of samples.
    """
    if reduction == "sum":
        return [datum.advantages for datum in data]
    return [datum.advantages * np.float32(len(datum.target_ids) * len(data)) for datum in data]


def response_part(values: Any, response: int) -> Logprobs:
    """Return the last `response` of a sequence's values.

    Raises `EngineError` if there are fewer, which says nothing about the sequence; `ModelError` if one is not finite.
    """
    logprobs = np.array(values, dtype=np.float64)[-response:]
    if len(logprobs) != response:
        raise EngineError(
            f"Tinker returned {len(logprobs)} log-probabilities for {response} tokens; expected all"
        )
    if not np.all(np.isfinite(logprobs)):
        wrong = int((~np.isfinite(logprobs)).sum())
        raise ModelError(
            f"Tinker returned {wrong} log-probabilities that are not finite for {response} tokens"
        )
    return logprobs.astype(np.float32)
