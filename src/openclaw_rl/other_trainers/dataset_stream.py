"""Batches as a stream of `datasets`, for trainers that read one. One pass over the stream is one batch.

    from openclaw_rl.other_trainers.batch_stream import BatchStream
    from openclaw_rl.other_trainers.dataset_stream import stream_dataset

    stream = BatchStream.connect("~/.openclaw-rl")
    rows = stream_dataset(stream)                     # an IterableDataset; .map, .filter and .with_format as usual
    for _ in range(100):
        train_on(rows)                                # any number of passes over the same batch
        model.save_pretrained(stream.current_batch().folder)
        stream.current_batch().acknowledge()          # the next pass waits for the next batch

A pass ends with the batch, so a data loader that reads ahead cannot take turns of a batch that is not trained on yet.
Needs `batch_stream.py` and the library `datasets`, nothing else of OpenClaw-RL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datasets import Features, IterableDataset, List, Value

from openclaw_rl.other_trainers.batch_stream import BatchStream


def stream_dataset(stream: BatchStream) -> IterableDataset:
    """Return the rows of the batch that is not answered yet, else of the next one, at each pass.

    A row has the fields of `TurnBatch`, and `batch`, the batch's number. Read it in this process
    (`dataloader_num_workers=0`): a worker of a data loader gets an error.
    """
    return IterableDataset.from_generator(CurrentRows(stream), features=row_features())


class CurrentRows:
    """Generator function of the rows of the current batch."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def __call__(self) -> Iterator[dict[str, Any]]:
        batch = self._stream.current_batch()
        for row in batch.rows:
            yield {"batch": batch.id} | row

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the connection: `datasets` hashes the generator, and nobody else may have a copy."""
        return _raise_copied, ()


def row_features() -> Features:
    """Return the types of a row. Log-probabilities are the float32 values of sampling time."""
    ids = List(Value("int32"))
    floats = List(Value("float64"))
    episode = {
        "group": Value("string"),
        "episode": Value("string"),
        "step": Value("int32"),
        "reward": Value("float64"),
        "step_reward": Value("float64"),
        "rewards": floats,
        "step_rewards": floats,
    }
    return Features(
        {
            "batch": Value("int64"),
            "turn": Value("string"),
            "agent": Value("string"),
            "prompt_ids": ids,
            "response_ids": ids,
            "logprobs": List(Value("float32")),
            "mask": List(Value("bool")),
            "temperature": Value("float64"),
            "version": Value("int64"),
            "reward": Value("float64"),
            "weight": Value("float64"),
            "hinted_prompts": List(ids),
            "on_policy": Value("bool"),
            "replay": Value("bool"),
            "from_teacher": Value("bool"),
            "episode": episode,
        }
    )


def _raise_copied() -> None:
    raise RuntimeError("a copy of the stream cannot be read: set dataloader_num_workers to 0")
