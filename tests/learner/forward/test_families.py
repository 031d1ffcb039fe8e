"""Models that need another kernel, bend their logits, or have weights without a linear layer around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.learner.forward.test_exact_gradients import SHAPE
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from openclaw_rl.errors import ConfigError, ModelError
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings.load import TrainConfig, train_settings


def trainer(path: Path, **lora: Any) -> LocalTrainer:
    method = make_method(train_settings({"method": "binary"}))
    return LocalTrainer(str(path), method, TrainConfig(lora={"rank": 2, **lora}))


def gemma2(folder: Path, **caps: float | None) -> Path:
    """transformers has no fused attention for it."""
    Gemma2ForCausalLM(Gemma2Config(**SHAPE, sliding_window=4, **caps)).save_pretrained(folder)
    return folder


def test_a_model_without_fused_attention_is_loaded(tmp_path: Path) -> None:
    uncapped = gemma2(tmp_path / "a", final_logit_softcapping=None, attn_logit_softcapping=None)
    assert trainer(uncapped)._runner.uses_tree
    scores = gemma2(tmp_path / "b", final_logit_softcapping=None, attn_logit_softcapping=5.0)
    assert not trainer(scores)._runner.uses_tree, (
        "what bends scores is left to the model's own attention"
    )


def test_a_logit_cap_is_recognised(tmp_path: Path) -> None:
    made = trainer(gemma2(tmp_path))
    assert made._runner._logit_transform.cap == 30


def test_layers_that_cannot_be_called_without_the_head_are_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("modernbert-decoder", **SHAPE, pad_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="this modernbert-decoder model cannot be trained here"):
        trainer(tmp_path)


def experts(kind: str) -> Any:
    """Routers that are modules of their own, that are a kind of linear layer, and that hold one."""
    if kind == "qwen3_moe":
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
        )
    if kind == "phimoe":
        return PhimoeForCausalLM(PhimoeConfig(**SHAPE, num_local_experts=4))
    return HunYuanMoEV1ForCausalLM(HunYuanMoEV1Config(**SHAPE, num_experts=4, moe_topk=2))


@pytest.mark.parametrize("kind", ["qwen3_moe", "phimoe", "hunyuan"])
def test_experts_are_refused_with_layers_that_can_be_named(kind: str, tmp_path: Path) -> None:
    experts(kind).save_pretrained(tmp_path)
    wanted = r"serve adapters of linear layers only. Name only linear layers: train.lora.targets \[(.*)\]"
    with pytest.raises(ConfigError, match=wanted) as refused:
        trainer(tmp_path)
    named = str(refused.value).split("[")[1].rstrip("]").split(", ")
    assert named == ["k_proj", "o_proj", "q_proj", "v_proj", *(["wg"] if kind == "hunyuan" else [])]
    assert trainer(tmp_path, targets=named)._runner.uses_tree


@pytest.mark.parametrize(
    ("family", "what"),
    [("hunyuan_v1_moe", "HunYuanMoEV1Experts"), ("phimoe", "PhimoeTopKRouter"), ("falcon", None)],
)
def test_a_layer_that_is_not_linear_is_refused(
    tmp_path: Path, family: str, what: str | None
) -> None:
    """Experts behind a plain router, and a router that is a linear layer by its kind. Falcon's own kind is one."""
    small = {k: v for k, v in SHAPE.items() if family != "falcon" or k != "head_dim"}
    config = AutoConfig.for_model(family, **small, num_experts=4, num_local_experts=4, moe_topk=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    if what is None:
        trainer(tmp_path)
        return
    with pytest.raises(
        ConfigError, match=rf"is a {what}; engines serve .* train.lora.targets \[(.*)\]"
    ) as refused:
        trainer(tmp_path)
    named = str(refused.value).split("[")[1].rstrip("]").split(", ")
    trainer(tmp_path, targets=named)


def test_a_leaking_state_is_detected(tmp_path: Path) -> None:
    """Convolutions below a head that finds every token about as likely: branches would see their neighbours."""
    torch.manual_seed(0)
    config = Lfm2Config(
        **SHAPE | {"initializer_range": 0.02}, layer_types=["conv", "full_attention"]
    )
    Lfm2ForCausalLM(config).save_pretrained(tmp_path)
    assert not trainer(tmp_path)._runner.uses_tree
