"""Files in a policy folder that only the trainer reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import ModelError

STATE_FILE = "trainer.json"
_SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}


def write_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors in safetensors layout, one after the other.

    Makes no second copy of the data and lets other threads run. The library's own function blocks them until
    everything is written, which may take longer than the trainer's lease lasts.
    """
    header: dict[str, Any] = {}
    at = 0
    # Keeps each tensor aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        tensor = tensors[name]
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[tensor.dtype],
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
            record_progress()


def read_state(folder: Path) -> dict[str, Any]:
    """Return the content of `trainer.json`. Raises `ModelError` if it cannot be read."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: cannot read the trainer's state: {error}") from error
    return state
