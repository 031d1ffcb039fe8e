"""Export of a policy version as the adapter folder that Fireworks takes.

The service reads rank and target modules and may ignore every other field of `adapter_config.json`. So the scale
(alpha / rank) is multiplied into B, and alpha is the rank: the adapter has the same effect whatever is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from openclaw_rl.engines.adapter_file import AdapterFile, RawTensor
from openclaw_rl.errors import OpenClawError

MIN_RANK = 4
MAX_RANK = 64
TARGET_MODULES = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"),
    *("w1", "w2", "w3", "block_sparse_moe.gate"),
)
"""Modules that the service adapts (its page "Importing fine-tuned models")."""
# The chat template for the service's own chat API.
TEMPLATE_FILE = "fireworks.json"
_NUMPY_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterExport:
    """Files of an exported adapter by name. `rank` and `targets`: as in the model resource at the service."""

    files: Mapping[str, bytes]
    rank: int
    targets: tuple[str, ...]


def export_adapter(file: AdapterFile, *, base: str, template: str | None) -> AdapterExport:
    """Return a version in the layout of Fireworks. Raises `OpenClawError` with the reason if it does not take it.

    `base`: name of the base in the exported configuration; `template`: the chat template, if it is exported too.
    """
    version = file.ref.version
    ranks = {a.shape[0] for a, _ in file.pairs.values()}
    if len(ranks) > 1:
        raise OpenClawError(
            f"version {version} has modules of ranks {sorted(ranks)}, and Fireworks takes one rank for all. Train with "
            "one train.lora.rank"
        )
    rank = ranks.pop()
    if not MIN_RANK <= rank <= MAX_RANK:
        raise OpenClawError(
            f"version {version} has rank {rank}, and Fireworks takes {MIN_RANK} to {MAX_RANK}. Train with another "
            "train.lora.rank"
        )
    targets = _target_modules(file)
    tensors = {
        f"base_model.model.{m}.lora_{side}.weight": x
        for m in file.pairs
        for side, x in _scaled_pair(file, m)
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
        "inference_mode": True,
    }
    files = {
        ADAPTER_CONFIG: json.dumps(config, indent=2).encode(),
        ADAPTER_WEIGHTS: _to_safetensors(tensors),
    }
    if template is not None:
        style = {"style": "jinja", "args": {"template": template}}
        files[TEMPLATE_FILE] = json.dumps({"conversation_config": style}, indent=2).encode()
    return AdapterExport(files=files, rank=rank, targets=targets)


def write_export(export: AdapterExport, folder: Path) -> None:
    """Write the files to a new or empty folder. Raises `OpenClawError`."""
    if folder.exists() and not folder.is_dir():
        raise OpenClawError(
            f"{folder} exists, and is no folder. Name a folder; one that does not exist is made"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OpenClawError(
                f"{folder} is not empty, and nothing is overwritten. Name another folder"
            )
        for name, raw in export.files.items():
            (folder / name).write_bytes(raw)
    except OSError as error:
        raise OpenClawError(
            f"{folder}: the adapter cannot be written ({error.strerror}). Name another folder"
        ) from None


def _target_modules(file: AdapterFile) -> tuple[str, ...]:
    """Return the names of the adapted modules. Raises `OpenClawError` for one that the service does not adapt."""
    names: set[str] = set()
    for module in file.pairs:
        name = next((t for t in TARGET_MODULES if module == t or module.endswith(f".{t}")), None)
        if name is None:
            raise OpenClawError(
                f"version {file.ref.version} adapts {module}, and Fireworks adapts only {', '.join(TARGET_MODULES)}. "
                "Train with these as train.lora.targets"
            )
        names.add(name)
    return tuple(sorted(names))


def _scaled_pair(file: AdapterFile, module: str) -> list[tuple[str, NDArray[np.float32]]]:
    """Return A [rank, in] and B [out, rank] of a module in float32, with the scale in B."""
    a, b = (_read_tensor(file.buffer, raw) for raw in file.pairs[module])
    return [("A", a), ("B", (b * np.float32(file.scale(module))).astype(np.float32))]


def _read_tensor(buffer: bytearray, raw: RawTensor) -> NDArray[np.float32]:
    if raw.dtype not in _NUMPY_TYPES:
        raise OpenClawError(
            f"a matrix has the type {raw.dtype}, expected one of {', '.join(_NUMPY_TYPES)}"
        )
    matrix: NDArray[Any] = np.frombuffer(
        buffer, dtype=_NUMPY_TYPES[raw.dtype], count=int(np.prod(raw.shape)), offset=raw.begin
    ).reshape(raw.shape)
    # The upper half of a float32.
    if raw.dtype == "BF16":
        return (matrix.astype(np.uint32) << 16).view(np.float32)
    return matrix.astype(np.float32)


def _to_safetensors(tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return a safetensors file: 8 bytes of length, the JSON header, the data. Equal tensors give equal bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts = []
    end = 0
    for name in sorted(tensors):
        raw = np.ascontiguousarray(tensors[name]).astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensors[name].shape),
            "data_offsets": [end, end + len(raw)],
        }
        parts.append(raw)
        end += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)
