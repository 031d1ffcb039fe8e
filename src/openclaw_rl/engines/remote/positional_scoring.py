"""Scoring of a response with one request per position."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from openclaw_rl.types import Ids, Logprobs

AT_ONCE = 8  # concurrent requests of one scoring

At = Callable[[Ids, Sequence[int]], Awaitable[list[float]]]
"""(prompt, K ids) -> [K] log-probabilities of the ids as the token after the prompt"""


async def each_position(at: At, prompt_ids: Ids, response_ids: Ids, ids: Ids) -> Logprobs:
    """Score `ids` [R, K]. The first request runs alone, so that the others find the prompt in the prefix cache."""
    whole = np.concatenate([prompt_ids, response_ids])
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(i: int) -> list[float]:
        async with gate:
            return await at(whole[: len(prompt_ids) + i], [int(k) for k in ids[i]])

    first = await one(0)
    rest = await asyncio.gather(*(one(i) for i in range(1, len(response_ids))))
    return np.array([first, *rest], dtype=np.float32)
