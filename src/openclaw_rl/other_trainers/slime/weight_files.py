"""Weights that slime wrote in Hugging Face's layout: recognised by a fingerprint, and taken over as a version."""

from __future__ import annotations

import json
import logging
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
_BYTES_OF_TENSOR = 1 << 16
BASE_FILE = "slime_base.json"
"""File of the home with the fingerprint of the base, as slime writes it."""


def fingerprint_of(folder: Path) -> str:
    """Return a hash of names, shapes and the beginning of each tensor. Raises `OSError` or `ValueError`.

    Two exports of the same weights by slime have the same one, however they are split into files.
    """
    entries = []
    for path in sorted(folder.glob("*.safetensors")):
        entries += _read_tensors(path)
    if not entries:
        raise ValueError(f"{folder}: no tensors in *.safetensors")
    whole = sha256()
    for name, about, begin in sorted(entries, key=lambda entry: entry[0]):
        whole.update(json.dumps([name, about["dtype"], about["shape"]]).encode())
        whole.update(begin)
    return whole.hexdigest()


def _read_tensors(path: Path) -> list[tuple[str, dict[str, Any], bytes]]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size:
            raise ValueError(f"{path}: no safetensors file, or not all of it")
        header = json.loads(file.read(size))
        tensors = []
        for name, about in header.items():
            if name == "__metadata__":
                continue
            begin, end = about["data_offsets"]
            file.seek(8 + size + begin)
            tensors.append((name, about, file.read(min(end - begin, _BYTES_OF_TENSOR))))
    return tensors


def find_version(home: Path, fingerprint: str) -> str | None:
    """Return the folder name of the newest version of the home with these weights; None: of no version.

    A folder whose files cannot be read, such as one that a killed trainer left, is no version.
    """
    folders = sorted(home.glob("policies/*/"), key=lambda path: _number_of(path.name), reverse=True)
    for folder in folders:
        try:
            if any(folder.glob("*.safetensors")) and fingerprint_of(folder) == fingerprint:
                return folder.name
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Of a header in a wrong form.
            log.warning("%s is left out: its weights cannot be read (%s)", folder, error)
    return None


def read_base(home: Path) -> str | None:
    """Return the fingerprint of the base; None before a step from it was begun. Raises `ValueError` if damaged."""
    path = home / BASE_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _base_file_error(path, str(error)) from error
    fingerprint = content.get("fingerprint") if isinstance(content, dict) else None
    if not isinstance(fingerprint, str):
        raise _base_file_error(path, "it has no fingerprint")
    return fingerprint


def _base_file_error(path: Path, reason: str) -> ValueError:
    return ValueError(
        f'{path} cannot be read: {reason}. Expected {{"fingerprint": TEXT}}, written at the first step from the base. '
        "If slime begins with the base, the model at --model-path, remove the file: it is written again. If not, start "
        "slime with the base or a version (`openclaw-rl policies list`)"
    )


def record_base(home: Path, fingerprint: str) -> None:
    """Record the fingerprint of the base, from which a step begins."""
    fresh = home / f".{BASE_FILE}"
    with fresh.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"fingerprint": fingerprint}))
        file.flush()
        # Else a power failure may leave it empty.
        os.fsync(file.fileno())
    fresh.replace(home / BASE_FILE)


def _number_of(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def take_over(written: Path, folder: Path) -> None:
    """Put the files that slime wrote into the folder of the batch: links where the disk allows it, else copies."""
    for path in sorted(written.iterdir()):
        if path.name.startswith(".") or not path.is_file():
            continue
        try:
            os.link(path, folder / path.name)
        except OSError:
            # Another file system, or one without links.
            shutil.copyfile(path, folder / path.name)
