"""Batches for another trainer, such as TRL: each is trained on once. Standard library only, so it can be copied.

    from openclaw_rl.other_trainers.batch_stream import BatchStream

    with BatchStream.connect("~/.openclaw-rl") as stream:
        for batch in stream:
            if batch.load is not None:                # the weights to begin from, now and after a step was refused
                model.load_adapter(batch.load.folder)
            train(model, batch.rows)
            model.save_pretrained(batch.folder)
            batch.acknowledge({"loss/total": 0.7})

The train worker of the system must run with `train.trainer: external`. It listens on a socket in the home, for one
trainer at a time. Messages are JSON, one in each line (docs/guides/other_trainers.md). A batch that is not acknowledged
is free again when the connection ends.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

SOCKET_NAME = "trainer.sock"
PROTOCOL = 1
DESCRIBE_SECONDS = 15.0
"""Seconds within which a train worker says who it is. It may be busy with another program that says nothing."""


class StreamEnded(Exception):
    """Raised when the train worker has ended, or refused the trainer. The text says why."""


@dataclass(frozen=True)
class StartWeights:
    """The weights from which the next step starts. `folder`: a PEFT adapter; None: the base as it is."""

    folder: str | None


@dataclass
class TurnBatch:
    """One batch. `rows`: a dict for each sample; `folder`: an empty folder for the weights after the step.

    Each row has `turn`, `agent`, `prompt_ids` [P], `response_ids` [R], `logprobs` [R] (at sampling time, at
    `temperature`), `mask` [R], `reward` (1, -1 or None), `weight` of the reward, `hinted_prompts` (for distillation:
    prompts with a hint), `version`, `on_policy`, `replay`, `from_teacher` and `episode`.
    """

    id: int
    version: int
    folder: str
    rows: list[dict[str, Any]]
    load: StartWeights | None
    _stream: BatchStream = field(repr=False)
    _is_kept: bool | None = None  # None: not answered yet
    _rejection: str | None = None

    def acknowledge(
        self,
        metrics: Mapping[str, float] | None = None,
        *,
        dropped: Mapping[str, str] | None = None,
    ) -> bool:
        """Hand over the weights in `folder`. Return whether they were kept; if not, `rejection` says why.

        `metrics`: of the step, for reports and bounds (`loss/total`, `gradient/norm`, `kl`, `kl/step`). `dropped`:
        turns that were not trained on, each with the reason; without a file in `folder`, all must be among them. A
        second call changes nothing and returns the same. Raises `StreamEnded` if the train worker ended: the batch is
        then free again, unless it was kept; `ValueError` for a turn that the batch does not have.
        """
        if self._is_kept is None:
            numbers = {name: float(value) for name, value in (metrics or {}).items()}
            body = {"id": self.id, "metrics": numbers, "dropped": self._check_turns(dropped or {})}
            self._finish({"done": body})
        return bool(self._is_kept)

    def _check_turns(self, dropped: Mapping[str, str]) -> dict[str, str]:
        unknown = sorted(dropped.keys() - {row["turn"] for row in self.rows})
        if unknown:
            raise ValueError(
                f"batch {self.id} has no turn {unknown[0]!r}: expected ids of its rows"
            )
        return dict(dropped)

    def refuse(self, reason: str) -> None:
        """Say that this batch cannot be trained on. The system tries it in parts, to find the turn at fault."""
        if self._is_kept is None:
            self._finish({"failed": {"id": self.id, "reason": reason}})

    def _finish(self, answer: Mapping[str, Any]) -> None:
        self._rejection = self._stream.finish_batch(answer)
        self._is_kept = self._rejection is None

    @property
    def is_answered(self) -> bool:
        """Whether the batch was acknowledged or refused."""
        return self._is_kept is not None

    @property
    def is_kept(self) -> bool | None:
        """Whether the weights were kept; None while the batch is not answered."""
        return self._is_kept

    @property
    def rejection(self) -> str | None:
        """Why the weights were not kept; None if they were, or while the batch is not answered."""
        return self._rejection


class BatchStream:
    """A connection to the train worker of a home. Iterating over it yields batches, and waits for the next one.

    It belongs to the process that connected: the copy that a fork has raises `RuntimeError`.
    """

    def __init__(self, connection: socket.socket, first: Mapping[str, Any]) -> None:
        """`first`: message that begins the connection."""
        self._connection = connection
        self._received = bytearray()
        self._owner = os.getpid()
        self._load: StartWeights | None = None
        self._batch: TurnBatch | None = None
        try:
            self._send(first)
            self.welcome = self._receive("welcome")
        except StreamEnded:
            self.close()
            raise
        """Answer of the system: `base` (path or hub id of the model), `method`, `lora` (rank, alpha, targets)."""

    @classmethod
    def connect(cls, home: str | Path, *, name: str = "trainer") -> BatchStream:
        """Connect to the train worker of the home. Raises `StreamEnded` if none waits for a trainer."""
        hello = {"protocol": PROTOCOL, "name": name, "pid": os.getpid()}
        return cls(_open_connection(Path(home)), {"hello": hello})

    @classmethod
    def describe_worker(cls, home: str | Path) -> dict[str, Any]:
        """Return the worker's `welcome` and, as `trainer`, who is connected or None. Takes no trainer's place.

        Raises `StreamEnded` also if the worker does not answer within `DESCRIBE_SECONDS`, as one that is frozen.
        """
        with cls(_open_connection(Path(home), within=DESCRIBE_SECONDS), {"describe": {}}) as stream:
            return stream.welcome

    def __iter__(self) -> Iterator[TurnBatch]:
        while True:
            batch = self.current_batch()
            yield batch
            if not batch.is_answered:
                raise RuntimeError(
                    f"batch {batch.id}: expected acknowledge() or refuse() before the next batch"
                )

    def current_batch(self) -> TurnBatch:
        """Return the batch that is not answered yet, or wait for the next one."""
        while self._batch is None or self._batch.is_answered:
            self.receive_batch()
        return self._batch

    def receive_batch(self) -> TurnBatch | None:
        """Wait for one message. Return the batch in it; None if it has the weights from which to begin."""
        message = self._read()
        if "load" in message:
            self._load = StartWeights(message["load"]["folder"])
            self._send({"loaded": True})
            return None
        if "batch" not in message:
            raise StreamEnded(f"unexpected message {sorted(message)}")
        about = message["batch"]
        load = self._load
        self._load = None
        self._batch = TurnBatch(
            about["id"], about["version"], about["folder"], about["rows"], load, self
        )
        return self._batch

    def has_message(self) -> bool:
        """Return whether the train worker has sent something, a batch or its end, that was not read."""
        return b"\n" in self._received or bool(select.select([self._connection], [], [], 0)[0])

    def fileno(self) -> int:
        """Return the socket's descriptor, for `select`; ask `has_message` first."""
        return self._connection.fileno()

    def receive_end(self) -> NoReturn:
        """Read what came although the train worker waits for an answer: its end. Raises `StreamEnded`."""
        message = self._read()
        raise StreamEnded(f"unexpected message {sorted(message)}")

    def finish_batch(self, message: Mapping[str, Any]) -> str | None:
        """Send the answer to a batch. Return why the weights were not kept, or None, once it is decided."""
        self._send(message)
        answer = self._read()
        if "kept" in answer:
            return None
        if "rejected" not in answer:
            raise StreamEnded(f"expected kept or rejected, got {sorted(answer)}")
        return str(answer["rejected"]["reason"])

    def close(self) -> None:
        """End the connection. A batch that was not acknowledged is free again."""
        self._connection.close()

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._require_owner()
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            # The worker may have said why.
            self.receive_end()

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(
                "batches are read in the process that connected: set dataloader_num_workers to 0"
            )

    def _receive(self, kind: str) -> dict[str, Any]:
        message = self._read()
        if kind not in message:
            raise StreamEnded(f"expected {kind}, got {sorted(message)}")
        content: dict[str, Any] = message[kind]
        return content

    def _read(self) -> dict[str, Any]:
        line = self._read_line()
        message: dict[str, Any] = json.loads(line)
        if "refused" in message:
            raise StreamEnded(message["refused"])
        return message

    def _read_line(self) -> bytearray:
        """Return the next line. A batch of long prompts is a line of 100 MB, so no byte is looked at twice."""
        self._require_owner()
        seen = 0
        while (end := self._received.find(b"\n", seen)) < 0:
            seen = len(self._received)
            try:
                more = self._connection.recv(1 << 20)
                reason = ""
            except TimeoutError:
                raise StreamEnded(
                    f"the train worker does not answer within {DESCRIBE_SECONDS:g} s"
                ) from None
            except OSError as error:
                more = b""
                reason = f" ({error})"
            if not more:
                raise StreamEnded(f"the train worker has ended{reason}")
            self._received += more
        line = self._received[:end]
        del self._received[: end + 1]
        return line


def _open_connection(home: Path, *, within: float | None = None) -> socket.socket:
    """Connect. `within`: seconds that each wait for the worker may take; None: without a limit."""
    path = home.expanduser() / SOCKET_NAME
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(within)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise StreamEnded(
            f"{path}: no train worker listens there ({error}). Start the system with train.trainer: external"
        ) from error
    return connection
