"""Claims batches for slime from the train worker, and acknowledges each when slime has written its new weights."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.engines.remote import trainer_weights
from openclaw_rl.other_trainers.batch_stream import (
    BatchStream,
    StartWeights,
    StreamEnded,
    TurnBatch,
)
from openclaw_rl.other_trainers.slime import teacher, weight_files
from openclaw_rl.other_trainers.slime.mailbox import POLL_SECONDS, Mailbox
from openclaw_rl.other_trainers.slime.options import SlimeOptions, method_problem
from openclaw_rl.other_trainers.slime.samples import (
    Fields,
    Row,
    fill_up,
    sample_fields,
    split_fit_rows,
)

_CONCURRENT_SCORINGS = 8
CONNECT_SECONDS = 600.0
"""Seconds for which slime waits for the train worker, so that either may be started first."""


class FeedUnfit(Exception):
    """Raised when slime and the system do not fit together. The text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """Fields of the samples for slime, and the turns that it does not get, each with the reason."""

    samples: list[Fields]
    dropped: dict[str, str]


class BatchFeed:
    """Connection to the train worker. At most one batch is open: slime trains on it.

    After an error there is no connection, and the batch is free again. The next call connects and claims again.
    """

    def __init__(self, options: SlimeOptions, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        """Connect. Raises `StreamEnded` if no train worker waits, `FeedUnfit` if its settings do not fit.

        Raises `ValueError` if the file with the base's fingerprint is damaged.
        """
        self._options = options
        self._mailbox = Mailbox(options.mailbox)
        self._connect_seconds = connect_seconds
        self._settling: threading.Thread | None = None
        # Of the batch that slime trains on.
        self._open_token: str | None = None
        # Of slime, as its first weights say.
        self._run: str | None = None
        # Folder name of the version that slime has; None: the base.
        self._weights: str | None = None
        # Of the weights that slime began with.
        self._fingerprint = ""
        self._stream: BatchStream | None = self._connect()

    def next_samples(self) -> list[Fields]:
        """Wait for a batch and return its samples. Raises `FeedUnfit`, `StreamEnded`, `TeacherUnfit`."""
        if self._open_token is not None and self._mailbox.get("batch") is not None:
            raise FeedUnfit(
                "slime asks for a batch and has not published the weights of the last one. Use train.py, not "
                "train_async.py, and --custom-update-weight-post-write-path"
            )
        try:
            return self._claim_samples()
        except BaseException:
            # The batch would stay claimed until slime ends.
            self._disconnect()
            raise

    def release_batch(self) -> None:
        """Free the batch that `next_samples` returned: slime does not get it."""
        self._disconnect()
        self._mailbox.clear("batch")

    def close(self) -> None:
        """End the connection. A batch that slime did not finish is free again."""
        self._open_token = None
        if self._settling is not None:
            self._settling.join()
        self._disconnect()

    def _claim_samples(self) -> list[Fields]:
        start = self._mailbox.get("start")
        is_other_run = start is not None and start["run"] != self._run
        # Slime began again: the open batch was of its last run.
        if is_other_run:
            self._disconnect()
        if self._stream is None:
            self._stream = self._connect()
        while True:
            batch = self._stream.current_batch()
            if batch.load is not None:
                self._check_start(batch.load)
            prepared = self._prepare(batch.rows)
            if prepared.samples:
                samples = fill_up(prepared.samples, self._options.global_batch_size)
                self._open_batch(batch, prepared.dropped)
                return samples
            batch.acknowledge(dropped=prepared.dropped)

    def _connect(self) -> BatchStream:
        _wait_for_worker(self._options.home, self._connect_seconds)
        stream = BatchStream.connect(self._options.home, name="slime")
        try:
            self._check_settings(stream.welcome)
            self._identify_start()
        except BaseException:
            # The train worker would wait for a trainer that has ended.
            stream.close()
            raise
        return stream

    def _disconnect(self) -> None:
        """End the connection, also of a batch whose weights slime has not handed over."""
        self._open_token = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _check_settings(self, welcome: Mapping[str, Any]) -> None:
        self._method = str(welcome["method"])
        has_teacher = self._options.teacher_url is not None
        problem = method_problem(self._method, str(welcome["finetune"]), has_teacher=has_teacher)
        if problem is not None:
            raise FeedUnfit(problem)

    def _identify_start(self) -> None:
        """Find the version with which this run of slime began. Its later weights are known."""
        start = self._mailbox.get("start")
        if start is None:
            raise FeedUnfit(
                "slime has not written its weights yet: its train.py updates weights before it asks"
            )
        if start["run"] == self._run:
            return
        self._fingerprint = start["fingerprint"]
        self._weights = weight_files.find_version(self._options.home, self._fingerprint)
        if self._weights is None and weight_files.read_base(self._options.home) not in (
            None,
            self._fingerprint,
        ):
            raise FeedUnfit(
                "slime began with weights that are neither the base nor a version: perhaps its last checkpoint is of a "
                "step that was not kept. Start it with weights of the head (`openclaw-rl policies list`). If they are "
                f"the base, remove {self._options.home / weight_files.BASE_FILE}"
            )
        trainer_weights.start_record(
            self._options.home,
            start["tag"],
            self._weights,
            run=start["run"],
            run_file=self._mailbox.path_of("start"),
        )
        self._run = start["run"]

    def _check_start(self, load: StartWeights) -> None:
        """Raise unless slime has the weights from which the next step starts."""
        wanted = None if load.folder is None else Path(load.folder).name
        if wanted != self._weights:
            start = load.folder or "the base"
            current = self._weights or "other weights"
            raise FeedUnfit(
                f"the next step starts from {start}, and slime has {current}: "
                "after a rollback or an undo, start slime again with a checkpoint of these weights (--load)"
            )
        if wanted is None:
            weight_files.record_base(self._options.home, self._fingerprint)

    def _prepare(self, rows: Sequence[Row]) -> PreparedBatch:
        options = self._options
        has_teacher = self._options.teacher_url is not None
        fit, dropped = split_fit_rows(
            rows, temperature=options.temperature, has_teacher=has_teacher
        )
        with ThreadPoolExecutor(_CONCURRENT_SCORINGS) as pool:
            scored = list(pool.map(self._score_teacher, fit))
        pairs = enumerate(zip(fit, scored, strict=True))
        samples = [
            sample_fields(row, n, method=self._method, teacher=logprobs)
            for n, (row, logprobs) in pairs
        ]
        return PreparedBatch(samples=samples, dropped=dropped)

    def _score_teacher(self, row: Row) -> list[float] | None:
        """Return the teacher's log-probabilities; without a hint, those at sampling, so that the term is 0."""
        if self._options.teacher_url is None:
            return None
        if not row["hinted_prompts"]:
            return list(row["logprobs"])
        return teacher.score_reply(
            self._options.teacher_url, row["hinted_prompts"], row["response_ids"]
        )

    def _open_batch(self, batch: TurnBatch, dropped: dict[str, str]) -> None:
        token = self._open_token = uuid.uuid4().hex
        self._mailbox.clear("written", "answer")
        self._mailbox.put("batch", token=token, id=batch.id, version=batch.version)
        self._settling = threading.Thread(
            target=self._settle_batch, args=(batch, dropped, token), name="slime-batch", daemon=True
        )
        self._settling.start()

    def _settle_batch(self, batch: TurnBatch, dropped: dict[str, str], token: str) -> None:
        """Acknowledge the batch with the weights that the hook names, and say whether they were kept."""
        written = self._mailbox.wait_for("written", token, lambda: self._open_token == token)
        if written is None:
            return
        try:
            problem = self._acknowledge(batch, written, dropped)
        except (StreamEnded, OSError, ValueError) as error:
            problem = f"the version was not written: {error}"
            # The batch is free again.
            self._disconnect()
        self._mailbox.clear("batch")
        self._mailbox.put("answer", token=token, problem=problem)

    def _acknowledge(
        self, batch: TurnBatch, written: dict[str, Any], dropped: dict[str, str]
    ) -> str | None:
        folder = Path(batch.folder)
        # Whatever becomes of the step, slime has no others.
        self._weights = folder.name
        weight_files.take_over(Path(written["folder"]), folder)
        trainer_weights.add_weights(self._options.home, written["tag"], folder.name)
        if batch.acknowledge(dropped=dropped):
            return None
        return (
            f"OpenClaw-RL did not keep the step: {batch.rejection}. slime cannot take it back: start it again from a "
            "checkpoint before this step"
        )


def _wait_for_worker(home: Path, seconds: float) -> None:
    """Return when the train worker answers, or after these seconds. A worker that was killed leaves its socket."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(StreamEnded):
            BatchStream.describe_worker(home)
            return
        time.sleep(POLL_SECONDS)
