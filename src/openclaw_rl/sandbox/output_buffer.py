"""Bounded receivers of a command's output: the first and last half in memory, or the beginning in a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO, Protocol


class OutputReceiver(Protocol):
    truncated: int
    """Bytes that were left out."""

    def add_bytes(self, data: bytes) -> None: ...

    def is_full(self) -> bool:
        """Return whether the command can be killed, as nothing more of it is of use."""
        ...


@dataclass(slots=True)
class OutputBuffer:
    """Keeps the first and the last half of `limit` bytes."""

    limit: int
    truncated: int = 0
    _kept: bytearray = field(default_factory=bytearray)

    def add_bytes(self, data: bytes) -> None:
        self._kept += data
        excess = len(self._kept) - self.limit
        if excess > 0:
            half = self.limit // 2
            del self._kept[half : half + excess]
            self.truncated += excess

    def is_full(self) -> bool:
        return False

    def kept_bytes(self) -> bytes:
        return bytes(self._kept)


@dataclass(slots=True)
class OutputFile:
    """Writes the first `limit` bytes to a file."""

    file: BinaryIO
    limit: int
    truncated: int = 0
    _written: int = 0

    def add_bytes(self, data: bytes) -> None:
        taken = data[: self.limit - self._written]
        self.file.write(taken)
        self._written += len(taken)
        self.truncated += len(data) - len(taken)

    def is_full(self) -> bool:
        return self.truncated > 0
