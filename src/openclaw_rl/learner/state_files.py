"""The files of a policy's folder that only the trainer reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.errors import ModelError

OPTIMIZER_FILE = "optimizer.state"
"""In the layout of safetensors, but not called so: engines take every `*.safetensors` of a folder for weights."""
STATE_FILE = "trainer.json"
_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}


def write_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write in safetensors' layout, one tensor after the other.

    Nothing is held twice, and other threads run meanwhile (the library's own call holds them up until all is written,
    which may be longer than the trainer's lease).
    """
    header: dict[str, Any] = {}
    at = 0
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each is aligned
    for name in order:
        tensor = tensors[name]
        header[name] = {
            "dtype": _KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with file.open("wb") as out:
        out.write(len(raw).to_bytes(8, "little") + raw)
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            out.write(flat.view(torch.uint8).numpy().data)


def read_state(folder: Path) -> dict[str, Any]:
    """What `trainer.json` says."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: cannot read the trainer's state: {error}") from error
    return state
