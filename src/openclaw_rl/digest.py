"""The digest of a policy folder: what the trainer writes into the store and the engine checks before it serves."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
WEIGHT_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
"""The files of a policy folder that decide what it answers (PEFT's layout), sorted."""


def digest_of_parts(parts: Mapping[str, bytes | bytearray]) -> str:
    """sha256 (hex) over the sorted names, each with its length and its bytes."""
    digest = sha256()
    for name in sorted(parts):
        digest.update(name.encode() + b"\0" + len(parts[name]).to_bytes(8, "little"))
        digest.update(parts[name])
    return digest.hexdigest()


def digest_of(folder: str | Path) -> str:
    """`types.Policy.digest` of an adapter folder. Raises `FileNotFoundError` when one of the files is missing."""
    return digest_of_parts({name: (Path(folder) / name).read_bytes() for name in WEIGHT_FILES})
