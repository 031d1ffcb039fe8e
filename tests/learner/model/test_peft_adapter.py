"""What an adapted layer computes: PEFT's numbers in float32, half the precision's products over a base in bfloat16."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM

from openclaw_rl.learner.model import peft_adapter


def adapted(tiny: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """(PEFT's, ours) with the same weights."""
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=dtype)
    theirs = get_peft_model(
        base, PeftLoraConfig(r=4, lora_alpha=6, target_modules="all-linear")
    ).eval()
    torch.manual_seed(1)
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    ours = copy.deepcopy(theirs)
    peft_adapter.patch_lora_dtype(ours)
    return theirs, ours


def seen(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, gradients of the adapter)."""
    logits = model(input_ids=torch.arange(24)[None]).logits
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(logits.float().square().mean(), trained)
    assert all(g.dtype is torch.float32 for g in found) or model.dtype is torch.float64
    return logits.detach(), torch.cat([g.flatten() for g in found])


def test_the_lora_layer_equals_peft_in_float32(tiny: str) -> None:
    theirs, ours = adapted(tiny, torch.float32)
    for a, b in zip(seen(theirs), seen(ours), strict=True):
        assert torch.equal(a, b)
    with theirs.disable_adapter(), ours.disable_adapter(), torch.no_grad():
        ids = torch.arange(24)[None]
        assert torch.equal(theirs(input_ids=ids).logits, ours(input_ids=ids).logits)


def test_the_lora_layer_is_as_accurate_as_peft_in_half_precision(tiny: str) -> None:
    exact = adapted(tiny, torch.float32)[0]
    for parameter in exact.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16).float()
    truth = seen(exact)
    theirs, ours = (seen(model) for model in adapted(tiny, torch.bfloat16))
    for want, a, b in zip(truth, theirs, ours, strict=True):
        assert float((b.float() - want).norm()) < 1.5 * float((a.float() - want).norm())


@pytest.mark.parametrize("ours", [False, True], ids=["peft", "ours"])
def test_an_input_is_saved_once_in_its_dtype(tiny: str, ours: bool) -> None:
    model = adapted(tiny, torch.bfloat16)[ours]
    layer = model.base_model.model.model.layers[0]
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = (
            tensor.numel() * tensor.element_size() if tensor.ndim > 1 else 0
        )
        return tensor

    x = torch.randn(1, 4096, 32).to(torch.bfloat16).requires_grad_()
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        layer.self_attn.q_proj(x), layer.self_attn.k_proj(x), layer.self_attn.v_proj(x)
    inputs = sum(size for size in kept.values() if size >= x.numel() * 2)
    assert inputs == (x.numel() * 2 if ours else x.numel() * 4 * 3)
