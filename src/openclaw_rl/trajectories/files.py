"""Read files and folders of trajectories one entry at a time; only one entry is in memory, not the file."""

from __future__ import annotations

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
_CHUNK_BYTES = 2**20
_IN_STRING = re.compile(rb'["\\]')
_INSIDE = re.compile(rb'["\[\]{}]')
_OUTSIDE = re.compile(rb'["\[\]{},]')
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_COMPRESSED = TrajectoryRefused("compressed", "expected JSON, got a gzip file; unpack it first (gunzip)")
_TOO_LARGE = TrajectoryRefused(
    "too large", f"expected at most {ENTRY_BYTES // 2**20} MiB for one trajectory; split the session"
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

    Raises `OpenClawError` for a path that does not exist, a pipe or a device, and when no file is found.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            next(path.iterdir(), None)  # raises if unreadable; rglob would only skip it
            found |= dict.fromkeys(files_inside(path))
        elif path.is_file():
            found[path] = None
        elif path.exists():
            raise OpenClawError(
                f"{path}: expected a file or a folder, got a pipe or a device. Write it to a file first."
            )
        else:
            raise OpenClawError(f"{path}: no such file or folder. Expected trajectories ({', '.join(SUFFIXES)}).")
    if not found:
        where = ", ".join(map(str, paths))
        raise OpenClawError(f"{where}: no trajectories there. Expected files that end with {', '.join(SUFFIXES)}.")
    return list(found)


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
    except PermissionError:  # the folder can only be listed: `read_entries` reports it
        return True


def read_entries(file: Path) -> Iterator[TrajectoryEntry]:
    """Yield every trajectory of a file: its lines (.jsonl), array items, concatenated JSON objects, or Parquet rows.

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
                yield TrajectoryEntry(file=file, place=place, raw=raw, problem=problem, size=read - before)
                before = read
    except OSError as error:
        said = TrajectoryRefused("cannot be read", f"expected a file that this user can read: {error.strerror}")
        yield TrajectoryEntry(file=file, place="", problem=said, size=0)


_FoundValue = tuple[str, bytes, TrajectoryRefused | None, int]


def _read_numbered(stream: BinaryIO, suffix: str) -> Iterator[_FoundValue]:
    if suffix != parquet.SUFFIX:
        yield from _read_lines(stream) if suffix in JSONL_SUFFIXES else _read_values(stream)
        return
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    for place, raw, problem, read in parquet.read_trajectories(stream, size):
        large = len(raw) > ENTRY_BYTES
        yield place, b"" if large else raw, _TOO_LARGE if large else problem, read


def _read_lines(stream: BinaryIO) -> Iterator[_FoundValue]:
    number = 0
    while line := stream.readline(ENTRY_BYTES + 1):
        number += 1
        place, problem = f"line {number}", None
        if len(line) > ENTRY_BYTES and not line.endswith(b"\n"):
            problem = _TOO_LARGE
            while (more := stream.readline(_CHUNK_BYTES)) and not more.endswith(b"\n"):
                pass
        line = line.removeprefix(_BOM) if number == 1 else line
        if problem or line.strip():
            yield place, b"" if problem else line, problem, stream.tell()


def _read_values(stream: BinaryIO) -> Iterator[_FoundValue]:
    """Yield the items of an array, or concatenated JSON values."""
    first = _first_byte(stream)
    splitter = JsonValueSplitter(array=first == b"[")
    number = 0
    while chunk := stream.read(_CHUNK_BYTES):
        for raw in splitter.feed(chunk):
            number += 1
            yield _found_value(number, raw, splitter, stream.tell())
    rest = splitter.unfinished_rest()
    if rest is not None or (number == 0 and not splitter.array):
        number += 1
        broken = TrajectoryRefused("not JSON", "the file ends in the middle of it, or something else follows it")
        empty = TrajectoryRefused("not JSON", "expected a trajectory, but the file is empty")
        yield _item_place(number, splitter), b"", broken if rest else empty, stream.tell()


def _first_byte(stream: BinaryIO) -> bytes:
    """Return the first byte that is not whitespace, and position the stream there."""
    start = 0
    while chunk := stream.read(_CHUNK_BYTES):
        left = chunk.removeprefix(_BOM) if start == 0 else chunk
        said = left.lstrip()
        if said:
            stream.seek(start + len(chunk) - len(said))
            return said[:1]
        start += len(chunk)
    return b""


def _item_place(number: int, splitter: JsonValueSplitter) -> str:
    return f"item {number}" if splitter.array or number > 1 else ""


def _found_value(number: int, raw: bytes | None, splitter: JsonValueSplitter, read: int) -> _FoundValue:
    return _item_place(number, splitter), raw or b"", None if raw is not None else _TOO_LARGE, read


class JsonValueSplitter:
    """Splits a stream of JSON into values without parsing them, by counting brackets outside of strings.

    Errors inside a value are left to the parser. A value above `ENTRY_BYTES` is None, and is never kept in memory.
    """

    def __init__(self, *, array: bool) -> None:
        self.array = array
        self._base_depth = 1 if array else 0
        self._depth = 0
        self._in_string = self._escaped = self._is_too_large = False
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield the values that end in this chunk."""
        at = start = 0
        while at < len(chunk):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            match = self._next_pattern().search(chunk, at)
            if match is None:
                break
            at = match.end()
            if self._in_string:
                self._escaped = match[0] == b"\\"
                self._in_string = self._escaped
            elif match[0] == b'"':
                self._in_string = True
            else:
                cut = self._cut_at(match[0], match.start(), at)
                if cut is not None:
                    yield from self._take_value(chunk[start : cut[0]])
                    start = cut[1]
        self._append_bytes(chunk[start:])

    def _next_pattern(self) -> re.Pattern[bytes]:
        if self._in_string:
            return _IN_STRING
        return _OUTSIDE if self._depth <= self._base_depth else _INSIDE

    def _cut_at(self, sign: bytes, start: int, end: int) -> tuple[int, int] | None:
        """Return (end of the value, start of the next) if a value ends here."""
        if sign == b",":
            return (start, end) if self.array and self._depth == 1 else None
        before = self._depth
        self._depth += 1 if sign in b"[{" else -1
        if self.array:
            return (end, end) if (before, self._depth) == (0, 1) else (start, end) if self._depth == 0 else None
        return (end, end) if self._depth <= 0 else None

    def _take_value(self, last: bytes) -> Iterator[bytes | None]:
        self._append_bytes(last)
        whole, over = bytes(self._buffer), self._is_too_large
        self._buffer, self._is_too_large = bytearray(), False
        self._depth = max(self._depth, 0)
        opening = self.array and whole.strip() in (b"[", b"")
        if over:
            yield None
        elif not opening:
            yield whole

    def _append_bytes(self, more: bytes) -> None:
        if len(self._buffer) + len(more) > ENTRY_BYTES:
            self._is_too_large, self._buffer = True, bytearray()
        elif not self._is_too_large:
            self._buffer += more

    def unfinished_rest(self) -> bytes | None:
        """Return the incomplete rest after the end of the stream; None if the stream ended properly."""
        left = bytes(self._buffer).strip()
        if self._is_too_large:
            return b"..."
        return left or (b"[" if self.array and self._depth > 0 else None)
