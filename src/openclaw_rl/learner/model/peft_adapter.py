"""LoRA adapter in a base model, and its files on disk (PEFT layout)."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from openclaw_rl.errors import ConfigError, ModelError
from openclaw_rl.settings.load import LoraConfig, ModelConfig


def resolve_device(model: ModelConfig) -> torch.device:
    """Return the device of the settings; auto means the GPU if there is one."""
    if model.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(model.device)


def load_base(path: str, model: ModelConfig, quantization: Any = None) -> Any:
    """Load the base model. Dtype auto: float32 on a CPU, the dtype of the checkpoint on a GPU.

    `quantization`: transformers' quantization config for a base with fewer bits. Raises `ModelError`, also if a weight
    is missing in the files, which transformers would initialise at random.
    """
    device = resolve_device(model)
    transformers_logging.disable_progress_bar()
    dtype: str = model.dtype
    if dtype == "auto" and device.type == "cpu":
        dtype = "float32"
    placement: dict[str, Any] = {}
    if quantization is not None:
        placement = {"quantization_config": quantization, "device_map": {"": device}}
    try:
        base, info = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True, **placement
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be loaded as a causal language model: {error}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"{path}: {len(missing)} weights are missing in its files (the first: {missing[0]})"
        )
    return base if placement else base.to(device)


def attach_lora(base: Any, path: str, lora: LoraConfig, seed: int) -> Any:
    """Return a PEFT model over `base`. The adapter starts as the identity and depends only on the seed."""
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = PeftLoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=path,
        r=lora.rank,
        lora_alpha=int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Peft uses the old name.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        # Keys that peft itself adds.
        warnings.filterwarnings("ignore", "The following .*_pattern keys", RuntimeWarning)
        torch.manual_seed(seed)
        try:
            model = get_peft_model(base, config)
        except ValueError as error:
            raise ConfigError(
                f"train.lora.targets {targets!r} match no layers of {path}: {error}. Name its linear layers, or set "
                "all-linear"
            ) from error
    _check_linear(model, path, targets)
    patch_lora_dtype(model)
    model.peft_config["default"].base_model_name_or_path = path
    return model.eval()


def _check_linear(model: Any, path: str, targets: str | list[str]) -> None:
    """Raise `ConfigError` if an adapted layer is not linear, because no engine could serve the adapter.

    With all-linear, PEFT also adapts experts and routers, which are weights without a linear layer around them.
    """
    cure = "Remove it, or set all-linear"
    linear: list[str] = []
    wrong: dict[str, Any] = {}
    for name, module in model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        if _is_linear(module):
            linear.append(name.split(".")[-1])
        else:
            wrong[name] = module.get_base_layer()
    if not wrong:
        return
    if isinstance(targets, str):
        cure = f"Name only linear layers: train.lora.targets [{', '.join(sorted(set(linear)))}]"
    # Report experts first: they explain the problem better than the router before them.
    name = min(wrong, key=lambda name: isinstance(wrong[name], torch.nn.Linear))
    raise ConfigError(
        f"train.lora.targets: {name.removeprefix('base_model.model.')} of {path} is a "
        f"{type(wrong[name]).__name__}; engines serve adapters of linear layers only. {cure}"
    )


@torch.no_grad()
def _is_linear(adapted: LoraLayer) -> bool:
    """Return whether a layer acts as a linear layer; model-specific subclasses are tried, as routers do more."""
    base = adapted.base_layer
    if isinstance(adapted, ParamWrapper) or not isinstance(base, torch.nn.Linear | Conv1D):
        return False
    if not type(base).__module__.startswith("transformers.models."):
        return True
    try:
        out = base(base.weight.new_zeros(1, base.weight.shape[1]))
    except (RuntimeError, TypeError, ValueError):
        return False
    return isinstance(out, torch.Tensor) and out.shape == (1, base.weight.shape[0])


def to_files(model: Any) -> dict[str, bytes]:
    """Return the two files that `PeftModel.from_pretrained` reads; equal weights give equal bytes."""
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())}
    config = model.peft_config["default"].to_dict() | {"inference_mode": True}
    # PEFT stores module names in a set, whose order differs between processes.
    text = json.dumps(
        config,
        indent=2,
        sort_keys=True,
        default=lambda v: sorted(v) if isinstance(v, set) else str(v),
    )
    return {
        ADAPTER_WEIGHTS: save(tensors, metadata={"format": "pt"}),
        ADAPTER_CONFIG: text.encode(),
    }


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return a copy of the adapter's weights."""
    return {
        k: v.detach().clone()
        for k, v in get_peft_model_state_dict(model, save_embedding_layers=False).items()
    }


def set_adapter_tensors(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Set the adapter's weights from `state`. Raises `ModelError` if names or shapes differ."""
    expected = adapter_tensors(model)
    wrong = sorted(set(expected) ^ set(state))
    if not wrong:
        wrong = [name for name in expected if expected[name].shape != state[name].shape]
    if wrong:
        raise ModelError(
            f"the adapter's weights do not fit the base model: {len(wrong)} tensors are missing, unknown or have "
            f"another shape (the first: {wrong[0]}). Train from the base that the adapter was made for."
        )
    set_peft_model_state_dict(model, dict(state))


def read_adapter(model: Any, folder: Path) -> None:
    """Load the adapter from `folder`. Raises `ConfigError` if rank or alpha differ from the settings."""
    try:
        theirs = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        state = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: cannot read the policy's adapter: {error}") from error
    ours = model.peft_config["default"]
    for key, setting in (("r", "rank"), ("lora_alpha", "alpha")):
        if theirs[key] != getattr(ours, key):
            raise ConfigError(
                f"{folder}: the policy was trained with train.lora.{setting} {theirs[key]}, but the settings say "
                f"{getattr(ours, key)}. Set train.lora.{setting} back, or start from the base in a new home."
            )
    set_adapter_tensors(model, state)


ADAPTER_NAME = "default"


def patch_lora_dtype(model: Any) -> None:
    """Make adapted linear layers compute in the dtype of the base. Changes nothing for float32 and wider bases."""
    for module in model.modules():
        if isinstance(module, LoraLayer) and ADAPTER_NAME in module.lora_A:
            module.__class__ = _patched_class(type(module))  # type: ignore[arg-type]


@cache
def _patched_class(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """Return a subclass with `_lora_forward`. One class for all layers lets them share compiled code."""
    return type(kind.__name__, (kind,), {"forward": _lora_forward})


def _lora_forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Map [..., in] to [..., out]; the adapter's two weights are [rank, in] and [out, rank]."""
    out = layer.base_layer(x)
    if layer.disable_adapters:
        return out  # type: ignore[no-any-return]
    a = layer.lora_A[ADAPTER_NAME].weight
    b = layer.lora_B[ADAPTER_NAME].weight
    scale = layer.scaling[ADAPTER_NAME]
    low = functional.linear(layer.lora_dropout[ADAPTER_NAME](x.to(out.dtype)), a.to(out.dtype))
    # Scale the smallest tensor.
    if out.dtype in (torch.bfloat16, torch.float16):
        return out + functional.linear(low * scale, b.to(out.dtype))  # type: ignore[no-any-return]
    return out + functional.linear(low, b) * scale  # type: ignore[no-any-return]
