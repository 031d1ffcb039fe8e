"""Random LoRA adapters in PEFT's layout for a model's query and value projections, to test engines. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, digest_of_folder
from openclaw_rl.engines.adapter_file import matrix_shapes
from openclaw_rl.types import PolicyRef

TARGET_MODULES = ("q_proj", "v_proj")


def write_random_adapter(model: Path, folder: Path, *, version: int, rank: int) -> PolicyRef | None:
    """Write a random adapter for the model in a folder, seeded by `version`. Returns None without such projections.

    It changes each projection's output for a normalised input by about half, so that versions clearly differ.
    """
    target_weights = tuple(f"{name}.weight" for name in TARGET_MODULES)
    shapes = {
        name.removesuffix(".weight"): shape
        for name, shape in matrix_shapes(model).items()
        if name.endswith(target_weights)
    }
    if not shapes:
        return None
    rng = np.random.default_rng(version)
    tensors: dict[str, np.ndarray] = {}
    for module, (out, into) in sorted(shapes.items()):
        down = rng.normal(0, into**-0.5, (rank, into))
        up = rng.normal(0, 0.25 * rank**-0.5, (out, rank))
        for side, values in (("A", down), ("B", up)):
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = values.astype("<f4")
    folder.mkdir(parents=True)
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "target_modules": list(TARGET_MODULES), "base_model_name_or_path": str(model),
    }  # fmt: skip
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings))
    (folder / ADAPTER_WEIGHTS).write_bytes(_encode_safetensors(tensors))
    return PolicyRef(version=version, path=str(folder), digest=digest_of_folder(folder))


def _encode_safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    header = {}
    at = 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(v.tobytes() for v in tensors.values())
