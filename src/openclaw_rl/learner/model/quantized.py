"""Frozen 4-bit base under a float32 adapter (QLoRA, arXiv:2305.14314): NF4 blocks of 64, with 8-bit scales.

Only the linear layers of the decoder are in 4 bits, and each is dequantized while it is in use. Embeddings, norms and
head are not quantized.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BitsAndBytesConfig

from openclaw_rl.errors import ConfigError
from openclaw_rl.learner.model import peft_adapter
from openclaw_rl.settings.load import ModelConfig
from openclaw_rl.settings.specs import is_installed


def load_quantized_base(path: str, model: ModelConfig) -> Any:
    """Load the base in 4 bits, else like `peft_adapter.load_base`. Raises `ConfigError` without bitsandbytes."""
    if not is_installed("bitsandbytes"):
        raise ConfigError(
            "train.base_quantization_bits 4 needs bitsandbytes, which is not installed. Install "
            '"openclaw-rl[qlora]", or set train.base_quantization_bits 16'
        )
    auto = torch.float32 if peft_adapter.resolve_device(model).type == "cpu" else torch.bfloat16
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=auto if model.dtype == "auto" else getattr(torch, model.dtype),
    )
    base = peft_adapter.load_base(path, model, quantization)
    for module in base.modules():
        # On CPUs with AVX512-BF16 a forward pass in eval mode repacks the weights in place, and fails on narrow layers.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return base
