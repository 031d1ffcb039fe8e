"""The digest of a policy folder: what the trainer writes into the store and the engine checks before it serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from errno import ENOENT
from hashlib import sha256
from pathlib import Path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_CONFIG = "config.json"  # of a model as transformers saves it
WEIGHT_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
"""The files of an adapter's folder that decide what it answers (PEFT's layout), sorted."""
_BLOCK = 2**22  # bytes


def digest_of_parts(parts: Mapping[str, bytes | bytearray]) -> str:
    """sha256 (hex) over the sorted names, each with its length and its bytes."""
    return _digest((name, len(parts[name]), (parts[name],)) for name in sorted(parts))


def weight_files(folder: str | Path) -> tuple[str, ...]:
    """The names, sorted: of an adapter's files, or of full weights where there is no adapter (safetensors).

    None where a model's settings are all that is left: old full weights are thinned out.
    """
    path = Path(folder)
    if (path / ADAPTER_CONFIG).exists():
        return WEIGHT_FILES
    found = tuple(sorted(file.name for file in path.glob("*.safetensors")))
    return found if found or (path / MODEL_CONFIG).exists() else WEIGHT_FILES


def digest_of(folder: str | Path) -> str:
    """`types.Policy.digest` of a policy folder. Raises `FileNotFoundError` when one of the files is missing."""
    if not weight_files(folder):
        raise FileNotFoundError(ENOENT, "its weights are no longer kept", str(folder))
    files = [Path(folder) / name for name in weight_files(folder)]
    return _digest((file.name, file.stat().st_size, _blocks(file)) for file in files)


def _digest(parts: Iterable[tuple[str, int, Iterable[bytes | bytearray]]]) -> str:
    digest = sha256()
    for name, size, blocks in parts:
        digest.update(name.encode() + b"\0" + size.to_bytes(8, "little"))
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            yield block
