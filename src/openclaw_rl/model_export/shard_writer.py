"""Write the files of merged weights, a block of rows at a time: memory does not grow with the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from openclaw_rl.errors import ModelError
from openclaw_rl.model_export.adapter_updates import TORCH_TYPES, Factors, WeightUpdate
from openclaw_rl.model_export.base_weights import FLOAT_BYTES, Shard, StoredTensor

BLOCK_BYTES = 2**25
"""Bytes that are read from the base at once."""


def header_of(shard: Shard, dtype: str | None) -> bytes:
    """Return the header of the written file: 8 bytes of length, then JSON. `dtype`: of its numbers; None: unchanged."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in shard.tensors:
        begin = end
        end = end + tensor.size_as(dtype)
        header[tensor.name] = {
            "dtype": tensor.dtype_as(dtype),
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def shard_size(shard: Shard, dtype: str | None) -> int:
    """Return the bytes of the written file."""
    return len(header_of(shard, dtype)) + sum(tensor.size_as(dtype) for tensor in shard.tensors)


def write_shard(
    shard: Shard,
    target: Path,
    updates: Mapping[str, WeightUpdate],
    *,
    dtype: str | None,
    on_bytes: Callable[[int], None],
) -> None:
    """Write a file of the base with the updates of its tensors.

    `updates`: by the tensor's name; `dtype`: safetensors name of the type of the written numbers, None as in the base;
    `on_bytes` gets the number of bytes of each block that was written. Raises `ModelError` for a number that `dtype`
    cannot hold, `OSError`.
    """
    with shard.path.open("rb") as source, target.open("wb") as out:
        out.write(header_of(shard, dtype))
        for tensor in shard.tensors:
            source.seek(tensor.begin)
            update = updates.get(tensor.name)
            blocks: Iterator[bytes | memoryview]
            if update is None and tensor.dtype_as(dtype) == tensor.dtype:
                blocks = _read_blocks(source, tensor.size, BLOCK_BYTES)
            else:
                blocks = _changed_blocks(source, tensor, update, tensor.dtype_as(dtype))
            for block in blocks:
                out.write(block)
                on_bytes(len(block))


def _read_blocks(source: BinaryIO, size: int, block_size: int) -> Iterator[bytes]:
    while size > 0:
        block = source.read(min(block_size, size))
        if not block:
            raise ModelError(
                f"{source.name}: the file became shorter while it was read. Get the file again"
            )
        size -= len(block)
        yield block


def _changed_blocks(
    source: BinaryIO, tensor: StoredTensor, update: WeightUpdate | None, dtype: str
) -> Iterator[memoryview]:
    """Yield the bytes of the changed tensor, computed in float32, or in float64 if it is stored so."""
    columns = tensor.shape[-1] if tensor.shape else 1
    row_bytes = max(columns * FLOAT_BYTES[tensor.dtype], 1)
    rows_at_once = max(BLOCK_BYTES // row_bytes, 1)
    exact = torch.float64 if tensor.dtype == "F64" else torch.float32
    factors = None if update is None else update.read_factors(exact)
    first = 0
    for block in _read_blocks(source, tensor.size, rows_at_once * row_bytes):
        stored = torch.frombuffer(bytearray(block), dtype=TORCH_TYPES[tensor.dtype]).reshape(
            -1, columns
        )
        values = stored.to(exact)
        if factors is not None:
            values += _rows_of_product(factors, first, len(values))
        first += len(values)
        written = values.to(TORCH_TYPES[dtype])
        if not written.isfinite().all() and stored.isfinite().all():
            raise ModelError(
                f"{tensor.name}: a merged weight is too large for {dtype}. Give another type, such as --dtype float32"
            )
        yield written.contiguous().view(torch.uint8).numpy().reshape(-1).data


def _rows_of_product(factors: Factors, first: int, count: int) -> torch.Tensor:
    return factors.left[first : first + count] @ factors.right
