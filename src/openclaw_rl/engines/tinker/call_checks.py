"""Checks of calls that the Tinker service can answer, and of its answers. Pure. Shapes: R tokens of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from openclaw_rl.errors import EngineError, GrammarError, SamplingUnsupported
from openclaw_rl.types import Logprobs, Sampling


def check_sampling(sampling: Sampling, top_logprobs: int) -> None:
    """Raise `SamplingUnsupported` for what the service cannot sample by, `GrammarError` for a grammar."""
    if sampling.grammar is not None:
        raise GrammarError(
            "Tinker has no structured output: it cannot force a format or a tool call"
        )
    unknown = {
        "min_p": sampling.min_p > 0,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "logit_bias": bool(sampling.logit_bias),
        "min_tokens": sampling.min_tokens > 0,
    }
    requested = [name for name, is_requested in unknown.items() if is_requested]
    if requested:
        raise SamplingUnsupported(
            f"Tinker samples without {', '.join(requested)}: leave it out of the request"
        )
    if top_logprobs:
        raise SamplingUnsupported(
            "Tinker returns no alternatives (top_logprobs): ask for the sampled tokens alone"
        )


def first_sequence(answer: Any) -> Any:
    """Return the reply in an answer. Raises `EngineError` without one."""
    if not answer.sequences:
        raise EngineError("Tinker returned no reply; expected one")
    return answer.sequences[0]


def check_reply(
    tokens: Sequence[int],
    logprobs: Sequence[float] | None,
    stop_reason: str,
    stop_token_ids: Sequence[int],
) -> Literal["stop", "length"]:
    """Return how a reply ended. Raises `EngineError` if it is no reply that can be stored as it was sampled."""
    count = len(logprobs) if logprobs is not None else 0
    if not tokens or count != len(tokens):
        raise EngineError(
            f"Tinker returned {len(tokens)} tokens with {count} log-probabilities; expected one for each"
        )
    if not np.all(np.isfinite(np.asarray(logprobs))):
        raise EngineError("Tinker returned log-probabilities that are not finite")
    if tokens[-1] in stop_token_ids:
        return "stop"
    if stop_reason == "stop":
        raise EngineError(
            f"Tinker ended a reply at token {tokens[-1]}; expected one of {sorted(stop_token_ids)}"
        )
    return "length"


def response_logprobs(scores: Sequence[Any], prompt: int, response: int) -> Logprobs:
    """Return [R] of the response, from those of the whole sequence. Raises `EngineError` if some are missing.

    The first token has none: Tinker returns None for it, SkyRL's server leaves it out.
    """
    of_response = scores[-response:]
    scored = sum(score is not None for score in of_response)
    has_all_tokens = len(scores) in (prompt + response, prompt + response - 1)
    if not has_all_tokens or scored < len(of_response):
        raise EngineError(f"Tinker scored {scored} of {response} tokens of a reply; expected all")
    return np.array(of_response, dtype=np.float32)
