"""Memory that is lacking for a while costs time and no reply; a sequence that never fits fails alone, in words."""

from __future__ import annotations

import random
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openclaw_rl.engines.embedded import kv_cache, oom
from openclaw_rl.engines.embedded.kv_cache import CacheLayout, KVCache
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import (
    EngineSequence,
    NewToken,
    SequenceFailed,
    SequenceScored,
)
from openclaw_rl.settings.load import EngineConfig, ModelConfig
from openclaw_rl.types import Sampling

ATOL = 1e-4
Given = tuple[dict[int, list[tuple[int, float]]], dict[int, np.ndarray], list[SequenceFailed]]


@pytest.fixture(scope="module")
def model(model_folder: Path) -> EmbeddedModel:
    return EmbeddedModel.load(ModelConfig(path=str(model_folder), device="cpu"))


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "PREFILL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(kv_cache, "_MIN_FREED_BYTES", 0)


def ask(core: EmbeddedEngine, number: int) -> EngineSequence:
    prompt = np.random.default_rng(number).integers(0, 40, 10 + 7 * (number % 9)).astype(np.int32)
    if number % 4 == 3:
        return core.score(number, 0, prompt, prompt[::-1][:9], 1.0)
    return core.generate(number, 0, prompt, Sampling(max_tokens=20 + number, seed=number), ())


def everything(model: EmbeddedModel, config: EngineConfig, number: int = 12) -> Given:
    """What so many calls give, half of them asked for while the others run."""
    core = EmbeddedEngine(model, config)
    tokens: dict[int, list[tuple[int, float]]] = {}
    scores: dict[int, np.ndarray] = {}
    stuck: list[SequenceFailed] = []
    for n in range(number // 2):
        ask(core, n)
    asked, until = number // 2, time.monotonic() + 240
    while core.has_work or asked < number:
        assert time.monotonic() < until
        for item in core.step():
            if isinstance(item, NewToken):
                tokens.setdefault(item.seq.owner, []).append((item.token, item.logprob))
            elif isinstance(item, SequenceScored):
                scores[item.seq.owner] = item.logprobs
            else:
                stuck.append(item)
        if asked < number:
            ask(core, asked)
            asked += 1
    assert not core._running_counts
    return tokens, scores, stuck


def same(one: Given, other: Given) -> None:
    assert one[2] == other[2] == []
    ids = [{n: [t for t, _ in drawn] for n, drawn in given[0].items()} for given in (one, other)]
    assert ids[0] == ids[1]
    for n, drawn in one[0].items():
        np.testing.assert_allclose([p for _, p in drawn], [p for _, p in other[0][n]], atol=ATOL)
    assert one[1].keys() == other[1].keys()
    for n, logprobs in one[1].items():
        np.testing.assert_allclose(logprobs, other[1][n], atol=ATOL)


def grant(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Slots may take so many bytes together; returns how often one did not fit."""
    held: weakref.WeakSet[Any] = weakref.WeakSet()
    refused, plain = [0], KVCache._allocate_tensor

    def new(slots: KVCache, rows: int, capacity: int) -> torch.Tensor:
        made = plain(slots, rows, capacity)
        if sum(t.nbytes for t in held) + made.nbytes > most:
            refused[0] += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        held.add(made)
        return made

    monkeypatch.setattr(KVCache, "_allocate_tensor", new)
    return refused


def bytes_of(model: EmbeddedModel, tokens: int) -> int:
    at = model.layout
    return at.layers * 2 * at.heads * at.dim * tokens * at.dtype.itemsize


@pytest.mark.parametrize("tokens", [700, 900, 1400])
def test_slots_that_do_not_fit(
    model: EmbeddedModel,
    tiny_engine_config: EngineConfig,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
) -> None:
    plain = everything(model, tiny_engine_config)
    refused = grant(monkeypatch, bytes_of(model, tokens))
    same(everything(model, tiny_engine_config), plain)
    assert refused[0]


@pytest.mark.parametrize("seed", range(4))
def test_forward_passes_that_do_not_fit(
    model: EmbeddedModel,
    tiny_engine_config: EngineConfig,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    plain = everything(model, tiny_engine_config)
    draw, before, failed = random.Random(seed), model.forward, [0]

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        if draw.random() < 0.2:
            failed[0] += 1
            raise RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
            )
        return before(*args, **kwargs)

    monkeypatch.setattr(model, "forward", forward)
    same(everything(model, tiny_engine_config), plain)
    assert failed[0] > 5


def test_a_sequence_that_never_fits_fails_with_a_reason_and_the_others_are_served(
    model: EmbeddedModel, tiny_engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom, "SINGLE_SEQUENCE_TIMEOUT", 0.2)
    grant(monkeypatch, bytes_of(model, 250))
    core = EmbeddedEngine(model, tiny_engine_config)
    large = core.generate("large", 0, np.full(200, 3, np.int32), Sampling(max_tokens=4, seed=0), ())
    small = core.generate("small", 0, np.full(20, 3, np.int32), Sampling(max_tokens=4, seed=0), ())
    began, stuck, pauses = time.monotonic(), [], []
    while core.has_work:
        assert time.monotonic() - began < 240
        stuck += [item for item in core.step() if isinstance(item, SequenceFailed)]
        pauses.append(core.retry_delay)
    assert len(small.sampled_ids) == 4
    assert [(item.seq, item.grammar) for item in stuck] == [(large, False)]
    assert "200 tokens do not fit into the memory of cpu, tried for" in stuck[0].reason
    assert oom.RETRY_INTERVAL in pauses, "it does not turn in circles meanwhile"
    again = core.generate("small", 0, np.full(20, 3, np.int32), Sampling(max_tokens=4, seed=0), ())
    while core.has_work:
        core.step()
    assert again.sampled_ids == small.sampled_ids


def test_other_errors_are_errors(
    model: EmbeddedModel, tiny_engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(model, "forward", forward)
    core = EmbeddedEngine(model, tiny_engine_config)
    ask(core, 0)
    with pytest.raises(RuntimeError, match="illegal"):
        core.step()


def test_the_cache_reserves_the_requested_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reply to a prompt of an agent: its states, not those of four of twice the length."""
    slots = KVCache(
        CacheLayout(layers=1, heads=1, dim=1, dtype=torch.float32, device=torch.device("cpu"))
    )
    monkeypatch.setattr(kv_cache, "_MIN_FREED_BYTES", 10**9)
    slots.reserve(1, 9000)
    assert slots.data.shape[2] == 1
    assert slots.capacity == 9088
    slots.reserve(3, 9088)
    assert slots.data.shape[2] == 4
    assert slots.capacity == 11392
    slots.free_memory()
    assert slots.data.nbytes > 0, "that little is not worth it"
    monkeypatch.setattr(kv_cache, "_MIN_FREED_BYTES", 1000)
    slots.free_memory()
    assert slots.data.nbytes == 0
