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
from openclaw_rl.engines.embedded.kv_cache import Layout, Slots
from openclaw_rl.engines.embedded.model import BaseModel
from openclaw_rl.engines.embedded.scheduler import Core
from openclaw_rl.engines.embedded.sequence import Job, Scored, Stuck, Token
from openclaw_rl.settings.load import EngineConfig, ModelConfig
from openclaw_rl.types import Sampling

ATOL = 1e-4
Given = tuple[dict[int, list[tuple[int, float]]], dict[int, np.ndarray], list[Stuck]]


@pytest.fixture(scope="module")
def model(model_folder: Path) -> BaseModel:
    return BaseModel.load(ModelConfig(path=str(model_folder), device="cpu"))


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "BESIDE", 0.01)
    monkeypatch.setattr(kv_cache, "_LARGE", 0)


def ask(core: Core, number: int) -> Job:
    prompt = np.random.default_rng(number).integers(0, 40, 10 + 7 * (number % 9)).astype(np.int32)
    if number % 4 == 3:
        return core.score(number, 0, prompt, prompt[::-1][:9], 1.0)
    return core.generate(number, 0, prompt, Sampling(max_tokens=20 + number, seed=number), ())


def everything(model: BaseModel, config: EngineConfig, number: int = 12) -> Given:
    """What so many calls give, half of them asked for while the others run."""
    core = Core(model, config)
    tokens: dict[int, list[tuple[int, float]]] = {}
    scores: dict[int, np.ndarray] = {}
    stuck: list[Stuck] = []
    for n in range(number // 2):
        ask(core, n)
    asked, until = number // 2, time.monotonic() + 60
    while core.busy or asked < number:
        assert time.monotonic() < until
        for item in core.step():
            if isinstance(item, Token):
                tokens.setdefault(item.job.owner, []).append((item.token, item.logprob))
            elif isinstance(item, Scored):
                scores[item.job.owner] = item.logprobs
            else:
                stuck.append(item)
        if asked < number:
            ask(core, asked)
            asked += 1
    assert not core._running
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
    refused, plain = [0], Slots._new

    def new(slots: Slots, rows: int, capacity: int) -> torch.Tensor:
        made = plain(slots, rows, capacity)
        if sum(t.nbytes for t in held) + made.nbytes > most:
            refused[0] += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        held.add(made)
        return made

    monkeypatch.setattr(Slots, "_new", new)
    return refused


def bytes_of(model: BaseModel, tokens: int) -> int:
    at = model.layout
    return at.layers * 2 * at.heads * at.dim * tokens * at.dtype.itemsize


@pytest.mark.parametrize("tokens", [700, 900, 1400])
def test_slots_that_do_not_fit(
    model: BaseModel, tiny_engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    plain = everything(model, tiny_engine_config)
    refused = grant(monkeypatch, bytes_of(model, tokens))
    same(everything(model, tiny_engine_config), plain)
    assert refused[0]


@pytest.mark.parametrize("seed", range(4))
def test_forward_passes_that_do_not_fit(
    model: BaseModel, tiny_engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    plain = everything(model, tiny_engine_config)
    draw, before, failed = random.Random(seed), model.forward, [0]

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        if draw.random() < 0.2:
            failed[0] += 1
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return before(*args, **kwargs)

    monkeypatch.setattr(model, "forward", forward)
    same(everything(model, tiny_engine_config), plain)
    assert failed[0] > 5


def test_what_never_fits_fails_in_words_and_the_rest_is_served(
    model: BaseModel, tiny_engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom, "PATIENCE", 0.2)
    grant(monkeypatch, bytes_of(model, 250))
    core = Core(model, tiny_engine_config)
    large = core.generate("large", 0, np.full(200, 3, np.int32), Sampling(max_tokens=4, seed=0), ())
    small = core.generate("small", 0, np.full(20, 3, np.int32), Sampling(max_tokens=4, seed=0), ())
    began, stuck, pauses = time.monotonic(), [], []
    while core.busy:
        assert time.monotonic() - began < 30
        stuck += [item for item in core.step() if isinstance(item, Stuck)]
        pauses.append(core.pause)
    assert len(small.drawn) == 4
    assert [(item.job, item.grammar) for item in stuck] == [(large, False)]
    assert "200 tokens do not fit into the memory of cpu, tried for" in stuck[0].why
    assert oom.PAUSE in pauses, "it does not turn in circles meanwhile"
    again = core.generate("small", 0, np.full(20, 3, np.int32), Sampling(max_tokens=4, seed=0), ())
    while core.busy:
        core.step()
    assert again.drawn == small.drawn


def test_other_errors_are_errors(
    model: BaseModel, tiny_engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(model, "forward", forward)
    core = Core(model, tiny_engine_config)
    ask(core, 0)
    with pytest.raises(RuntimeError, match="illegal"):
        core.step()


def test_slots_take_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reply to a prompt of an agent: its states, not those of four of twice the length."""
    slots = Slots(Layout(layers=1, heads=1, dim=1, dtype=torch.float32, device=torch.device("cpu")))
    monkeypatch.setattr(kv_cache, "_LARGE", 10**9)
    slots.reserve(1, 9000)
    assert slots.data.shape[2] == 1
    assert slots.capacity == 9088
    slots.reserve(3, 9088)
    assert slots.data.shape[2] == 4
    assert slots.capacity == 11392
    slots.shrink()
    assert slots.data.nbytes > 0, "that little is not worth it"
    monkeypatch.setattr(kv_cache, "_LARGE", 1000)
    slots.shrink()
    assert slots.data.nbytes == 0
