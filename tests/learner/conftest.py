from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings

VOCABULARY = 64


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """Decision 8 in float64, written separately (tests/methods/reference.py)."""
    path = Path(__file__).parent.parent / "methods" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference_of_decision_8", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save_tiny(folder: Path, vocabulary: int = VOCABULARY, sharpness: float = 4.0) -> str:
    """A random Qwen3: 2 layers, hidden 32."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # sharper than the default: log-probabilities that differ visibly
            if parameter.ndim == 2:
                parameter.mul_(sharpness)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with four tokens."""
    return save_tiny(tmp_path_factory.mktemp("four"), vocabulary=4, sharpness=20.0)


@pytest.fixture
def trainer(tiny: str) -> Callable[..., LocalTrainer]:
    def make(method: str = "combine", path: str = tiny, **settings: Any) -> LocalTrainer:
        train = train_settings({"method": method} | settings)
        return LocalTrainer(path, make_method(train), train)

    return make


@pytest.fixture
def draw() -> Callable[..., list[Sample]]:
    """Random samples whose sampled log-probabilities are the trainer's own, moved by `noise` nats."""

    def make(
        trainer: LocalTrainer, seed: int, count: int = 6, *, noise: float = 0.0, **fixed: Any
    ) -> list[Sample]:
        rng = np.random.default_rng(seed)
        out = []
        for n in range(count):
            p, r = int(rng.integers(1, 12)), int(rng.integers(1, 14))
            row = TokenSequence(
                prompt_ids=rng.integers(0, VOCABULARY, p).astype(np.int32),
                response_ids=rng.integers(0, VOCABULARY, r).astype(np.int32),
                temperature=float(rng.uniform(0.5, 1.5)),
            )
            mask = rng.random(r) < 0.8
            mask[rng.integers(r)] = True
            hint = rng.integers(0, VOCABULARY, p + 3).astype(np.int32)
            mu = trainer.logprobs([row])[0].numpy() + rng.normal(0, noise, r) if noise else None
            values: dict[str, Any] = {
                "turn": f"turn-{seed}-{n}",
                "agent": str(rng.choice(["a", "b"])),
                "prompt_ids": row.prompt_ids,
                "response_ids": row.response_ids,
                "logprobs": (trainer.logprobs([row])[0].numpy() if mu is None else mu).astype(
                    np.float32
                ),
                "mask": mask,
                "temperature": row.temperature,
                "version": 0,
                "reward": rng.choice([1.0, -1.0, None]),
                "hinted_prompts": (hint,) * int(rng.integers(0, 2)),
            }
            out.append(Sample(**(values | fixed)))
        return out

    return make
