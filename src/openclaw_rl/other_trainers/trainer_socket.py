"""The socket at which another program waits for batches: one connection at a time, JSON lines in both directions."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from openclaw_rl.common.progress import record_progress
from openclaw_rl.common.sockets import clear_socket
from openclaw_rl.other_trainers.batch_stream import PROTOCOL, SOCKET_NAME

log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_HELLO_SECONDS = 5.0
# The trainer may read nothing any more.
_REFUSAL_SECONDS = 1.0
# Longer only if a program connects and says nothing.
_CLOSE_SECONDS = 1.0
# Bytes.
_MAX_HELLO = 1 << 16
# Bytes; log-probabilities of a large batch.
_MAX_LINE = 1 << 26


class TrainerGone(Exception):
    """Raised when no trainer is connected, or when it ended before it answered."""


class TrainerLink:
    """The connection of one trainer."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.name = name
        self._connection = connection
        self._received = b""
        self._is_closed = False

    def is_open(self) -> bool:
        """Return whether the trainer is there: its end has not arrived, perhaps behind an answer that nobody reads."""
        if self._is_closed:
            return False
        # macOS has none.
        half_closed = getattr(select, "POLLRDHUP", 0)
        ended = half_closed | select.POLLHUP | select.POLLERR | select.POLLNVAL
        watch = select.poll()
        try:
            watch.register(self._connection, ended)
        except ValueError:
            # Closed meanwhile by another thread.
            return False
        return not any(events & ended for _, events in watch.poll(0))

    def send(self, message: dict[str, Any], *, within: float) -> None:
        """Send a message. Raises `TrainerGone`, also if the trainer has not read it after `within` seconds.

        While a trainer is busy and reads nothing, this process makes progress.
        """
        left = memoryview(_encode(message))
        end = time.monotonic() + within
        while left:
            left = left[self._send_part(left) :]
            record_progress()
            if left and time.monotonic() > end:
                self.close()
                raise TrainerGone(
                    f"the trainer {self.name!r} has not read what was sent within {within:g} s (train.answer_within)"
                )

    def _send_part(self, data: memoryview) -> int:
        """Send what the connection takes now, or after `_POLL_SECONDS`. Return the number of bytes."""
        try:
            with contextlib.suppress(BlockingIOError):
                if select.select([], [self._connection], [], _POLL_SECONDS)[1]:
                    return self._connection.send(data, socket.MSG_DONTWAIT)
        except (OSError, ValueError) as error:
            # `ValueError`: the connection is closed.
            self.close()
            raise TrainerGone(f"the trainer {self.name!r} has ended ({error})") from error
        return 0

    def receive(self, *kinds: str, within: float) -> dict[str, Any]:
        """Return the next message, `{"kind": ...}` with the key, if it is one of these kinds; else raise `TrainerGone`.

        Waits until the trainer ends, at most `within` seconds: while it works, this process makes progress.
        """
        end = time.monotonic() + within
        while b"\n" not in self._received:
            if self._is_closed:
                raise TrainerGone(f"the trainer {self.name!r} is no longer connected")
            if time.monotonic() > end:
                self.refuse(f"no answer within {within:g} s (train.answer_within)")
            try:
                ready, _, _ = select.select([self._connection], [], [], _POLL_SECONDS)
            except (OSError, ValueError) as error:
                # Closed by the thread that welcomes the next trainer.
                self.close()
                raise TrainerGone(f"the trainer {self.name!r} is no longer connected") from error
            record_progress()
            if ready:
                self._read_more()
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
            kind = next(iter(message.keys()))
        except (ValueError, StopIteration, AttributeError, RecursionError):
            self.close()
            raise TrainerGone(
                f"the trainer {self.name!r} sent a line that is no JSON object"
            ) from None
        if kind not in kinds:
            self.refuse(f"unexpected message {kind!r}; expected {' or '.join(kinds)}")
        content = message[kind]
        return {"kind": kind} | (content if isinstance(content, dict) else {})

    def refuse(self, reason: str) -> NoReturn:
        """End the connection, after a message that says why. Raises `TrainerGone`."""
        with contextlib.suppress(TrainerGone):
            self.send({"refused": reason}, within=_REFUSAL_SECONDS)
        self.close()
        raise TrainerGone(f"the trainer {self.name!r}: {reason}")

    def _read_more(self) -> None:
        try:
            more = self._connection.recv(1 << 20)
            reason = "it closed the connection"
        except OSError as error:
            more = b""
            reason = str(error)
        if not more or len(self._received) > _MAX_LINE:
            self.close()
            raise TrainerGone(f"the trainer {self.name!r} has ended ({reason})")
        self._received += more

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._is_closed = True
        self._connection.close()


class TrainerSocket:
    """Listens in the home for a trainer, in a thread."""

    def __init__(self, home: Path, welcome: dict[str, Any]) -> None:
        """`welcome`: what a trainer learns when it connects. Raises `EngineError` if another worker listens there."""
        self.path = home / SOCKET_NAME
        self._welcome = welcome
        clear_socket(self.path, owner="train worker")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self.path.chmod(0o600)
        self._listener.listen(4)
        self._link: TrainerLink | None = None
        # Of the link: one that comes while it closes ends, too.
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept_all, name="trainer-socket", daemon=True)
        self._thread.start()

    def find_trainer(self) -> TrainerLink | None:
        """Return the connection of the trainer that is there, if one is."""
        link = self._link
        return link if link is not None and link.is_open() else None

    def _accept_all(self) -> None:
        """Welcome a trainer at any time, also while there is no batch for it. A second one is refused."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Closed.
                return
            name = self._welcome_trainer(connection)
            with self._lock:
                if name is None or self._is_closed:
                    connection.close()
                else:
                    if self._link is not None:
                        self._link.close()
                    self._link = TrainerLink(connection, name)

    def _welcome_trainer(self, connection: socket.socket) -> str | None:
        """Exchange the first messages. Return the name of the trainer, or None for another program."""
        connection.settimeout(_HELLO_SECONDS)
        try:
            line = b""
            while not line.endswith(b"\n") and len(line) < _MAX_HELLO:
                more = connection.recv(4096)
                if not more:
                    break
                line += more
            message = json.loads(line)
            reason = None
            current = self.find_trainer()
            if "describe" in message:
                connection.sendall(
                    _encode({"welcome": self._welcome | {"trainer": current and current.name}})
                )
                return None
            hello = message["hello"]
            if current is not None:
                reason = f"the trainer {current.name!r} is connected already"
            elif hello["protocol"] != PROTOCOL:
                reason = f"protocol {hello['protocol']!r} is not known here; expected {PROTOCOL}"
            if reason is not None:
                connection.sendall(_encode({"refused": reason}))
                return None
            connection.sendall(_encode({"welcome": self._welcome}))
            connection.setblocking(True)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning(
                "a program connected as the trainer, and did not say hello as one: %r", error
            )
            return None
        log.info("the trainer %r (process %s) is connected", hello.get("name"), hello.get("pid"))
        return str(hello.get("name", ""))[:100]

    def close(self) -> None:
        """End the connection and remove the socket."""
        with self._lock:
            self._is_closed = True
            if self._link is not None:
                self._link.close()
        with contextlib.suppress(OSError):
            # Wakes the thread.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_CLOSE_SECONDS)
        self.path.unlink(missing_ok=True)


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
