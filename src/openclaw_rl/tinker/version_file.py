"""`tinker_version.json`: the file of a policy version whose weights the Tinker service holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from openclaw_rl.common.policy_digest import TINKER_FILE, digest_of_folder
from openclaw_rl.errors import EngineError
from openclaw_rl.types import PolicyRef


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerVersion:
    """Where the service holds the weights of a version."""

    base: str  # name of the base model at the service
    rank: int
    sampler: str  # tinker://... path of the weights for sampling
    state: str  # tinker://... path of weights and optimizer state, from which the next step starts


def encode_version(version: TinkerVersion) -> bytes:
    """Return the content of `tinker_version.json`."""
    return msgspec.json.format(msgspec.json.encode(asdict(version)), indent=2)


def read_version(ref: PolicyRef) -> TinkerVersion:
    """Read and check the file of a version. Raises `EngineError` if it is missing, changed or of another trainer."""
    assert ref.path is not None
    file = Path(ref.path) / TINKER_FILE
    if not file.exists():
        raise EngineError(
            f"version {ref.version}: {file} is missing. Tinker serves versions that it trained (train.trainer tinker); "
            "it cannot load the weights of another trainer. Roll back to one of its own, or to the base "
            "(`openclaw-rl rollback 0`)"
        )
    try:
        digest = digest_of_folder(ref.path)
        version = msgspec.json.decode(file.read_bytes(), type=TinkerVersion)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineError(f"version {ref.version}: {file} cannot be read ({error})") from None
    if digest != ref.digest:
        raise EngineError(
            f"version {ref.version}: the digest of {file} is {digest[:12]}, expected {ref.digest[:12]}: it was "
            "changed. Restore it, or roll back"
        )
    return version
