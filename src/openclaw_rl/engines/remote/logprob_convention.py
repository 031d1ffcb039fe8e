"""Which log-probabilities a server gives, found out by asking it: `types.Convention`.

Wrong ones look right and train wrongly, so they are compared with the settings at every new connection.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping

import numpy as np

from openclaw_rl.errors import EngineError
from openclaw_rl.types import Chunk, Convention, Generation, Sampling

log = logging.getLogger(__name__)

Alternatives = Mapping[int, float]
"""Token id to log-probability, of the likeliest ids after one prompt."""

_PROMPT = np.array([1], dtype=np.int32)
_TOP = 5
_TELLING = 0.05  # nats between two alternatives, from which on their ratio means something


def convention_of(one: Alternatives, half: Alternatives, cut: Alternatives) -> Convention | None:
    """From the alternatives at temperature 1, at 0.5, and at 1 with top_k 1. None: too even to tell.

    Halving the temperature doubles differences of log-probabilities, unless they are raw ones. A cut that is in them
    takes all but the likeliest id away.
    """
    both = sorted(one.keys() & half.keys(), key=lambda i: -one[i])
    if len(both) < 2 or one[both[0]] - one[both[-1]] < _TELLING:
        return None
    ratio = (half[both[0]] - half[both[-1]]) / (one[both[0]] - one[both[-1]])
    if ratio < 1.5:
        return "raw"
    second = sorted(one, key=lambda i: -one[i])[1]
    return "processed" if cut.get(second, -np.inf) < one[second] - 1 else "scaled"


async def observe(stream: Callable[[Generation], AsyncGenerator[Chunk]]) -> Convention | None:
    """Three requests of one token each. Raises `EngineError` when no alternatives come."""
    one, half, cut = [await _alternatives(stream, s) for s in ({}, {"temperature": 0.5}, {"top_k": 1})]
    return convention_of(one, half, cut)


async def _alternatives(
    stream: Callable[[Generation], AsyncGenerator[Chunk]], cut: Mapping[str, float]
) -> Alternatives:
    sampling = Sampling(max_tokens=1, seed=0, temperature=cut.get("temperature", 1.0), top_k=int(cut.get("top_k", 0)))
    asked = Generation(
        id="probe", version=0, prompt_ids=_PROMPT, sampling=sampling, stop_token_ids=(), top_logprobs=_TOP
    )
    chunks = [chunk async for chunk in stream(asked)]
    if not chunks or not chunks[0].top:
        raise EngineError("the engine gives no log-probabilities of alternatives; a policy's engine must")
    return dict(chunks[0].top[0])


def check(observed: Convention | None, expected: Convention, *, where: str, advice: str) -> None:
    """Raises `EngineError` that says what to do when they differ."""
    if observed is None:
        log.warning("the engine's first token says nothing of its log-probabilities; %s ones are assumed", expected)
    elif observed != expected:
        but = " (then only replies sampled at temperature 1 can train)" if observed == "raw" else ""
        raise EngineError(
            f"the engine at {where} gives {observed} log-probabilities, expected {expected} ones (engine.logprobs). "
            f"{advice}Or set engine.logprobs to {observed}{but}."
        )
