"""Each setting of the embedded engine changes how it runs; and nothing else does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openclaw_rl.engines.embedded import server
from openclaw_rl.engines.embedded.sequence import EngineSequence
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.types import PolicyRef, Sampling

CHANGES: dict[str, Any] = {
    "model.path": "the model of these tests",
    "model.dtype": "bfloat16",
    "engine.max_loaded_versions": 2,
    "engine.max_batch": 2,
    "engine.max_context": 128,
    "engine.prefill_chunk": 16,
    "engine.prefix_cache_tokens": 0,
    "engine.threads": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What can be seen of a running engine."""

    model: str
    dtype: torch.dtype
    threads: int
    steps: int  # until three replies of four tokens to prompts of 200 tokens have ended
    most_running: int
    cached_tokens: int  # of the first prompt, when it comes again
    refusals: list[str]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def observe(model_folder: Path, given: dict[str, Any]) -> Result:
    flat = {"model.path": "starter", "model.device": "cpu"} | given
    folder = {"model.path": str(model_folder)} if "model.path" in given else {}
    engine, refusals = server._load_engine(from_flat(flat | folder)), []
    base = PolicyRef(version=0, path=None, digest="")
    deque(engine.load_versions([base], {}), maxlen=0)
    try:
        deque(
            engine.load_versions([base, *(replace(base, version=n) for n in (1, 2))], {}), maxlen=0
        )
    except EngineError as error:
        refusals.append(str(error))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 60, 200).astype(np.int32) for _ in range(3)]
    steps = most_running = 0
    asked: list[EngineSequence] = []
    for batch in (prompts, prompts[:1]):
        for number, prompt in enumerate(batch):
            try:
                asked.append(
                    engine.generate(f"{number}", 0, prompt, Sampling(max_tokens=4, seed=0), ())
                )
            except EngineError as error:
                refusals.append(str(error))
        while engine.has_work:
            engine.step()
            steps, most_running = steps + 1, max(most_running, engine.running_count)
    return Result(
        model=engine.model.name,
        dtype=engine.model.dtype,
        threads=torch.get_num_threads(),
        steps=steps,
        most_running=most_running,
        cached_tokens=asked[-1].reused_tokens if asked else 0,
        refusals=refusals,
    )


@pytest.fixture(scope="module")
def plain(model_folder: Path) -> Result:
    return observe(model_folder, {})


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_changes_the_engine(key: str, model_folder: Path, plain: Result) -> None:
    assert observe(model_folder, {key: CHANGES[key]}) != plain


def test_nothing_else_changes_it(model_folder: Path, plain: Result) -> None:
    """Without this, a difference would say nothing."""
    assert observe(model_folder, {"serve.port": 8001, "train.threads": 2}) == plain
