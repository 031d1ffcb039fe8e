"""A policy's folder: whole or not there at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
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


def write_folder(out: Path, files: Mapping[str, bytes], fill: Callable[[Path], None] | None = None) -> None:
    """Write beside `out`, sync every file and the folder, then rename into place. Raises `FileExistsError`.

    `fill` writes what is too large to be handed over as bytes into the folder that it is given.
    """
    if out.exists():
        raise FileExistsError(f"{out}: there already; a policy's folder is written once")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, mode=0o700)
    if fill is not None:
        fill(temporary)
    for name, raw in files.items():
        (temporary / name).write_bytes(raw)
    for file in temporary.iterdir():
        _sync(file)
    _sync(temporary)
    temporary.rename(out)
    _sync(out.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
