"""SkyRL's open Tinker server on a random Qwen3 of two layers, our trainer on it, and PEFT as the reference."""

from __future__ import annotations

import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.skyrl_server import KEY, RANK, SkyrlServer
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from openclaw_rl.learner.tinker.trainer import TinkerTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import Config, from_flat

VOCABULARY, CONTEXT = 64, 128
Settings = Callable[..., Config]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    settings = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(settings).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[SkyrlServer]:
    # The SDK keeps each session of this process alive, and so the model of each trainer of these tests.
    with SkyrlServer(tmp_path_factory.mktemp("server"), model, adapters=40) as started:
        yield started


@pytest.fixture
def settings(server: SkyrlServer, model: Path) -> Iterator[Settings]:
    """Settings with a home of their own, whose name is short: a Unix socket's path is limited."""
    with tempfile.TemporaryDirectory(prefix="ocrl-") as home:

        def make(**more: Any) -> Config:
            fixed = {
                "home": home,
                "model.path": str(model),
                "engine.backend": "tinker",
                "train.trainer": "tinker",
                "gate.kind": "numbers",
                "tinker.url": server.url,
                "tinker.api_key": KEY,
                "tinker.reduction": "mean",
                "train.lora.rank": RANK,
                "train.safety.max_step_kl": 1e9,
                "train.safety.max_turn_log_ratio": 50.0,
            }
            return from_flat(fixed | more)

        yield make


def make_trainer(config: Config) -> TinkerTrainer:
    return TinkerTrainer(config, make_method(config.train))


def make_sample(turn: int, reward: float | None, *, hints: int = 0) -> Sample:
    """A turn of ids at random, whose log-probabilities are those of no policy: ratios differ from 1."""
    random = np.random.default_rng(turn)
    response = random.integers(0, VOCABULARY, 4 + turn).astype(np.int32)
    return Sample(
        turn=f"t{turn}",
        agent="a",
        prompt_ids=random.integers(0, VOCABULARY, 5 + turn).astype(np.int32),
        response_ids=response,
        logprobs=-random.uniform(2, 6, len(response)).astype(np.float32),
        mask=np.ones(len(response), dtype=bool),
        temperature=1.0,
        version=0,
        reward=reward,
        hinted_prompts=tuple(
            random.integers(0, VOCABULARY, 7).astype(np.int32) for _ in range(hints)
        ),
    )


BATCH = [
    make_sample(1, 1.0),
    make_sample(2, -1.0, hints=1),
    make_sample(3, None, hints=2),
    make_sample(4, -1.0),
]


def read_adapter(server: SkyrlServer, path: str, into: Path) -> dict[str, torch.Tensor]:
    """Weights of a sampler checkpoint by their PEFT names, as the server gives them for download."""
    run, *_, name = path.removeprefix("tinker://").split("/")
    where = f"{server.url}/api/v1/training_runs/{run}/checkpoints/{name}/download"
    with (
        urllib.request.urlopen(where, timeout=60) as archive,
        tarfile.open(fileobj=archive, mode="r|gz") as tar,
    ):
        tar.extractall(into, filter="data")
    return load_file(into / "adapter_model.safetensors")


def reference_logprobs(
    model: Path,
    adapter: dict[str, torch.Tensor] | None,
    prompt: Sequence[int],
    response: Sequence[int],
) -> np.ndarray:
    """[R] by a fresh forward of transformers and PEFT. None: the base."""
    tuned: Any = Qwen3ForCausalLM.from_pretrained(model)
    if adapter is not None:
        tuned = get_peft_model(
            tuned, LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear")
        )
        set_peft_model_state_dict(tuned, adapter)
    ids = torch.tensor([[*map(int, prompt), *map(int, response)]])
    with torch.no_grad():
        rows = tuned.eval()(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    found: np.ndarray = rows.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
    return found
