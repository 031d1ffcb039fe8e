"""The safetensors files of a model folder, tensor by tensor. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import ModelError
from openclaw_rl.render.model_check import read_header
from openclaw_rl.render.model_folder import ModelFiles, read_json_object

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number, by the safetensors name of its type, of the types that can be changed into one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file. `begin`: offset of its first byte in the file; `size`: bytes."""

    name: str
    dtype: str  # safetensors name: F32, BF16, ...
    shape: tuple[int, ...]
    begin: int
    size: int

    def size_as(self, dtype: str | None) -> int:
        """Return the bytes that the tensor needs as `dtype`; only floating point types are changed."""
        if dtype is None or self.dtype not in FLOAT_BYTES:
            return self.size
        return self.size // FLOAT_BYTES[self.dtype] * FLOAT_BYTES[dtype]

    def dtype_as(self, dtype: str | None) -> str:
        """Return the type that the tensor has after a change to `dtype`."""
        return dtype if dtype is not None and self.dtype in FLOAT_BYTES else self.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One safetensors file, with its tensors in the order of their data."""

    path: Path
    tensors: tuple[StoredTensor, ...]


def _refuse_quantized(files: ModelFiles) -> None:
    quantization = files.config.get("quantization_config")
    if not quantization:
        return
    fields = quantization if isinstance(quantization, dict) else {}
    method = fields.get("quant_method", "unknown")
    raise ModelError(
        f"{files.folder}: the base is quantized ({method}), and an adapter cannot be folded into packed weights. "
        "Give the base in 16 or 32 bits"
    )


def read_shards(files: ModelFiles) -> list[Shard]:
    """Return the weight files that transformers loads. Only their headers are read.

    Raises `ModelError` for a folder without safetensors files, a damaged file, and a quantized model.
    """
    _refuse_quantized(files)
    index = read_json_object(files.folder / INDEX_FILE).get("weight_map")
    if isinstance(index, dict) and index:
        names = sorted({str(name) for name in index.values()})
    elif (files.folder / SINGLE_FILE).is_file():
        names = [SINGLE_FILE]
    else:
        names = sorted(path.name for path in files.weights if path.suffix == ".safetensors")
    if not names:
        raise ModelError(
            f"{files.folder}: no *.safetensors there. Save the base with transformers' `save_pretrained` first, which "
            "writes them"
        )
    return [_read_shard(files.folder / name) for name in names]


def _read_shard(path: Path) -> Shard:
    try:
        header = read_header(path)
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}). Is the model folder complete?"
        ) from None
    tensors = []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors.append(
            StoredTensor(
                name=name,
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                begin=start + begin,
                size=end - begin,
            )
        )
    return Shard(
        path=path, tensors=tuple(sorted(tensors, key=lambda tensor: (tensor.begin, tensor.name)))
    )
