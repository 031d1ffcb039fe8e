"""The cache with a budget in tokens."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from openclaw_rl.render.caches import SampledTokens, TokenBudgetLRU, TwoGenerationLRU


def test_the_least_recently_used_value_leaves_first() -> None:
    cache: TokenBudgetLRU[list[int]] = TokenBudgetLRU(10, entry_tokens=0)
    cache.put(b"a", [0] * 6)
    cache.put(b"b", [0] * 4)
    assert cache.get(b"a") is not None
    cache.put(b"c", [0] * 2)
    assert cache.get(b"b") is None
    assert cache.find_last([(0, b"a"), (1, b"c"), (2, b"b")]) == (1, [0] * 2)
    assert cache.find_last([(2, b"b")]) is None


def test_a_value_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache: TokenBudgetLRU[list[int]] = TokenBudgetLRU(10, entry_tokens=0)
    cache.put(b"a", [0] * 10)
    cache.put(b"b", [0] * 11)
    assert (cache.get(b"a"), cache.get(b"b")) == ([0] * 10, None)


def test_many_short_values_take_no_more_memory_than_their_ids_may() -> None:
    """Conversations of a few words: their ids are the smaller part of what an entry takes."""
    tokens = 2**18
    cache: TokenBudgetLRU[SampledTokens] = TokenBudgetLRU(tokens)
    tracemalloc.start()
    for number in range(20_000):
        ids = np.zeros(5, np.int32)
        cache.put(
            number.to_bytes(32, "little"), SampledTokens(prompt_ids=ids, response_ids=ids.copy())
        )
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 1.5 * tokens * np.dtype(np.int32).itemsize


def test_threads_may_share_a_cache() -> None:
    cache: TokenBudgetLRU[list[int]] = TokenBudgetLRU(50, entry_tokens=0)

    def use(seed: int) -> None:
        for n in range(2000):
            cache.put(bytes([(n * seed) % 40]), [0] * (n % 9))
            cache.get(bytes([n % 40]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, (1, 3, 7, 11)))
    assert sum(len(v) for i in range(40) if (v := cache.get(bytes([i]))) is not None) <= 50


def test_an_entry_that_would_displace_most_others_is_not_kept() -> None:
    cache: TwoGenerationLRU[str, str] = TwoGenerationLRU(100, lambda key, value: len(value))
    cache.put("light", "a" * 25)
    cache.put("heavy", "a" * 26)
    assert cache.get("light") is not None
    assert cache.get("heavy") is None
