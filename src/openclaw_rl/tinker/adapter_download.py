"""An adapter that the Tinker service trained, as the two files of PEFT's layout that local engines load."""

from __future__ import annotations

import http.client
import io
import json
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, WEIGHT_FILES
from openclaw_rl.errors import EngineError

# Downloads of one archive.
ATTEMPTS = 3
RETRY_SECONDS = 2.0
# Seconds without a byte after which a download has failed.
_ANSWER_SECONDS = 60.0
_MATRIX_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_BROKEN_DOWNLOADS = (OSError, EOFError, http.client.HTTPException, tarfile.TarError, zlib.error)
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBase:
    """The base model that a local engine serves. `folder`: its files; None: adapters are not compared with them."""

    name: str
    folder: Path | None


def download_adapter(url: str, base: LocalBase) -> dict[str, bytes]:
    """Return the adapter in the archive at `url`, by file name. Raises `EngineError` if it does not fit the base."""
    return to_peft_layout(_download_files(url), base)


def _download_files(url: str) -> dict[str, bytes]:
    for left in reversed(range(ATTEMPTS)):
        try:
            return _read_archive(url)
        except _BROKEN_DOWNLOADS:
            if not left:
                raise
            time.sleep(RETRY_SECONDS)
    raise AssertionError("unreachable")


def _read_archive(url: str) -> dict[str, bytes]:
    """Return the adapter's files in a tar archive, which may be compressed. Nothing is extracted to a path."""
    files: dict[str, bytes] = {}
    with tempfile.TemporaryFile() as file:
        with open_url(url, timeout=_ANSWER_SECONDS) as answer:
            shutil.copyfileobj(answer, file, 2**20)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:*") as archive:
            for member in archive:
                name = Path(member.name).name
                if name not in WEIGHT_FILES or not member.isfile():
                    continue
                stream = archive.extractfile(member)
                assert stream is not None
                files[name] = stream.read()
    missing = sorted(set(WEIGHT_FILES) - files.keys())
    if missing:
        raise EngineError(
            f"the archive of the adapter that the Tinker service returned has no {' and '.join(missing)}"
        )
    return files


def to_peft_layout(files: Mapping[str, bytes], base: LocalBase) -> dict[str, bytes]:
    """Return the files with the settings that engines need. Raises `EngineError` if names or shapes are not the base's.

    The service's settings name its own base and need not name the modules.
    """
    try:
        adapter_config = json.loads(files[ADAPTER_CONFIG])
        shapes = dict(_matrix_shapes(files[ADAPTER_WEIGHTS]))
        rank = int(adapter_config["r"])
        alpha = float(adapter_config["lora_alpha"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(
            f"the adapter that the Tinker service returned cannot be read ({type(error).__name__}: {error}); expected "
            "safetensors, and settings with r and lora_alpha"
        ) from None
    modules = _adapted_modules(shapes, rank)
    if base.folder is not None:
        _check_fit(modules, base.folder)
    settings = {"bias": "none", "lora_dropout": 0.0} | adapter_config
    settings |= {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        "inference_mode": True,
    }
    text = json.dumps(settings, indent=2, sort_keys=True)
    return {ADAPTER_CONFIG: text.encode(), ADAPTER_WEIGHTS: files[ADAPTER_WEIGHTS]}


def _adapted_modules(shapes: Shapes, rank: int) -> dict[str, tuple[int, int]]:
    """Return [out, in] of each module that has both matrices of this rank."""
    sides: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        match = _MATRIX_NAME.fullmatch(name)
        if match is None or len(shape) != 2:
            raise _foreign_name(name, "PEFT")
        sides.setdefault(match["module"], {})[match["side"]] = shape
    if not sides:
        raise EngineError("the adapter that the Tinker service returned has no matrices")
    return {module: _matrix_size(module, pair, rank) for module, pair in sides.items()}


def _matrix_size(module: str, pair: Mapping[str, tuple[int, ...]], rank: int) -> tuple[int, int]:
    """Return (out, in) of a module with the matrices A [rank, in] and B [out, rank]. Raises `EngineError`."""
    if pair.keys() == {"A", "B"}:
        rank_of_a, inputs = pair["A"]
        outputs, rank_of_b = pair["B"]
        if rank_of_a == rank_of_b == rank:
            return outputs, inputs
    raise EngineError(
        f"the adapter that the Tinker service returned has matrices {pair} for {module}; expected "
        f"[{rank}, in] and [out, {rank}]"
    )


def _check_fit(modules: Mapping[str, tuple[int, int]], folder: Path) -> None:
    """Raise `EngineError` unless each module is a matrix of the base of this shape; skip a base without such files."""
    known: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            known.update(_matrix_shapes(stream))
    if not known:
        return
    for module, shape in modules.items():
        expected = known.get(f"{module}.weight")
        if shape == expected:
            continue
        if expected is None:
            raise _foreign_name(module, f"the base in {folder}")
        raise EngineError(
            f"the adapter that the Tinker service trained does not fit the base in {folder}: {module} has shape "
            f"{list(shape)}, expected {list(expected)}. Set tinker.model to the name of this base at the service"
        )


def _foreign_name(name: str, owner: str) -> EngineError:
    return EngineError(
        f"the adapter that the Tinker service trained adapts {name}, a name that {owner} does not have: a local engine "
        "cannot load it. Set engine.backend to tinker, which serves it, or tinker.model to the name of this base"
    )


def _matrix_shapes(content: bytes | BinaryIO) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each tensor in a safetensors file, from its header: 8 bytes of length, then JSON."""
    if isinstance(content, bytes):
        content = io.BytesIO(content)
    length = int.from_bytes(content.read(8), "little")
    header: dict[str, Any] = json.loads(content.read(length))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        yield name, tuple(entry["shape"])
