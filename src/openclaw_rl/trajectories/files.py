"""Read files and folders of trajectories one entry at a time; only a `.json` document is in memory as a whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from openclaw_rl.errors import OpenClawError
from openclaw_rl.trajectories import parquet
from openclaw_rl.trajectories.parser import decode_json, parse_trajectory
from openclaw_rl.trajectories.schema import Trajectory, TrajectoryRefused

JSONL_SUFFIXES = (".jsonl", ".ndjson")
SUFFIXES = (".json", *JSONL_SUFFIXES, parquet.SUFFIX)
ENTRY_BYTES = 256 * 2**20
"""Maximum size of an entry: about 1,200 short turns with all their messages and tokens, or many thousands with text
only. Reading one takes about eleven times as much memory."""
DOCUMENT_BYTES = 4 * ENTRY_BYTES
"""Maximum size of a `.json` file. Lines and Parquet have no maximum."""
_CHUNK_BYTES = 2**20
_SPACE = re.compile(r"[ \t\n\r]*")
_decode_value = json.JSONDecoder().raw_decode
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_COMPRESSED = TrajectoryRefused(
    "compressed", "expected JSON, got a gzip file; unpack it first (gunzip)"
)
_TOO_LARGE = TrajectoryRefused(
    "too large",
    f"expected at most {ENTRY_BYTES // 2**20} MiB for one trajectory; split the session",
)
_LARGE_DOCUMENT = TrajectoryRefused(
    "too large",
    f"expected at most {DOCUMENT_BYTES // 2**20} MiB of .json; write .jsonl, one trajectory per line",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEntry:
    """One trajectory as bytes, or the problem with it. `size`: bytes of the file since the previous entry."""

    file: Path
    place: str  # "line 3", "item 2"; empty: the whole file
    raw: bytes = b""
    problem: TrajectoryRefused | None = None
    size: int

    def parse_trajectory(self) -> Trajectory:
        """Parse the entry. Raises `TrajectoryRefused`."""
        if self.problem is not None:
            raise self.problem
        return parse_trajectory(decode_json(self.raw))


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of these paths, each once. Folders are searched (without hidden files) and sorted.

    Raises `OpenClawError` for a path that does not exist, a file of another kind, and when no file is found.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            # Raises if unreadable; rglob would only skip it.
            next(path.iterdir(), None)
            files |= dict.fromkeys(files_inside(path))
        elif path.is_file():
            if path.suffix.lower() not in SUFFIXES:
                raise OpenClawError(
                    f"{path}: expected a file that ends with {', '.join(SUFFIXES)}."
                )
            files[path] = None
        elif path.exists():
            raise OpenClawError(
                f"{path}: expected a file or a folder, got a pipe or a device. Write it to a file first."
            )
        else:
            raise OpenClawError(
                f"{path}: no such file or folder. Expected trajectories ({', '.join(SUFFIXES)})."
            )
    if not files:
        where = ", ".join(map(str, paths))
        raise OpenClawError(
            f"{where}: no trajectories there. Expected files that end with {', '.join(SUFFIXES)}."
        )
    return list(files)


def file_size(file: Path) -> int:
    """Return the size in bytes; 0 for an inaccessible file, which `read_entries` reports."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def files_inside(folder: Path) -> list[Path]:
    """Return the trajectory files in a folder and its subfolders, sorted."""
    return [p for p in sorted(folder.rglob("*")) if _is_trajectory_file(p, folder)]


def _is_trajectory_file(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    if path.suffix.lower() not in SUFFIXES or hidden:
        return False
    try:
        return path.is_file()
    except PermissionError:
        # The folder can only be listed: `read_entries` reports it.
        return True


def read_entries(file: Path) -> Iterator[TrajectoryEntry]:
    """Yield every trajectory of a file: its lines (.jsonl), its object or array items (.json), or its Parquet rows.

    Raises `OpenClawError` for Parquet when pyarrow is not installed.
    """
    try:
        with file.open("rb") as stream:
            if stream.read(2) == _GZIP:
                yield TrajectoryEntry(file=file, place="", problem=_COMPRESSED, size=2)
                return
            stream.seek(0)
            before = 0
            for place, raw, problem, read in _read_numbered(stream, file.suffix.lower()):
                yield TrajectoryEntry(
                    file=file, place=place, raw=raw, problem=problem, size=read - before
                )
                before = read
    except OSError as error:
        refusal = TrajectoryRefused(
            "cannot be read", f"expected a file that this user can read: {error.strerror}"
        )
        yield TrajectoryEntry(file=file, place="", problem=refusal, size=0)


_FoundValue = tuple[str, bytes, TrajectoryRefused | None, int]


def _read_numbered(stream: BinaryIO, suffix: str) -> Iterator[_FoundValue]:
    if suffix != parquet.SUFFIX:
        yield from _read_lines(stream) if suffix in JSONL_SUFFIXES else _read_document(stream)
        return
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    for place, raw, problem, read in parquet.read_trajectories(stream, size):
        if len(raw) > ENTRY_BYTES:
            yield place, b"", _TOO_LARGE, read
        else:
            yield place, raw, problem, read


def _read_lines(stream: BinaryIO) -> Iterator[_FoundValue]:
    number = 0
    while line := stream.readline(ENTRY_BYTES + 1):
        number += 1
        place = f"line {number}"
        problem = None
        if len(line) > ENTRY_BYTES and not line.endswith(b"\n"):
            _skip_line(stream)
            line = b""
            problem = _TOO_LARGE
        if number == 1:
            line = line.removeprefix(_BOM)
        if problem or line.strip():
            yield place, line, problem, stream.tell()


def _skip_line(stream: BinaryIO) -> None:
    """Read the rest of a line, in pieces."""
    more = stream.readline(_CHUNK_BYTES)
    while more and not more.endswith(b"\n"):
        more = stream.readline(_CHUNK_BYTES)


def _read_document(stream: BinaryIO) -> Iterator[_FoundValue]:
    """Yield the object of a JSON document, or the items of its array."""
    raw = stream.read(DOCUMENT_BYTES + 1)
    size = len(raw)
    content = raw.removeprefix(_BOM).strip()
    if size > DOCUMENT_BYTES:
        yield "", b"", _LARGE_DOCUMENT, size
    elif not content:
        yield (
            "",
            b"",
            TrajectoryRefused("not JSON", "expected a trajectory, but the file is empty"),
            size,
        )
    elif content.startswith(b"["):
        yield from _read_array(content, size)
    else:
        large = len(content) > ENTRY_BYTES
        yield "", b"" if large else content, _TOO_LARGE if large else None, size


def _read_array(raw: bytes, size: int) -> Iterator[_FoundValue]:
    """Yield the items of an array in a file of `size` bytes. After an item that is not JSON, the rest is not read."""
    number = 0
    try:
        text = raw.decode()
        for number, (item, at) in enumerate(_array_items(text), 1):
            large = len(item) > ENTRY_BYTES
            yield (
                f"item {number}",
                b"" if large else item,
                _TOO_LARGE if large else None,
                size * at // len(text),
            )
    except (ValueError, RecursionError) as error:
        problem = TrajectoryRefused(
            "not JSON", f"expected an array of trajectories: {str(error)[:200]}"
        )
        yield f"item {number + 1}", b"", problem, size


def _array_items(text: str) -> Iterator[tuple[bytes, int]]:
    """Yield (item, offset after it and its separator). Raises `ValueError` or `RecursionError` if it is not JSON."""
    at = _skip_space(text, 1)
    separator = ","
    if text[at : at + 1] == "]":
        at = at + 1
        separator = "]"
    while separator == ",":
        start = at
        end = _decode_value(text, at)[1]
        comma = _skip_space(text, end)
        at = _skip_space(text, comma + 1)
        separator = text[comma : comma + 1]
        yield text[start:end].encode(), at
    if separator != "]" or at != len(text):
        raise ValueError(
            f"something else than a comma or the end of the file at character {at - 1}"
        )


def _skip_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None, "the pattern matches nothing, too"
    return space.end()
