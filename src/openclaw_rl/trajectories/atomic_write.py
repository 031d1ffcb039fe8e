"""Atomic file writes. The files are readable by their owner only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from openclaw_rl.common.process_guard import process_exists
from openclaw_rl.errors import OpenClawError

_PART_SUFFIX = ".part"
MAX_STEM_BYTES = 180
"""In bytes. File systems allow 255, with the suffix and the prefix of a temporary file."""


@contextmanager
def atomic_writer(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a stream (mode 600) that becomes `path` if the block ends without error. Raises `OpenClawError`.

    `sync`: call fsync before the rename; False if the caller syncs after many files.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{_PART_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.unlink(missing_ok=True)
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise OpenClawError(
            f"{path}: cannot be written ({error.strerror}). Choose a folder that this user can write to."
        ) from error
    try:
        with os.fdopen(opened, "wb") as stream:
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise OpenClawError(
            f"{path}: cannot be written ({error.strerror}). Is the disk full?"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that killed processes of this machine left in a folder."""
    for part in folder.glob(f".*{_PART_SUFFIX}"):
        pid = part.name.removesuffix(_PART_SUFFIX).rpartition(".")[2]
        if pid.isdecimal() and not process_exists(int(pid)):
            part.unlink(missing_ok=True)


def write_if_changed(path: Path, raw: bytes, *, sync: bool = True) -> bool:
    """Write the file unless it has this content already. Return whether it was written. Raises `OpenClawError`."""
    if path.is_file() and path.stat().st_size == len(raw) and path.read_bytes() == raw:
        return False
    with atomic_writer(path, sync=sync) as stream:
        stream.write(raw)
    return True


def session_stem(session: str) -> str:
    """Return a file stem for a session's name. Stems are unique and cannot leave the folder."""
    safe = quote(session, safe=" ")
    safe = "%2E" + safe[1:] if safe.startswith(".") else safe
    if len(safe) > MAX_STEM_BYTES:
        safe = f"{safe[:MAX_STEM_BYTES]}-{blake2b(session.encode(), digest_size=8).hexdigest()}"
    return safe
