"""Random LoRA adapters in PEFT's layout for a model's query and value projections, to test engines. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, digest_of_folder
from openclaw_rl.types import PolicyRef

TARGET_MODULES = ("q_proj", "v_proj")


def write_random_adapter(weights: Sequence[Path], folder: Path, *, version: int, rank: int) -> PolicyRef | None:
    """Write a random adapter, seeded by `version`. Returns None if the model has no such projections.

    It changes each projection's output for a normalised input by about half, so that versions clearly differ.
    """
    shapes = dict(_read_projections(weights))
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
        "bias": "none", "target_modules": list(TARGET_MODULES), "base_model_name_or_path": str(weights[0].parent),
    }  # fmt: skip
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings))
    (folder / ADAPTER_WEIGHTS).write_bytes(_encode_safetensors(tensors))
    return PolicyRef(version=version, path=str(folder), digest=digest_of_folder(folder))


def _read_projections(weights: Sequence[Path]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (module, (out, in)) of the projections, from the headers of the weight files."""
    for file in weights:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header: Mapping[str, Mapping[str, list[int]]] = json.loads(stream.read(size))
        for name, told in header.items():
            module = name.removesuffix(".weight")
            if module != name and module.endswith(TARGET_MODULES) and len(told["shape"]) == 2:
                yield module, (told["shape"][0], told["shape"][1])


def _encode_safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(v.tobytes() for v in tensors.values())
