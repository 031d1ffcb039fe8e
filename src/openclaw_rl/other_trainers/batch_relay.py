"""`openclaw-rl data stream`: batches as JSON lines on stdout, answers as JSON lines from stdin."""

from __future__ import annotations

import errno
import json
import os
import select
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded, TurnBatch


class DoneAnswer(msgspec.Struct, tag_field="kind", tag="done"):
    """The weights after the batch are in its folder. `metrics` and `dropped`: as for `TurnBatch.acknowledge`."""

    id: int
    metrics: dict[str, float] = {}
    dropped: dict[str, str] = {}


class FailedAnswer(msgspec.Struct, tag_field="kind", tag="failed"):
    """The batch cannot be trained on."""

    id: int
    reason: str = ""


class BatchRelay:
    """Relay between a `BatchStream` and a program that reads and writes lines. Ends when the program's lines end.

    Without an answer to it, the batch that was written last is then free again.
    """

    def __init__(
        self,
        stream: BatchStream,
        source: int,
        target: int,
        write: Callable[[dict[str, Any]], None],
        report: Callable[[str], None],
    ) -> None:
        """`source`: file descriptor of the answers; `target`: of the messages, to see whether they are still read.

        `write`: of a message; `report`: of progress, for people.
        """
        self._stream = stream
        self._source = source
        self._target = target
        self._write = write
        self._report = report
        self._received = b""
        # Waits for its answer.
        self._batch: TurnBatch | None = None
        # Batch -> why its weights were not kept, or None.
        self._rejections: dict[int, str | None] = {}
        # That were acknowledged.
        self._turns = 0

    def relay_batches(self) -> None:
        """Relay until there are no more answers. Raises `StreamEnded` as soon as the train worker ends before."""
        self._write({"welcome": self._stream.welcome})
        self._report("connected; waiting for a batch")
        try:
            while self._relay_next():
                pass
        except StreamEnded as error:
            which = (
                f" Batch {self._batch.id} is free again, unless its version was kept."
                if self._batch
                else ""
            )
            raise StreamEnded(
                f"{error}.{which} Run this command again when the system runs"
            ) from error

    def _relay_next(self) -> bool:
        """Wait for a batch or for answers, and pass them on. Return False at the end of the answers."""
        if self._batch is None and self._stream.has_message():
            batch = self._stream.receive_batch()
            if batch is None:
                # The batch may come much later.
                return True
            self._write_batch(batch)
        ready = self._wait_for_events()
        if self._batch is not None and self._stream.fileno() in ready:
            self._stream.receive_end()
        return self._source not in ready or self._read_answers()

    def _wait_for_events(self) -> Collection[int]:
        """Wait for answers, or for the train worker. Return the descriptors that can be read.

        Raises `BrokenPipeError` if nobody would read the next batch, which may come days later. A batch that was
        written can still be answered.
        """
        watch = select.poll()
        for descriptor in (self._source, self._stream.fileno()):
            watch.register(descriptor, select.POLLIN)
        if self._batch is None:
            # Errors are always reported.
            watch.register(self._target, 0)
        events = dict(watch.poll())
        if events.pop(self._target, 0) & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return events

    def _write_batch(self, batch: TurnBatch) -> None:
        self._batch = batch
        if batch.load is not None:
            self._write({"load": {"folder": batch.load.folder}})
        about = {
            "id": batch.id,
            "version": batch.version,
            "folder": batch.folder,
            "rows": batch.rows,
        }
        self._write({"batch": about})

    def _read_answers(self) -> bool:
        """Handle the lines that are there. Return False at the end of the input."""
        more = os.read(self._source, 1 << 20)
        # The last line may have no end.
        *lines, self._received = (self._received + (more or b"\n")).split(b"\n")
        for line in filter(None, lines):
            try:
                self._handle_answer(_parse_answer(line))
            except ValueError as error:
                self._write({"error": str(error)})
        return bool(more)

    def _handle_answer(self, answer: DoneAnswer | FailedAnswer) -> None:
        """Pass an answer on. One for a batch that was answered before changes nothing and gets the same reply."""
        if answer.id not in self._rejections:
            if self._batch is None or answer.id != self._batch.id:
                raise ValueError(f"batch {answer.id} is not the one that waits for an answer")
            self._answer_batch(self._batch, answer)
        reason = self._rejections[answer.id]
        self._write({"answer": {"id": answer.id, "kept": reason is None, "reason": reason}})

    def _answer_batch(self, batch: TurnBatch, answer: DoneAnswer | FailedAnswer) -> None:
        if isinstance(answer, DoneAnswer):
            batch.acknowledge(answer.metrics, dropped=answer.dropped)
        else:
            batch.refuse(answer.reason)
        self._rejections[batch.id] = batch.rejection
        self._batch = None
        self._turns += len({row["turn"] for row in batch.rows}) if batch.is_kept else 0
        result = (
            f"version {batch.version} is kept"
            if batch.is_kept
            else f"weights were not kept: {batch.rejection}"
        )
        self._report(f"batch {batch.id}: {result}; {self._turns} turns acknowledged")


def _parse_answer(line: bytes) -> DoneAnswer | FailedAnswer:
    """Raises `ValueError` with the reason. NaN and infinity are read: the gate refuses them."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    expected = 'expected {"done": {"id": ...}} or {"failed": {"id": ...}}'
    if not isinstance(message, dict) or len(message) != 1:
        raise ValueError(expected)
    ((kind, body),) = message.items()
    if not isinstance(body, dict):
        raise ValueError(expected)
    return msgspec.convert(body | {"kind": kind}, DoneAnswer | FailedAnswer)
