"""Scoring of a response with one request per position."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from openclaw_rl.types import Ids, Logprobs

MAX_CONCURRENT_REQUESTS = 8  # concurrent requests of one scoring


async def score_positions(at: Callable[[Ids, int], Awaitable[float]], prompt_ids: Ids, response_ids: Ids) -> Logprobs:
    """Return [R] log-probabilities by `at`(prompt, next token).

    The first request runs alone, so that the others find the prompt in the prefix cache.
    """
    whole = np.concatenate([prompt_ids, response_ids])
    gate = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def score_one(i: int) -> float:
        async with gate:
            return await at(whole[: len(prompt_ids) + i], int(response_ids[i]))

    first = await score_one(0)
    rest = await asyncio.gather(*(score_one(i) for i in range(1, len(response_ids))))
    return np.array([first, *rest], dtype=np.float32)
