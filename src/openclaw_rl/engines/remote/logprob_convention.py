"""Detect the log-probability convention of a server (`types.Convention`) by probe requests.

A wrong convention raises no error but corrupts training, so it is compared with the settings at every new connection.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping

import numpy as np

from openclaw_rl.errors import EngineError
from openclaw_rl.types import Chunk, Convention, Generation, Sampling

log = logging.getLogger(__name__)

Alternatives = Mapping[int, float]
"""Token id -> log-probability of the likeliest ids after one prompt."""

_PROBE_PROMPT = np.array([1], dtype=np.int32)
_TOP_COUNT = 5
# Nats between two alternatives; below it their ratio is noise.
_MIN_LOGPROB_GAP = 0.05


def infer_convention(one: Alternatives, half: Alternatives, cut: Alternatives) -> Convention | None:
    """Infer the convention from the alternatives at temperature 1, at 0.5, and at 1 with top_k 1. None: undecided.

    Halving the temperature doubles the differences of log-probabilities, unless they are raw. If they are processed,
    top_k 1 removes all but the likeliest id.
    """
    both = sorted(one.keys() & half.keys(), key=lambda i: -one[i])
    if len(both) < 2 or one[both[0]] - one[both[-1]] < _MIN_LOGPROB_GAP:
        return None
    ratio = (half[both[0]] - half[both[-1]]) / (one[both[0]] - one[both[-1]])
    if ratio < 1.5:
        return "raw"
    second = sorted(one, key=lambda i: -one[i])[1]
    return "processed" if cut.get(second, -np.inf) < one[second] - 1 else "scaled"


async def observe_convention(
    stream: Callable[[Generation], AsyncGenerator[Chunk]],
) -> Convention | None:
    """Probe with three requests of one token each. Raises `EngineError` if the answers have no alternatives."""
    one, half, cut = [
        await _probe_alternatives(stream, s) for s in ({}, {"temperature": 0.5}, {"top_k": 1})
    ]
    return infer_convention(one, half, cut)


async def _probe_alternatives(
    stream: Callable[[Generation], AsyncGenerator[Chunk]], cut: Mapping[str, float]
) -> Alternatives:
    sampling = Sampling(
        max_tokens=1,
        seed=0,
        temperature=cut.get("temperature", 1.0),
        top_k=int(cut.get("top_k", 0)),
    )
    asked = Generation(
        id="probe",
        version=0,
        prompt_ids=_PROBE_PROMPT,
        sampling=sampling,
        stop_token_ids=(),
        top_logprobs=_TOP_COUNT,
    )
    chunks = [chunk async for chunk in stream(asked)]
    if not chunks or not chunks[0].top:
        raise EngineError(
            "the engine returns no log-probabilities of alternatives; the policy's engine must"
        )
    return dict(chunks[0].top[0])


def check_convention(
    observed: Convention | None, expected: Convention, *, where: str, advice: str
) -> None:
    """Raise `EngineError` with `advice` if the conventions differ; warn if none was observed."""
    if observed is None:
        log.warning(
            "the convention of the engine's log-probabilities is unclear; %s is assumed", expected
        )
    elif observed != expected:
        but = " (then only replies sampled at temperature 1 can train)" if observed == "raw" else ""
        raise EngineError(
            f"the engine at {where} returns {observed} log-probabilities, expected {expected} "
            "(engine.logprob_convention). "
            f"{advice}Or set engine.logprob_convention to {observed}{but}."
        )
