"""Read a policy folder once, so that the checked bytes are the served bytes. Imports no torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from openclaw_rl.common.policy_digest import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    WEIGHT_FILES,
    digest_of_folder,
    digest_of_parts,
    weight_files,
)
from openclaw_rl.errors import EngineError
from openclaw_rl.types import PolicyRef

_LORA_WEIGHT_NAME = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")
_LAYER_NUMBER = re.compile(r"\.\d+\.")
_UNPACKED_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of an element, of dtypes with one number per element; packed (quantized) dtypes have several."""
_UNSUPPORTED_OPTIONS = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save",
    "trainable_token_indices": "trainable tokens",
    "layer_replication": "layer replication",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """One tensor of a safetensors file. `begin`: offset of its first byte in the file's buffer."""

    dtype: str  # safetensors name: F32, BF16, ...
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """A checked LoRA adapter. `pairs`: module name -> (A [rank, in], B [out, rank])."""

    ref: PolicyRef
    buffer: bytearray
    pairs: dict[str, tuple[RawTensor, RawTensor]]
    config: dict[str, Any]

    @property
    def rank(self) -> int:
        """Largest rank over all modules."""
        return max(a.shape[0] for a, _ in self.pairs.values())

    def scale(self, module: str) -> float:
        """Return the scale of a module's update: alpha / rank, or alpha / sqrt(rank) for rsLoRA (arXiv:2312.03732)."""
        rank = self.pairs[module][0].shape[0]
        patterns = self.config.get("alpha_pattern") or {}
        default = self.config.get("lora_alpha", rank)
        # PEFT's rule: the first pattern that matches the end of the name, starting at a dot
        matches = [
            value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)
        ]
        alpha = matches[0] if matches else default
        divisor = math.sqrt(rank) if self.config.get("use_rslora") else rank
        return float(alpha) / divisor


def read_adapter(ref: PolicyRef) -> AdapterFile:
    """Read and check an adapter folder. Raise `EngineError`, with file and expectation, if it is invalid."""
    assert ref.path is not None
    folder = Path(ref.path)
    parts = {}
    for name in WEIGHT_FILES:
        try:
            parts[name] = _read_file(folder / name)
        except OSError as error:
            raise EngineError(
                f"version {ref.version}: {folder / name} cannot be read ({error.strerror}). A policy folder contains "
                f"{' and '.join(WEIGHT_FILES)}. Restore it, or roll back to a version that has both."
            ) from None
    _check_digest(ref, digest_of_parts(parts))
    config = _parse_config(folder / ADAPTER_CONFIG, parts[ADAPTER_CONFIG])
    weights = parts[ADAPTER_WEIGHTS]
    return AdapterFile(
        ref=ref, buffer=weights, pairs=_lora_pairs(folder / ADAPTER_WEIGHTS, weights), config=config
    )


def absolute_path(ref: PolicyRef) -> str:
    """Return the absolute path of a version's folder, for servers with another working directory."""
    assert ref.path is not None
    return str(Path(ref.path).absolute())


def check_fits_base(
    file: AdapterFile, base: str, *, advice: str = "Roll back, or serve its own base"
) -> None:
    """Compare the shapes of an adapter with the weight files in the folder `base`. Raise `EngineError` on a mismatch.

    A module that is absent from the base's files is an error only if another layer has a module of that name: heads can
    be tied to embeddings, and some programs rename modules. Packed (quantized) weights and missing folders are skipped.
    """
    shapes = matrix_shapes(Path(base)) if base else {}
    if not shapes:
        return
    kinds = {_LAYER_NUMBER.sub(".N.", name) for name in shapes}
    where = f"version {file.ref.version}: {file.ref.path} does not fit the base {base}"
    for module, (a, b) in file.pairs.items():
        name = f"{module}.weight"
        shape = (b.shape[0], a.shape[1])
        expected = shapes.get(name, shape)
        if name not in shapes and _LAYER_NUMBER.sub(".N.", name) in kinds:
            raise EngineError(
                f"{where}: {module} is adapted, but the base has no such layer. {advice}"
            )
        if shape != expected:
            raise EngineError(
                f"{where}: {module} has [out, in] {list(shape)}, expected {list(expected)}. {advice}"
            )


def matrix_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape for the matrices in a folder's safetensors files; reads only the headers."""
    out: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            header = msgspec.json.decode(
                stream.read(int.from_bytes(stream.read(8), "little")), type=dict[str, Any]
            )
        header.pop("__metadata__", None)
        for name, entry in header.items():
            is_matrix = len(entry["shape"]) == 2
            if is_matrix and entry["dtype"] in _UNPACKED_DTYPES:
                out[name] = tuple(entry["shape"])
    return out


def write_identity_adapter(file: AdapterFile, folder: Path) -> PolicyRef:
    """Write an adapter of the same shape with all-zero weights below `folder`. Return it as version 0."""
    weights = bytearray(file.buffer)
    start = min(tensor.begin for pair in file.pairs.values() for tensor in pair)
    weights[start:] = bytes(len(weights) - start)
    parts = {ADAPTER_CONFIG: msgspec.json.encode(file.config), ADAPTER_WEIGHTS: bytes(weights)}
    digest = digest_of_parts(parts)
    path = folder / f"identity-{digest[:16]}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, raw in parts.items():
        (path / name).write_bytes(raw)
    return PolicyRef(version=0, path=str(path), digest=digest)


def _check_digest(ref: PolicyRef, digest: str) -> None:
    if digest != ref.digest:
        raise EngineError(
            f"version {ref.version}: the files in {ref.path} have digest {digest}, expected {ref.digest or '(none)'}. "
            "The files were changed after training. Restore them, or roll back."
        )


def has_full_weights(folder: str | Path) -> bool:
    """Return whether `folder` contains full weights (safetensors files, and no adapter)."""
    return weight_files(folder) != WEIGHT_FILES


def check_full_weights(ref: PolicyRef) -> None:
    """Raise `EngineError` if a folder of full weights does not match its digest."""
    assert ref.path is not None
    try:
        digest = digest_of_folder(ref.path)
    except OSError as error:
        raise EngineError(
            f"version {ref.version}: {ref.path} cannot be read ({error.strerror}; full weights are kept only for "
            "the newest train.checkpoint.keep versions). Choose a newer version, or roll back to one"
        ) from None
    _check_digest(ref, digest)


def _read_file(path: Path) -> bytearray:
    """Return a file's bytes as a writable buffer: torch warns about read-only ones. Releases the GIL while reading."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(path.stat().st_size)
        view = memoryview(buffer)
        at = 0
        while at < len(buffer):
            count = file.readinto(view[at:])
            if not count:
                break
            at += count
        return buffer


def _parse_config(path: Path, raw: bytearray) -> dict[str, Any]:
    try:
        config = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise EngineError(
            f"{path}: expected PEFT adapter settings as a JSON object: {error}"
        ) from None
    if config.get("peft_type") != "LORA":
        raise EngineError(f"{path}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
    for key, feature in _UNSUPPORTED_OPTIONS.items():
        if config.get(key):
            raise EngineError(
                f"{path}: {key} is set, but engines serve plain LoRA only, not {feature}"
            )
    return config


def _lora_pairs(path: Path, raw: bytearray) -> dict[str, tuple[RawTensor, RawTensor]]:
    sides: dict[str, dict[str, RawTensor]] = {}
    for name, tensor in parse_safetensors(path, raw).items():
        match = _LORA_WEIGHT_NAME.match(name)
        if match is None:
            raise EngineError(
                f"{path}: {name!r} is not a LoRA matrix of a linear layer (expected ...lora_A/lora_B.weight)"
            )
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    pairs = {}
    for module, both in sides.items():
        if both.keys() != {"A", "B"}:
            raise EngineError(
                f"{path}: {module} has only lora_{next(iter(both))}, expected lora_A and lora_B"
            )
        a = both["A"]
        b = both["B"]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
            raise EngineError(
                f"{path}: {module}: lora_A {list(a.shape)} and lora_B {list(b.shape)} do not match "
                "(expected [rank, in] and [out, rank])"
            )
        pairs[module] = (a, b)
    if not pairs:
        raise EngineError(f"{path}: contains no LoRA matrices")
    return pairs


def parse_safetensors(path: Path, raw: bytearray | memoryview) -> dict[str, RawTensor]:
    """Parse the header of a safetensors file (8 bytes of length, JSON, data). Return name -> tensor.

    Raises `EngineError` if it is malformed, or if the data is shorter than it says. `path`: for messages.
    """
    start = 8 + int.from_bytes(raw[:8], "little")
    try:
        header = msgspec.json.decode(raw[8:start], type=dict[str, dict[str, Any]])
        header.pop("__metadata__", None)
        out = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if start + end > len(raw) or begin < 0:
                raise EngineError(
                    f"{path}: {name!r} extends beyond the file, which is truncated ({len(raw)} bytes)"
                )
            size = _UNPACKED_DTYPES.get(entry["dtype"])
            expected = None if size is None else size * math.prod(entry["shape"])
            if expected not in (None, end - begin):
                raise EngineError(
                    f"{path}: {name!r} has {end - begin} bytes, expected {expected} of its shape"
                )
            out[name] = RawTensor(
                dtype=entry["dtype"], shape=tuple(entry["shape"]), begin=start + begin
            )
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{path}: expected a safetensors file: {error}") from None
    return out
