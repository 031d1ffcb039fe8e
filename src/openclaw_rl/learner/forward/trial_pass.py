"""A short trial pass: its rows, and how far two ways of computing it differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from openclaw_rl.learner.forward import lm_head
from openclaw_rl.learner.forward.packing import TokenSequence


def trial_rows(text: Any) -> list[TokenSequence]:
    """Return short branches near the root, which show a state that leaks from one branch into the next."""
    ids = np.arange(12, dtype=np.int32) * 7 % max(2, text.vocab_size)
    return [
        TokenSequence(prompt_ids=ids[:n], response_ids=ids[a : a + 3], temperature=1.0)
        for n, a in ((6, 2), (6, 7), (4, 5))
    ]


def logprob_gap(states: lm_head.HiddenStates, padded: Sequence[lm_head.HiddenStates]) -> float:
    """Return the largest difference of the log-probabilities."""
    return float(
        (states.token_logprobs().logp - torch.cat([row.token_logprobs().logp for row in padded]))
        .abs()
        .max()
    )


def max_shared_length(text: Any) -> float:
    """Return the row length up to which RoPE does not depend on the longest row in the pass."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    # Some models have one RoPE for each kind of layer.
    kinds = [kind for kind in rope.values() if isinstance(kind, dict)]
    if "rope_type" in rope:
        kinds = [rope]
    grown = [kind for kind in kinds if kind.get("rope_type") in ("longrope", "dynamic")]
    return min((_original_length(kind, text) for kind in grown), default=math.inf)


def _original_length(rope: Mapping[str, Any], text: Any) -> float:
    """Return the row length up to which RoPE of a kind that grows with the rows is as it was trained."""
    length: float | None = rope.get("original_max_position_embeddings")
    length = length or getattr(text, "original_max_position_embeddings", None)
    return length or text.max_position_embeddings
