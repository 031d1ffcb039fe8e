"""Digest of a policy folder. The trainer writes it to the store; the engine checks it before it loads the folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from errno import ENOENT
from hashlib import sha256
from pathlib import Path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_CONFIG = "config.json"  # written by transformers with full weights
WEIGHT_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
"""The files of a PEFT adapter folder that determine its output, sorted."""
_BLOCK_BYTES = 2**22  # bytes


def digest_of_parts(parts: Mapping[str, bytes | bytearray]) -> str:
    """Return the sha256 (hex) over the sorted names, each with the length and bytes of its file."""
    return _hash_parts((name, len(parts[name]), (parts[name],)) for name in sorted(parts))


def weight_files(folder: str | Path) -> tuple[str, ...]:
    """Return the sorted names of the adapter files or, without an adapter, of the safetensors files.

    The result is empty if only the model's configuration is left, after old full weights were pruned.
    """
    path = Path(folder)
    if (path / ADAPTER_CONFIG).exists():
        return WEIGHT_FILES
    found = tuple(sorted(file.name for file in path.glob("*.safetensors")))
    return found if found or (path / MODEL_CONFIG).exists() else WEIGHT_FILES


def digest_of_folder(folder: str | Path) -> str:
    """Return `Policy.digest` of a policy folder. Raises `FileNotFoundError` if one of the files is missing."""
    if not weight_files(folder):
        raise FileNotFoundError(ENOENT, "its weights are no longer kept", str(folder))
    files = [Path(folder) / name for name in weight_files(folder)]
    return _hash_parts((file.name, file.stat().st_size, _read_blocks(file)) for file in files)


def _hash_parts(parts: Iterable[tuple[str, int, Iterable[bytes | bytearray]]]) -> str:
    digest = sha256()
    for name, size, blocks in parts:
        digest.update(name.encode() + b"\0" + size.to_bytes(8, "little"))
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()


def _read_blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            yield block
