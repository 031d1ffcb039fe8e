"""What the room and rank 0 say to each other: length-prefixed msgpack frames over a private Unix socket.

A frame is eight bytes of length (little-endian) and one message. Arrays travel as their bytes; the fields' types say
what is in them. Each command gets one answer, in order.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import tempfile
import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from openclaw_rl import errors
from openclaw_rl.methods.types import Sample, StepResult

_HEADER = 8
_POLL = 0.2  # seconds


class Load(msgspec.Struct, tag="load", frozen=True):
    folder: str | None
    memory: dict[str, Any]


class Step(msgspec.Struct, tag="step", frozen=True):
    samples: list[Sample]
    out: str


class Idle(msgspec.Struct, tag="idle", frozen=True):
    """From rank 0 to the others alone: nothing to do yet, and all of us are well."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The command before it is done; without one: the model is loaded."""


class Done(msgspec.Struct, tag="done", frozen=True):
    result: StepResult


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """What was raised, as every rank raised it."""

    kind: str
    message: str


Command = Load | Step | Idle
Answer = Ready | Done | Refused


def _to_bytes(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} does not travel to the ranks")


def _from_bytes(kind: Any, value: Any) -> Any:
    """`NDArray[np.int32]` and its like."""
    dtype = typing.get_args(typing.get_args(kind)[1])[0]
    return np.frombuffer(value, dtype=dtype)


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_bytes)
commands = msgspec.msgpack.Decoder(Command, dec_hook=_from_bytes)
answers = msgspec.msgpack.Decoder(Answer, dec_hook=_from_bytes)


def encode(message: Command | Answer) -> bytes:
    return _encoder.encode(message)


def refused(error: Exception) -> Refused:
    return Refused(type(error).__name__, str(error))


def error_of(refusal: Refused) -> Exception:
    """What was raised there, to be raised here: our own errors and `ValueError` as themselves."""
    return errors.named(refusal.kind, refusal.message)


class Line:
    """One end. `receive` gives None when nothing came in time. Raises `EOFError` when the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._buffer = connection, bytearray()

    def send(self, raw: bytes) -> None:
        try:
            self._connection.sendall(len(raw).to_bytes(_HEADER, "little") + raw)
        except OSError as error:
            raise EOFError(f"the other end is gone ({error})") from None

    def receive(self, timeout: float) -> bytes | None:
        """The next message, waiting `timeout` seconds for it to begin and to go on."""
        while len(self._buffer) < _HEADER or len(self._buffer) < _HEADER + self._wanted():
            ready, _, _ = select.select([self._connection], [], [], timeout)
            if not ready:
                return None
            try:
                more = self._connection.recv(2**20)
            except OSError as error:
                raise EOFError(f"the other end is gone ({error})") from None
            if not more:
                raise EOFError("the other end has hung up")
            self._buffer += more
        end = _HEADER + self._wanted()
        raw = bytes(self._buffer[_HEADER:end])
        del self._buffer[:end]
        return raw

    def _wanted(self) -> int:
        return int.from_bytes(self._buffer[:_HEADER], "little")

    def close(self) -> None:
        self._connection.close()


class Listener:
    """Where rank 0 finds us: a socket in a folder that is ours alone."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.path = self.folder / "0.sock"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(1)
        self._socket.settimeout(_POLL)

    def accept(self, check: Callable[[], None]) -> Line:
        """Wait for it; `check` raises when nobody will come any more."""
        while True:
            check()
            with contextlib.suppress(TimeoutError):
                connection, _ = self._socket.accept()
                connection.setblocking(True)
                return Line(connection)

    def close(self) -> None:
        """Take the folder away, and the file by which ranks find each other."""
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def find(path: str) -> Line:
    """The room's end. Raises `OSError` when the room is gone."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return Line(connection)


def ask(line: Line, raw: bytes, check: Callable[[], None]) -> bytes:
    """One command and its answer; `check` raises when none will come any more. Raises `EOFError`."""
    line.send(raw)
    return answer(line, check)


def answer(line: Line, check: Callable[[], None]) -> bytes:
    """The next answer."""
    while (raw := line.receive(_POLL)) is None:
        check()
    return raw


def wait(until: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not (true := until()) and time.monotonic() < end:
        time.sleep(0.05)
    return true
