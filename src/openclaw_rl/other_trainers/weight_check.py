"""Check of weights that another program wrote. A version that no engine can load would be the head and never answer."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, visible_files, weight_files
from openclaw_rl.common.progress import record_progress
from openclaw_rl.engines.adapter_file import (
    AdapterFile,
    RawTensor,
    check_fits_base,
    parse_safetensors,
    read_adapter,
)
from openclaw_rl.errors import EngineError, ModelError
from openclaw_rl.types import PolicyRef

_EXPONENT_BITS = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
"""Of each dtype: all are set where a number is infinite or NaN."""
_BLOCK_BYTES = 1 << 24


def _check_plain(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_symlink() or not path.is_file():
            raise ModelError(f"{path.name}: expected plain files in the folder of the batch")


def check_weight_files(folder: Path, max_rank: int | None) -> None:
    """Raise `ModelError` unless the folder has weights of the kind that `train.finetune` says, in plain files.

    `max_rank`: of an adapter, for which the engine has space; None: full weights.
    """
    _check_plain(visible_files(folder))
    names = {path.name for path in visible_files(folder)}
    missing = [name for name in weight_files(folder) if name not in names]
    if missing:
        raise ModelError(
            f"the folder of the batch has no {missing[0]}: expected what `save_pretrained` of peft writes"
        )
    if (max_rank is None) == (ADAPTER_CONFIG in names):
        kind = "full weights" if max_rank is None else "an adapter"
        raise ModelError(f"train.finetune says {kind}, and the trainer wrote something else")
    if max_rank is not None:
        _check_rank(_configured_rank(folder), max_rank)


def check_weights(ref: PolicyRef, *, base: str, max_rank: int | None) -> None:
    """Raise `ModelError` unless engines can load the weights: whole, of the base's shapes, and finite.

    `base`: folder of the base model; `max_rank`: as for `check_weight_files`, which comes first.
    """
    assert ref.path is not None
    try:
        if max_rank is not None:
            _check_adapter(read_adapter(ref), base, max_rank)
            return
        for name in weight_files(ref.path):
            _check_full_weights(Path(ref.path) / name)
    except EngineError as error:
        raise ModelError(str(error)) from error


def _check_adapter(file: AdapterFile, base: str, max_rank: int) -> None:
    check_fits_base(file, base, advice="Train an adapter of this base")
    _check_rank(file.rank, max_rank)
    for module, pair in file.pairs.items():
        if module.startswith("base_model.model."):
            raise ModelError(
                f"the adapter is of {module}: peft wrapped the model twice. Wrap it once"
            )
        try:
            scale = file.scale(module)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{ADAPTER_CONFIG} has no lora_alpha for {module}: {error}") from error
        unknown = [tensor.dtype for tensor in pair if tensor.dtype not in _EXPONENT_BITS]
        if unknown:
            raise ModelError(
                f"{module} has the type {unknown[0]}; expected one of {', '.join(_EXPONENT_BITS)}"
            )
        if not math.isfinite(scale):
            raise ModelError(f"{module}: the scale of the adapter is {scale}")
        _check_finite(memoryview(file.buffer), [(module, tensor) for tensor in pair])


def _check_full_weights(path: Path) -> None:
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise ModelError(f"{path.name} is empty")
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as raw,
        ):
            tensors = parse_safetensors(path, raw)
            _check_finite(
                raw,
                [
                    (name, tensor)
                    for name, tensor in tensors.items()
                    if tensor.dtype in _EXPONENT_BITS
                ],
            )


def _check_finite(raw: memoryview, tensors: Iterable[tuple[str, RawTensor]]) -> None:
    """Raise `ModelError` with the name of the first tensor that has an infinite value or NaN."""
    for name, tensor in tensors:
        kind, bits = _EXPONENT_BITS[tensor.dtype]
        count = math.prod(tensor.shape)
        step = _BLOCK_BYTES // np.dtype(kind).itemsize
        for first in range(0, count, step):
            offset = tensor.begin + first * np.dtype(kind).itemsize
            numbers = np.frombuffer(raw, dtype=kind, count=min(step, count - first), offset=offset)
            is_finite = bool(((numbers & kind(bits)) != bits).all())
            # A view: the file cannot be closed beneath it.
            del numbers
            if not is_finite:
                raise ModelError(f"the weights of {name} have values that are not finite")
            record_progress()


def _configured_rank(folder: Path) -> object:
    try:
        return json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))["r"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{ADAPTER_CONFIG} cannot be read: {error!r}") from error


def _check_rank(rank: object, max_rank: int) -> None:
    if not isinstance(rank, int) or not 0 < rank <= max_rank:
        raise ModelError(
            f"the adapter has rank {rank!r}; the engine has space for train.lora.rank {max_rank}"
        )
