"""Reading a policy folder once, so that what is checked is what is served. Imports no torch."""

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
    digest_of,
    digest_of_parts,
    weight_files,
)
from openclaw_rl.errors import EngineError
from openclaw_rl.types import PolicyRef

_KEY = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")
_LAYER = re.compile(r"\.\d+\.")
_WHOLE = ("F64", "F32", "F16", "BF16")  # one number an element
_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save",
    "trainable_token_indices": "trainable tokens",
    "layer_replication": "layer replication",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """One tensor of a safetensors file: bytes [begin, end) of the file's buffer."""

    dtype: str  # as safetensors spells it: F32, BF16, ...
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """A checked adapter: for each module its A [rank, in] and B [out, rank], and the factor of the update."""

    ref: PolicyRef
    buffer: bytearray
    pairs: dict[str, tuple[RawTensor, RawTensor]]
    config: dict[str, Any]

    @property
    def rank(self) -> int:
        """The largest rank of any module."""
        return max(a.shape[0] for a, _ in self.pairs.values())

    def scale(self, module: str) -> float:
        """alpha / rank, or alpha / sqrt(rank) for rsLoRA (arXiv:2312.03732)."""
        rank = self.pairs[module][0].shape[0]
        alpha = _pattern(self.config.get("alpha_pattern") or {}, module, self.config.get("lora_alpha", rank))
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def _pattern(patterns: dict[str, Any], module: str, default: Any) -> Any:
    """PEFT's rule: the first pattern that ends the module's name at a dot."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def read(ref: PolicyRef) -> AdapterFile:
    """Read and check an adapter folder. Raises `EngineError` that names the file and what was expected."""
    assert ref.path is not None
    folder, parts = Path(ref.path), {}
    for name in WEIGHT_FILES:
        try:
            parts[name] = _slurp(folder / name)
        except OSError as error:
            raise EngineError(
                f"version {ref.version}: {folder / name} cannot be read ({error.strerror}). A policy folder holds "
                f"{' and '.join(WEIGHT_FILES)}; restore it, or roll back to a version that has them."
            ) from None
    _check_digest(ref, digest_of_parts(parts))
    config = _config(folder / ADAPTER_CONFIG, parts[ADAPTER_CONFIG])
    weights = parts[ADAPTER_WEIGHTS]
    return AdapterFile(ref=ref, buffer=weights, pairs=_pairs(folder / ADAPTER_WEIGHTS, weights), config=config)


def check_fits(file: AdapterFile, base: str) -> None:
    """Compare an adapter with the weights in the folder `base`, if that is here. Raises `EngineError`.

    A module that the base's files do not name is refused only where they name the same one of another layer: heads may
    be tied to embeddings, and programs rename. Packed weights (quantised ones) are not compared.
    """
    if not base or not (shapes := _shapes(Path(base))):
        return
    kinds = {_LAYER.sub(".N.", name) for name in shapes}
    for module, (a, b) in file.pairs.items():
        where = f"version {file.ref.version}: {file.ref.path} is no adapter of {base}: {module}"
        expected = shapes.get(f"{module}.weight")
        got = (b.shape[0], a.shape[1])
        if expected is None and _LAYER.sub(".N.", f"{module}.weight") in kinds:
            raise EngineError(f"{where} is adapted, and the base has no such layer. Roll back, or serve its own base")
        if expected is not None and got != expected:
            raise EngineError(
                f"{where} has [out, in] {list(got)}, expected {list(expected)}. Roll back, or serve its own base"
            )


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of the matrices in a folder's weight files, from their headers."""
    out: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            header = msgspec.json.decode(stream.read(int.from_bytes(stream.read(8), "little")), type=dict[str, Any])
        for name, told in header.items():
            if name != "__metadata__" and told["dtype"] in _WHOLE and len(told["shape"]) == 2:
                out[name] = tuple(told["shape"])
    return out


def write_identity(file: AdapterFile, folder: Path) -> PolicyRef:
    """An adapter of the same shape that changes nothing, as version 0, in a folder of its own under `folder`."""
    weights = bytearray(file.buffer)
    start = min(tensor.begin for pair in file.pairs.values() for tensor in pair)
    weights[start:] = bytes(len(weights) - start)
    parts = {ADAPTER_CONFIG: msgspec.json.encode(file.config), ADAPTER_WEIGHTS: bytes(weights)}
    digest = digest_of_parts(parts)
    made = folder / f"identity-{digest[:16]}"
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, raw in parts.items():
        (made / name).write_bytes(raw)
    return PolicyRef(version=0, path=str(made), digest=digest)


def _check_digest(ref: PolicyRef, digest: str) -> None:
    if digest != ref.digest:
        raise EngineError(
            f"version {ref.version}: the files in {ref.path} have digest {digest}, expected {ref.digest or '(none)'}. "
            "They were changed after training; restore them, or roll back."
        )


def holds_full_weights(folder: str | Path) -> bool:
    """Whether this is a folder of full weights (safetensors, and no adapter)."""
    return weight_files(folder) != WEIGHT_FILES


def check_full(ref: PolicyRef) -> None:
    """Compare a folder of full weights with its digest. Raises `EngineError`."""
    assert ref.path is not None
    try:
        digest = digest_of(ref.path)
    except OSError as error:
        raise EngineError(
            f"version {ref.version}: {ref.path} cannot be read ({error.strerror}; of whole models only the newest "
            "train.keep_checkpoints are). Name a newer version, or roll back to one"
        ) from None
    _check_digest(ref, digest)


def _slurp(path: Path) -> bytearray:
    """The file's bytes, writable (torch warns of read-only ones); reading lets other threads run."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(path.stat().st_size)
        view, at = memoryview(buffer), 0
        while at < len(buffer) and (n := file.readinto(view[at:])):
            at += n
        return buffer


def _config(path: Path, raw: bytearray) -> dict[str, Any]:
    try:
        config = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise EngineError(f"{path}: expected PEFT's adapter settings as a JSON object: {error}") from None
    if config.get("peft_type") != "LORA":
        raise EngineError(f"{path}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
    for key, words in _REFUSED.items():
        if config.get(key):
            raise EngineError(f"{path}: {key} is set; engines serve plain LoRA, not {words}")
    return config


def _pairs(path: Path, raw: bytearray) -> dict[str, tuple[RawTensor, RawTensor]]:
    sides: dict[str, dict[str, RawTensor]] = {}
    for name, tensor in _tensors(path, raw).items():
        found = _KEY.match(name)
        if found is None:
            raise EngineError(
                f"{path}: {name!r} is no LoRA matrix of a linear layer (expected ...lora_A/lora_B.weight)"
            )
        sides.setdefault(found["module"], {})[found["side"]] = tensor
    pairs = {}
    for module, both in sides.items():
        if both.keys() != {"A", "B"}:
            raise EngineError(f"{path}: {module} has only lora_{next(iter(both))}, expected lora_A and lora_B")
        a, b = both["A"], both["B"]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
            raise EngineError(
                f"{path}: {module}: lora_A {list(a.shape)} and lora_B {list(b.shape)} do not fit each other "
                "(expected [rank, in] and [out, rank])"
            )
        pairs[module] = (a, b)
    if not pairs:
        raise EngineError(f"{path}: holds no LoRA matrices")
    return pairs


def _tensors(path: Path, raw: bytearray) -> dict[str, RawTensor]:
    """The header of a safetensors file (8 bytes of length, JSON, data)."""
    start = 8 + int.from_bytes(raw[:8], "little")
    try:
        header = msgspec.json.decode(raw[8:start], type=dict[str, dict[str, Any]])
        header.pop("__metadata__", None)
        out = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if start + end > len(raw) or begin < 0:
                raise EngineError(f"{path}: {name!r} ends beyond the file; it is cut off ({len(raw)} bytes)")
            out[name] = RawTensor(dtype=entry["dtype"], shape=tuple(entry["shape"]), begin=start + begin)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{path}: expected a safetensors file: {error}") from None
    return out
