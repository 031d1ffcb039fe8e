"""Families whose attention is no plain softmax of products: served with the attention that they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.embedded.test_scheduler import Bench, random_ids
from tests.learner.forward.test_exact_gradients import SHAPE as SMALL
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    XLMConfig,
    XLMWithLMHeadModel,
)

from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.errors import ModelError
from openclaw_rl.settings.load import EngineConfig, ModelConfig

SHAPE = SMALL | {"max_position_embeddings": 64, "sliding_window": 64, "initializer_range": 0.5}


def gemma2() -> Any:
    """Caps on the scores and on the logits, so low that they are felt."""
    caps = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 3.0}
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE, **caps, query_pre_attn_scalar=8))


def gpt_oss() -> Any:
    """A score for nothing beside the tokens' own, and experts."""
    return GptOssForCausalLM(GptOssConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2))


@pytest.fixture(params=[gemma2, gpt_oss], ids=lambda made: made.__name__)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    make: Callable[[], Any] = request.param
    make().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_replies_have_the_log_probabilities_of_a_plain_forward_pass(
    folder: Path, tiny_engine_config: EngineConfig
) -> None:
    """Of rows of uneven length that join and leave, in chunks, and from the cache."""
    bench = Bench(
        EmbeddedModel.load(ModelConfig(path=str(folder), device="cpu")), tiny_engine_config
    )
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    asked = {
        f"r{n}": (random_ids(n % 5, 1 + 9 * (n % 5)), (1.0, 0.6, 1.5)[n % 3]) for n in range(10)
    }
    for n, (name, (prompt, temperature)) in enumerate(asked.items()):
        bench.ask(name, 0, prompt, temperature=temperature, seed=n, max_tokens=4 + n)
        for _ in range(n % 3):
            bench.step()
    bench.finish()
    for name, (prompt, temperature) in asked.items():
        ids, logprobs = bench.reply(name)
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([[*prompt, *ids]])).logits[
                0, len(prompt) - 1 : -1
            ]
        want = torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(ids)[:, None])[
            :, 0
        ]
        np.testing.assert_allclose(logprobs, want, atol=1e-4)


def test_full_weights_of_the_same_architecture_are_served(folder: Path) -> None:
    base = EmbeddedModel.load(ModelConfig(path=str(folder), device="cpu"))
    other = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.1 * torch.randn(weight.shape)
    tensors = {name: p.detach() for name, p in other.named_parameters()}
    assert base.with_weights(tensors, name="other").layout == base.layout, (
        "its self-test has compared it with itself whole"
    )


def test_the_error_of_the_first_try_to_load_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-kind"}')
    with pytest.raises(ModelError, match=r"cannot be loaded for generation: .*no-such-kind"):
        EmbeddedModel.load(ModelConfig(path=str(tmp_path)))


def test_models_of_another_kind_are_named() -> None:
    own = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "n_words": 64}
    with pytest.raises(ModelError, match=r"of another kind.* \(XLMWithLMHeadModel"):
        EmbeddedModel(XLMWithLMHeadModel(XLMConfig(**own)), name="xlm")
    few = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    shape = SHAPE | {"num_hidden_layers": 4, "max_position_embeddings": 32}
    with pytest.raises(
        ModelError, match="this qwen3_next model has layers of type linear_attention"
    ):
        EmbeddedModel(Qwen3NextForCausalLM(Qwen3NextConfig(**shape, **few)), name="next")
