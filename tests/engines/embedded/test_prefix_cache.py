from __future__ import annotations

import gc
import weakref

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.engines.embedded.prefix_cache import (
    MAX_NODE_TOKENS,
    MIN_PREFIX_TOKENS,
    PrefixCache,
)


def states(ids: np.ndarray) -> torch.Tensor:
    """Each token's state is its id: so a hit can be checked."""
    return torch.tensor(ids, dtype=torch.float32).view(1, 1, 1, -1, 1)


def sequence(*parts: tuple[int, int]) -> np.ndarray:
    """(seed, length) parts, one behind the other."""
    made = [np.random.default_rng(s).integers(0, 1000, n) for s, n in parts]
    return np.concatenate(made).astype(np.int32)


def put(cache: PrefixCache, key: int, ids: np.ndarray) -> None:
    if cache.is_cacheable(len(ids)):
        kept = states(ids)
        cache.add(key, ids, kept)
        kept.zero_()  # the slot goes to another row


def found(cache: PrefixCache, key: int, ids: np.ndarray) -> int:
    """How many tokens of `ids` are known; their states are checked."""
    hit = cache.find_prefix(key, ids)
    if hit is None:
        return 0
    length, pieces = hit
    assert 0 < length < len(ids)
    assert torch.cat(pieces, 3).flatten().tolist() == ids[:length].tolist()
    return length


def test_the_longest_prefix_is_found_and_the_last_token_is_computed() -> None:
    cache = PrefixCache(1000)
    put(cache, 1, sequence((0, 50)))
    for length, expected in ((60, 50), (50, 49), (49, 48), (17, 16), (MIN_PREFIX_TOKENS, 0)):
        assert found(cache, 1, sequence((0, 50), (1, 10))[:length]) == expected
    assert found(cache, 1, sequence((0, 50))[[*range(40), 0, *range(41, 50)]]) == 40


def test_a_start_is_found_wherever_it_ends() -> None:
    """At the ends of nodes, and within them, also where a third sequence branches off from a half."""
    cache, whole = PrefixCache(10_000), sequence((0, 3 * MAX_NODE_TOKENS + 10))
    put(cache, 1, whole)
    for length in (
        20,
        MAX_NODE_TOKENS - 1,
        MAX_NODE_TOKENS,
        MAX_NODE_TOKENS + 1,
        2 * MAX_NODE_TOKENS + 100,
        2 * MAX_NODE_TOKENS + 50,
        3 * MAX_NODE_TOKENS + 9,
    ):
        branch = np.concatenate([whole[:length], sequence((length, 40))])
        assert found(cache, 1, branch) == length
        put(cache, 1, branch)
        assert found(cache, 1, np.concatenate([branch, sequence((9, 1))])) == len(branch)
        assert found(cache, 1, np.concatenate([whole, sequence((9, 1))])) == len(whole)
    assert (len(cache), cache.tokens) == (8, 3 * MAX_NODE_TOKENS + 10 + 7 * 40)


def test_another_policy_s_states_are_never_found() -> None:
    cache = PrefixCache(1000)
    put(cache, 1, sequence((0, 50)))
    assert cache.find_prefix(2, sequence((0, 50))) is None
    put(cache, 2, sequence((0, 50)))
    cache.remove_policy(1)
    assert (cache.find_prefix(1, sequence((0, 50))), cache.tokens, len(cache)) == (None, 50, 1)
    assert found(cache, 2, sequence((0, 50))) == 49
    cache.remove_policy(2)
    assert (cache.find_prefix(2, sequence((0, 50))), cache.tokens, len(cache)) == (None, 0, 0)


def test_a_continued_sequence_takes_the_place_of_its_start() -> None:
    cache = PrefixCache(1000)
    put(cache, 1, sequence((0, 50)))
    put(cache, 1, sequence((0, 50), (1, 30)))
    assert (len(cache), cache.tokens) == (1, 80)
    put(cache, 1, sequence((0, 50)))
    assert (len(cache), cache.tokens) == (1, 80)


def test_a_session_that_branches_in_every_turn_computes_only_new_tokens() -> None:
    """OpenClaw: each request ends with passing context, which is gone from the next; other sessions share the start."""
    cache = PrefixCache(10_000)
    trunk, context = (0, 900), (1, 30)
    for session in (10, 20, 10):
        history = [trunk]
        for turn in range(5):
            asked, said = (session + 100 * turn, 20), (session + 100 * turn + 1, 40)
            known = found(cache, 1, sequence(*history, asked, context))
            if turn:  # all but the last reply and the new words
                assert known >= sum(length for _, length in history[:-1])
            elif session == 20:  # a new session has the trunk from another one
                assert known >= trunk[1]
            put(cache, 1, sequence(*history, asked, context, said))
            history += [asked, said]


def test_a_prefix_that_sessions_share_is_stored_once() -> None:
    """Thirty sessions of an agent fit where three of them would, each with a trunk of its own."""
    cache, trunk = PrefixCache(32_768), (0, 9_000)
    for session in range(30):
        put(cache, 1, sequence(trunk, (1 + session, 700)))
    assert (len(cache), cache.tokens) == (30, 9_000 + 30 * 700)
    for session in range(30):
        assert found(cache, 1, sequence(trunk, (1 + session, 700), (99, 5))) == 9_700


def test_cached_states_hold_no_other_memory() -> None:
    """A view of a slot, or of the other half of what was cut, would keep all of it."""
    cache, whole = PrefixCache(10_000), sequence((0, 700))
    put(cache, 1, whole)
    put(cache, 1, np.concatenate([whole[:300], sequence((1, 40))]))
    hits = [
        cache.find_prefix(1, ids)
        for ids in (np.append(whole, 0), np.concatenate([whole[:300], sequence((1, 41))]))
    ]
    pieces = {id(piece): piece for hit in hits if hit is not None for piece in hit[1]}.values()
    assert sum(piece.shape[3] for piece in pieces) == cache.tokens == 740
    assert sum(piece.untyped_storage().nbytes() for piece in pieces) == 740 * 4


def test_the_least_used_goes_first_and_shared_starts_stay() -> None:
    cache = PrefixCache(250)
    for tail in (1, 2):
        put(cache, 1, sequence((0, 48), (tail, 52)))
    assert (
        cache.find_prefix(1, sequence((0, 48), (1, 52), (9, 9))) is not None
    )  # the first is used again
    put(cache, 1, sequence((7, 100)))
    assert (len(cache), cache.tokens) == (2, 200)
    assert found(cache, 1, sequence((0, 48), (1, 52), (9, 9))) == 100
    assert found(cache, 1, sequence((0, 48), (2, 52), (9, 9))) == 48


def test_of_a_long_sequence_the_end_goes_first() -> None:
    cache = PrefixCache(4 * MAX_NODE_TOKENS)
    put(cache, 1, sequence((0, 3 * MAX_NODE_TOKENS)))
    put(cache, 1, sequence((1, MAX_NODE_TOKENS + 1)))
    assert found(cache, 1, sequence((0, 3 * MAX_NODE_TOKENS), (9, 9))) == 2 * MAX_NODE_TOKENS
    assert cache.tokens == 3 * MAX_NODE_TOKENS + 1


SHORT = st.lists(st.integers(0, 2), min_size=1, max_size=8)
ADDED = st.lists(st.tuples(st.integers(0, 1), SHORT), max_size=12)


def spell(blocks: list[int], size: int = 10) -> np.ndarray:
    return np.repeat(
        np.array(blocks, dtype=np.int32), size
    )  # starts agree at places that are no block's end


@settings(max_examples=60, deadline=None)
@given(ADDED, st.integers(0, 1), SHORT)
def test_every_cached_prefix_is_correct_and_the_limit_holds(
    added: list[tuple[int, list[int]]], key: int, wanted: list[int]
) -> None:
    cache = PrefixCache(300)
    for who, blocks in added:
        put(cache, who, spell(blocks))
        assert cache.tokens <= 300
        assert found(cache, who, spell([*blocks, 3])) == (
            len(blocks) * 10 if len(blocks) > 1 else 0
        )
    ids = spell(wanted)
    length = found(cache, key, ids)
    assert not length or any(who == key and len(blocks) * 10 >= length for who, blocks in added)


@settings(max_examples=100, deadline=None)
@given(ADDED, st.integers(0, 1), SHORT, st.sampled_from([10, 90]))
def test_with_enough_room_every_prefix_is_found_and_stored_once(
    added: list[tuple[int, list[int]]], key: int, wanted: list[int], size: int
) -> None:
    cache = PrefixCache(100_000)
    for who, blocks in added:
        put(cache, who, spell(blocks, size))
    kept = [
        (who, spell(blocks, size).tolist())
        for who, blocks in added
        if len(blocks) * size >= MIN_PREFIX_TOKENS
    ]
    assert cache.tokens == len(
        {(who, *ids[:n]) for who, ids in kept for n in range(1, len(ids) + 1)}
    )
    ends = {(who, *ids) for who, ids in kept}
    assert len(cache) == sum(not any(o[: len(e)] == e and o != e for o in ends) for e in ends)
    ids = spell(wanted, size).tolist()[:-1]
    starts = [
        n for who, known in kept if who == key for n in range(len(ids) + 1) if known[:n] == ids[:n]
    ]
    longest = max(starts, default=0)
    assert found(cache, key, spell(wanted, size)) == (
        longest if longest >= MIN_PREFIX_TOKENS else 0
    )


def test_the_states_of_a_removed_version_are_freed_at_once() -> None:
    """Not at some later garbage collection: an engine that gets a version a minute would grow until then."""
    gc.disable()
    try:
        for remove in (lambda cache: cache.remove_policy(1), PrefixCache.clear):
            cache = PrefixCache(4096)
            for tail in range(8):
                put(cache, 1, sequence((0, 3 * MAX_NODE_TOKENS), (tail, 50)))
            kept = [weakref.ref(node.states) for node in cache._use_order]
            assert len(kept) > 8
            remove(cache)
            assert not [state for state in kept if state() is not None]
    finally:
        gc.enable()
