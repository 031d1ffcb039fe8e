"""RPC between the train worker and rank 0: length-prefixed msgpack frames over a private Unix socket.

Arrays are sent as raw bytes; their dtype comes from the type of the field. Each command gets one reply, in order.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import tempfile
import threading
import time
import typing
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from openclaw_rl.common.frames import FrameDecoder, encode_frame
from openclaw_rl.common.progress import (
    Activity,
    current_activity,
    progress_count,
    record_progress,
    set_activity,
)
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.types import Logprobs

# Seconds.
_POLL_SECONDS = 0.2
# Seconds between two reports.
_PROGRESS_SECONDS = 1.0


class LoadCommand(msgspec.Struct, tag="load", frozen=True):
    folder: str | None
    memory: dict[str, Any]


class StepCommand(msgspec.Struct, tag="step", frozen=True):
    samples: list[Sample]
    out: str


class ScoreCommand(msgspec.Struct, tag="score", frozen=True):
    samples: list[Sample]


class IdleCommand(msgspec.Struct, tag="idle", frozen=True):
    """Keep-alive, only from rank 0 to the other ranks."""


class ReadyReply(msgspec.Struct, tag="ready", frozen=True):
    """Reply: the load command is done, or, before any command, the model is loaded."""


class StepReply(msgspec.Struct, tag="done", frozen=True):
    result: StepResult


class LogprobsReply(msgspec.Struct, tag="scores", frozen=True):
    logprobs: list[Logprobs]


class ErrorReply(msgspec.Struct, tag="refused", frozen=True):
    """Reply: the command raised this error, on every rank."""

    kind: str
    message: str


RankCommand = LoadCommand | StepCommand | ScoreCommand | IdleCommand
RankReply = ReadyReply | StepReply | LogprobsReply | ErrorReply


def _to_bytes(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to the ranks")


def _from_bytes(kind: Any, value: Any) -> Any:
    """Decode an array; `kind` is its type, such as `NDArray[np.int32]`."""
    dtype = typing.get_args(typing.get_args(kind)[1])[0]
    return np.frombuffer(value, dtype=dtype)


encode = msgspec.msgpack.Encoder(enc_hook=_to_bytes).encode
command_decoder = msgspec.msgpack.Decoder(RankCommand, dec_hook=_from_bytes)
_PROGRESS_MARK = b"\0"
"""First byte of a progress report, which is sent between a command and its reply; no reply begins with it."""
_activity_decoder = msgspec.msgpack.Decoder(Activity | None)
reply_decoder = msgspec.msgpack.Decoder(RankReply, dec_hook=_from_bytes)


class RpcChannel:
    """One end of the connection. Both methods raise `EOFError` when the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = FrameDecoder()
        self._received: deque[bytes] = deque()
        self._send_lock = threading.Lock()

    def send(self, raw: bytes) -> None:
        try:
            with self._send_lock:
                self._connection.sendall(encode_frame(raw))
        except OSError as error:
            raise EOFError(f"the other end is gone ({error})") from None

    def receive(self, timeout: float) -> bytes | None:
        """Return the next message; None when no byte arrives for `timeout` seconds."""
        while not self._received:
            ready, _, _ = select.select([self._connection], [], [], timeout)
            if not ready:
                return None
            try:
                more = self._connection.recv(2**20)
            except OSError as error:
                raise EOFError(f"the other end is gone ({error})") from None
            if not more:
                raise EOFError("the other end has closed the connection")
            self._received += self._decoder.feed(more)
        return self._received.popleft()

    def close(self) -> None:
        self._connection.close()


class RpcListener:
    """Unix socket to which rank 0 connects, in a private folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.path = self.folder / "0.sock"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(1)
        self._socket.settimeout(_POLL_SECONDS)

    def accept(self, check: Callable[[], None]) -> RpcChannel:
        """Wait for rank 0 to connect; `check` raises when it never will."""
        while True:
            check()
            with contextlib.suppress(TimeoutError):
                connection, _ = self._socket.accept()
                connection.setblocking(True)
                return RpcChannel(connection)

    def close(self) -> None:
        """Remove the folder, with the rendezvous file of the ranks."""
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def connect_to_worker(path: str) -> RpcChannel:
    """Connect to the train worker. Raises `OSError` when it is gone."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return RpcChannel(connection)


def receive_reply(channel: RpcChannel, check: Callable[[], None]) -> bytes:
    """Return the next reply; `check` raises when none can come any more. Raises `EOFError`.

    Progress and activity of rank 0 count as those of this process.
    """
    try:
        while True:
            raw = channel.receive(_POLL_SECONDS)
            if raw is not None and not raw.startswith(_PROGRESS_MARK):
                return raw
            if raw is not None:
                set_activity(_activity_decoder.decode(raw[len(_PROGRESS_MARK) :]))
                record_progress()
            check()
    finally:
        set_activity(None)


def report_progress(channel: RpcChannel) -> None:
    """Start a thread that reports the progress of this process, rank 0, to the train worker."""

    def send_progress() -> None:
        seen = progress_count()
        with contextlib.suppress(EOFError):
            while True:
                time.sleep(_PROGRESS_SECONDS)
                if progress_count() != seen:
                    seen = progress_count()
                    channel.send(_PROGRESS_MARK + encode(current_activity()))

    threading.Thread(target=send_progress, name="progress", daemon=True).start()


def wait_until(until: Callable[[], bool], seconds: float) -> bool:
    """Poll until the condition is true, for at most `seconds`. Return whether it became true."""
    end = time.monotonic() + seconds
    is_true = until()
    while not is_true and time.monotonic() < end:
        time.sleep(0.05)
        is_true = until()
    return is_true
