"""Digests of a policy folder. The trainer writes them to the store.

The engine checks the digest of the weights before it loads the folder; gateway and trainer check those of all files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from errno import EIO, ELOOP, ENOENT, ENXIO
from hashlib import sha256
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from openclaw_rl.common.progress import record_progress

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Written by transformers with full weights.
MODEL_CONFIG = "config.json"
# In place of weights: where the Tinker service holds them.
TINKER_FILE = "tinker_version.json"
WEIGHT_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
"""The files of a PEFT adapter folder that determine its output, sorted."""
# Safetensors layout; engines load each *.safetensors file of a folder as weights.
OPTIMIZER_FILE = "optimizer.state"
# The EMA teacher, as large as the weights.
EMA_TEACHER_FILE = "average.state"
TRAINER_FILES = (OPTIMIZER_FILE, EMA_TEACHER_FILE)
"""The large files that only the trainer reads."""
FileDigests = Mapping[str, str | None]
"""Name -> sha256 (hex) of each file of a policy folder; None: the file was removed to save space.

Empty: only the digest of the weights is known, as of versions that an older openclaw-rl wrote.
"""
# Bytes.
_BLOCK_BYTES = 2**22
_DAMAGE_ERRNOS = frozenset({ENOENT, EIO, ELOOP})


def digest_of_parts(parts: Mapping[str, bytes | bytearray]) -> str:
    """Return the sha256 (hex) over the sorted names, each with the length and bytes of its file."""
    return _hash_parts((name, len(parts[name]), (parts[name],)) for name in sorted(parts))


def weight_files(folder: str | Path) -> tuple[str, ...]:
    """Return the sorted names of the adapter files or, without an adapter, of the safetensors files or `TINKER_FILE`.

    The result is empty if only the model's configuration is left, after old full weights were pruned.
    """
    path = Path(folder)
    if (path / ADAPTER_CONFIG).exists():
        return WEIGHT_FILES
    if (path / TINKER_FILE).exists():
        return (TINKER_FILE,)
    present = tuple(sorted(file.name for file in path.glob("*.safetensors")))
    if present or (path / MODEL_CONFIG).exists():
        return present
    return WEIGHT_FILES


def digest_of_folder(folder: str | Path) -> str:
    """Return `Policy.digest` of a policy folder. Raises `FileNotFoundError` if one of the files is missing."""
    if not weight_files(folder):
        raise FileNotFoundError(ENOENT, "its weights are no longer kept", str(folder))
    files = [Path(folder) / name for name in weight_files(folder)]
    return _hash_parts((file.name, file.stat().st_size, _read_blocks(file)) for file in files)


def hash_folder(folder: str | Path) -> tuple[str, dict[str, str]]:
    """Return `Policy.digest` and `Policy.files` of a folder that was just written; reads each file once."""
    names = weight_files(folder)
    weights = sha256()
    files = {}
    for file in visible_files(folder):
        whole = sha256()
        is_weights = file.name in names
        if is_weights:
            weights.update(_file_header(file.name, file.stat().st_size))
        for block in _read_blocks(file):
            whole.update(block)
            if is_weights:
                weights.update(block)
        files[file.name] = whole.hexdigest()
    return weights.hexdigest(), files


def visible_files(folder: str | Path) -> list[Path]:
    """Return everything in a policy folder by name, except hidden files, which no program loads. Raises `OSError`."""
    return sorted(path for path in Path(folder).iterdir() if not path.name.startswith("."))


def find_damage(
    folder: str | Path, digest: str, files: FileDigests, *, skip: Collection[str] = ()
) -> str | None:
    """Return how the files of a version differ from those that were written, or None.

    `digest`: of the weights; `files`: of all files; `skip`: names that are not read. Raises `OSError` for a reason that
    may pass, such as too many open files, and if the folder that all versions are in is missing.
    """
    try:
        damage = _find_special_file(folder)
        if damage is not None:
            return damage
        if not files:
            return _find_changed_weights(folder, digest)
        damage = _find_changed_names(folder, files)
        if damage is None:
            damage = _find_changed_file(folder, files, skip)
        return damage
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        if not Path(folder).parent.is_dir():
            raise
        return f"{error.filename} cannot be read ({error.strerror})"
    except OSError as error:
        if error.errno not in _DAMAGE_ERRNOS:
            raise
        return f"{error.filename or folder} cannot be read ({error.strerror})"


def _find_special_file(folder: str | Path) -> str | None:
    for path in visible_files(folder):
        mode = path.stat().st_mode
        if not S_ISREG(mode) and not S_ISDIR(mode):
            # Reading it may never end.
            return f"{path.name} is a pipe, a socket or a device, expected a file"
    return None


def _find_changed_weights(folder: str | Path, digest: str) -> str | None:
    digest_now = digest_of_folder(folder)
    if digest_now == digest:
        return None
    return f"the weights have digest {digest_now[:12]}, expected {digest[:12]}"


def _find_changed_names(folder: str | Path, files: FileDigests) -> str | None:
    present = {path.name for path in visible_files(folder)}
    for name in sorted(present.symmetric_difference(files)):
        if name in present:
            return f"{name} was added"
        if files[name] is not None:
            return f"{name} is missing"
    return None


def _find_changed_file(folder: str | Path, files: FileDigests, skip: Collection[str]) -> str | None:
    for name, expected in sorted(files.items()):
        if expected is None or name in skip:
            continue
        actual = digest_of_file(Path(folder) / name).hex()
        if actual != expected:
            return f"{name} has sha256 {actual[:12]}, expected {expected[:12]}"
    return None


def digest_of_file(file: Path, on_block: Callable[[int], None] = lambda size: None) -> bytes:
    """Return the sha256 of a file. Each block is progress of this process; `on_block` gets its size in bytes.

    Reading and hashing release the interpreter lock, so several files can be hashed in threads. Raises `OSError`.
    """
    digest = sha256()
    for block in _read_blocks(file):
        digest.update(block)
        on_block(len(block))
    return digest.digest()


def _hash_parts(parts: Iterable[tuple[str, int, Iterable[bytes | bytearray | memoryview]]]) -> str:
    digest = sha256()
    for name, size, blocks in parts:
        digest.update(_file_header(name, size))
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()


def _file_header(name: str, size: int) -> bytes:
    return name.encode() + b"\0" + size.to_bytes(8, "little")


def _read_blocks(file: Path) -> Iterator[memoryview]:
    """Yield the blocks of a file. Each is valid until the next one is read, because all share one buffer.

    Holes of a sparse file are not read: their zeros would take memory of the page cache, which others need.
    """
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    zeros = memoryview(bytes(_BLOCK_BYTES))
    with file.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        position = 0
        while True:
            record_progress()
            data_at = _next_data(stream.fileno(), position, size)
            while position < data_at:
                length = min(_BLOCK_BYTES, data_at - position)
                position += length
                record_progress()
                yield zeros[:length]
            stream.seek(position)
            length = stream.readinto(buffer)
            if not length:
                return
            position += length
            yield buffer[:length]


def _next_data(descriptor: int, position: int, size: int) -> int:
    """Return where the next data of a file of `size` bytes begin; `size` if the rest is a hole."""
    if position >= size:
        return position
    try:
        return min(os.lseek(descriptor, position, os.SEEK_DATA), size)
    except OSError as error:
        # EINVAL: a file system without holes.
        return size if error.errno == ENXIO else position
