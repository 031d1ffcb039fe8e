from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.engines.embedded_prefix import BLOCK, PrefixCache


def states(ids: np.ndarray) -> torch.Tensor:
    """Each token's state is its id: so a hit can be checked."""
    return torch.tensor(ids, dtype=torch.float32).view(1, 1, 1, -1, 1)


def sequence(*parts: tuple[int, int]) -> np.ndarray:
    """(seed, length) parts, one behind the other."""
    made = [np.random.default_rng(s).integers(0, 1000, n) for s, n in parts]
    return np.concatenate(made).astype(np.int32)


def put(cache: PrefixCache, key: int, ids: np.ndarray) -> None:
    if cache.wants(len(ids)):
        cache.add(key, ids, states(ids))


def test_the_start_is_found_to_the_token_and_the_last_one_is_left_to_compute() -> None:
    cache = PrefixCache(1000)
    put(cache, 1, sequence((0, 50)))
    for length, expected in ((60, 50), (50, 49), (49, 48), (17, 16), (BLOCK, 0)):
        hit = cache.find(1, sequence((0, 50), (1, 10))[:length])
        assert (hit[0] if hit else 0) == expected
    forked = cache.find(1, sequence((0, 50))[[*range(40), 0, *range(41, 50)]])
    assert forked is not None
    assert forked[0] == 40


def test_another_policy_s_states_are_never_found() -> None:
    cache = PrefixCache(1000)
    put(cache, 1, sequence((0, 50)))
    assert cache.find(2, sequence((0, 50))) is None
    cache.forget(1)
    assert (cache.find(1, sequence((0, 50))), cache.tokens, len(cache)) == (None, 0, 0)


def test_a_continued_sequence_takes_the_place_of_its_start() -> None:
    cache = PrefixCache(1000)
    put(cache, 1, sequence((0, 50)))
    put(cache, 1, sequence((0, 50), (1, 30)))
    assert (len(cache), cache.tokens) == (1, 80)


def test_a_session_that_branches_off_in_every_turn_computes_only_what_is_new() -> None:
    """OpenClaw: each request ends with passing context, which is gone from the next; other sessions share the start."""
    cache = PrefixCache(10_000)
    trunk, context = (0, 900), (1, 30)
    for session in (10, 20, 10):
        history = [trunk]
        for turn in range(5):
            asked, said = (session + 100 * turn, 20), (session + 100 * turn + 1, 40)
            hit = cache.find(1, sequence(*history, asked, context))
            if turn:  # all but the last reply and the new words
                assert hit is not None
                assert hit[0] >= sum(length for _, length in history[:-1])
            elif session == 20:  # a new session has the trunk from another one
                assert hit is not None
                assert hit[0] >= trunk[1]
            put(cache, 1, sequence(*history, asked, context, said))
            history += [asked, said]


def test_the_least_used_goes_first_and_shared_starts_stay() -> None:
    cache = PrefixCache(250)
    for tail in (1, 2):
        put(cache, 1, sequence((0, 48), (tail, 52)))
    assert cache.find(1, sequence((0, 48), (1, 52), (9, 9))) is not None  # the first is used again
    put(cache, 1, sequence((7, 100)))
    assert (len(cache), cache.tokens) == (2, 200)
    hit = cache.find(1, sequence((0, 48), (1, 52), (9, 9)))
    assert hit is not None
    assert hit[0] == 100


SHORT = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), SHORT), max_size=12), st.integers(0, 1), SHORT)
def test_whatever_is_found_is_right_and_the_limit_holds(
    added: list[tuple[int, list[int]]], key: int, wanted: list[int]
) -> None:
    def spell(blocks: list[int]) -> np.ndarray:
        return np.repeat(np.array(blocks, dtype=np.int32), 10)  # starts agree at places that are no block's end

    cache = PrefixCache(300)
    for who, blocks in added:
        put(cache, who, spell(blocks))
        assert cache.tokens <= 300
    ids = spell(wanted)
    hit = cache.find(key, ids)
    if hit is not None:
        length, found = hit
        assert 0 < length < len(ids)
        assert found.flatten().tolist() == ids[:length].tolist()
        assert any(who == key and len(blocks) * 10 >= length for who, blocks in added)
