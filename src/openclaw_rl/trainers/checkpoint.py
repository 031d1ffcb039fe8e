"""A policy's folder: whole or not there at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from openclaw_rl.errors import ModelError

OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "trainer.json"


def write_folder(out: Path, files: Mapping[str, bytes]) -> None:
    """Write beside `out`, sync every file and the folder, then rename into place. Raises `FileExistsError`."""
    if out.exists():
        raise FileExistsError(f"{out}: there already; a policy's folder is written once")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, mode=0o700)
    for name, raw in files.items():
        with (temporary / name).open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    _sync(temporary)
    temporary.rename(out)
    _sync(out.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def optimizer_bytes(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> bytes:
    """The optimizer's moments, each as `<moment>/<parameter>`."""
    tensors = {
        f"{moment}/{name}": torch.as_tensor(value).detach().cpu().contiguous()
        for name, parameter in parameters.items()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }
    raw: bytes = save(tensors)
    return raw


def read_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter], folder: Path
) -> bool:
    """Put the moments back. False when the folder no longer holds them (old ones are thinned out)."""
    file = folder / OPTIMIZER_FILE
    if not file.exists():
        return False
    for key, tensor in load_file(file).items():
        moment, _, name = key.partition("/")
        if name not in parameters:
            raise ModelError(f"{file}: holds a moment of {name!r}, which the adapter does not have")
        parameter = parameters[name]
        place = tensor if moment == "step" else tensor.to(parameter.device, parameter.dtype)
        optimizer.state[parameter][moment] = place
    return True


def read_state(folder: Path) -> dict[str, Any]:
    """What `trainer.json` says."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: cannot read the trainer's state: {error}") from error
    return state
