"""TRL as the trainer of a running system: KTO on the judged turns, with a policy version after each batch.

    openclaw-rl up --set train.trainer=external --set train.method=binary --set gate.kind=numbers
    pip install "trl>=1.16,<2" peft
    python examples/other_trainers/trl_kto.py --home ~/.openclaw-rl

KTO learns from single replies that are good or bad, which is what reactions say. It gets the tokens as they were
sampled. Its reference is the base model. It ends when the system ends.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import TrainerCallback
from trl import KTOConfig, KTOTrainer

from openclaw_rl.other_trainers.batch_stream import (
    BatchStream,
    StartWeights,
    StreamEnded,
    TurnBatch,
)
from openclaw_rl.other_trainers.dataset_stream import stream_dataset

log = logging.getLogger("trl_kto")
ADAPTER_FILE = "adapter_model.safetensors"


class TurnKTOTrainer(KTOTrainer):  # type: ignore[misc]
    """`KTOTrainer` on rows that have token ids already."""

    def _prepare_dataset(self, dataset: IterableDataset, *_: Any) -> IterableDataset:
        """Return the dataset without tokenising text: sampled tokens are not what their text gives again."""
        return dataset


class BatchCallback(TrainerCallback):  # type: ignore[misc]
    """An epoch is a batch: before it, the weights to start from; after it, the weights of the next version."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream
        self._load: StartWeights | None = (
            None  # the weights to start from: at first, and after a step was not kept
        )
        self._first: Mapping[str, torch.Tensor] = {}  # the adapter that changes nothing

    def on_train_begin(self, *_: Any, model: PeftModel, **__: Any) -> None:
        self._first = {
            name: weight.clone() for name, weight in get_peft_model_state_dict(model).items()
        }

    def wait_for_batch(self) -> None:
        """Wait for a batch with a row for KTO. One without is acknowledged without weights, with the reasons."""
        while True:
            batch = self._stream.current_batch()
            self._load = batch.load or self._load
            dropped = unfit_turns(batch)
            if dropped.keys() < {row["turn"] for row in batch.rows}:
                return
            batch.acknowledge(dropped=dropped)

    def on_epoch_begin(self, *_: Any, model: PeftModel, optimizer: Any, **__: Any) -> None:
        self.wait_for_batch()
        if self._load is not None:
            folder, self._load = self._load.folder, None
            set_peft_model_state_dict(
                model, self._first if folder is None else load_file(Path(folder) / ADAPTER_FILE)
            )
            optimizer.state.clear()

    def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> Any:
        """End the epoch: a stream has no length, so `Trainer` would look for another step `max_steps` times."""
        control.should_epoch_stop = True
        return control

    def on_epoch_end(self, _: Any, state: Any, *__: Any, model: PeftModel, **___: Any) -> None:
        """Hand the weights over. The next replies are sampled from them."""
        batch = self._stream.current_batch()
        model.save_pretrained(batch.folder)
        loss, norm = (state.log_history[-1][name] for name in ("loss", "grad_norm"))
        metrics = {"loss/total": loss, "gradient/norm": norm}
        is_kept = batch.acknowledge(metrics, dropped=unfit_turns(batch))
        result = "kept" if is_kept else f"not kept: {batch.rejection}"
        log.info(
            "batch %d: %d turns, loss %.3f, version %d %s",
            batch.id,
            len(batch.rows),
            loss,
            batch.version,
            result,
        )


def unfit_turns(batch: TurnBatch) -> dict[str, str]:
    """Return the turns that are not trained on, each with the reason. A turn may have a second row, which is."""
    fit = {row["turn"] for row in batch.rows if unfit_reason(row) is None}
    return {
        row["turn"]: reason
        for row in batch.rows
        if (reason := unfit_reason(row)) and row["turn"] not in fit
    }


def unfit_reason(row: Mapping[str, Any]) -> str | None:
    """Return why KTO cannot learn from a row."""
    if row["reward"] is None or row["from_teacher"]:
        return "KTO needs a reply of the policy with a score"
    return (
        None
        if all(row["mask"])
        else "KTO trains every token of a reply, and not every token of this one may train"
    )


def to_kto_rows(rows: IterableDataset) -> IterableDataset:
    """Return the columns of KTO."""

    def rename(row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "prompt_ids": row["prompt_ids"],
            "completion_ids": row["response_ids"],
            "label": row["reward"] > 0,
        }

    others = [name for name in rows.column_names if name != "prompt_ids"]
    return rows.filter(lambda row: unfit_reason(row) is None).map(rename, remove_columns=others)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train the policy of a running system with TRL's KTOTrainer."
    )
    parser.add_argument("--home", default="~/.openclaw-rl")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument(
        "--beta", type=float, default=0.1, help="how much a deviation from the base counts [0.1]"
    )
    given = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        with (
            BatchStream.connect(given.home, name="TRL") as stream,
            tempfile.TemporaryDirectory() as folder,
        ):
            make_trainer(stream, given, folder).train()
    except StreamEnded as error:
        log.info("the stream has ended: %s", error)


def make_trainer(stream: BatchStream, given: argparse.Namespace, folder: str) -> KTOTrainer:
    """Return the trainer. `folder`: for what TRL writes, which is nothing that is needed."""
    lora, callback = stream.welcome["lora"], BatchCallback(stream)
    callback.wait_for_batch()  # the trainer looks at a row when it is made
    return TurnKTOTrainer(
        model=stream.welcome["base"],
        args=KTOConfig(
            output_dir=folder,
            learning_rate=given.learning_rate,
            lr_scheduler_type="constant",
            beta=given.beta,
            loss_type="apo_zero_unpaired",
            max_length=None,
            per_device_train_batch_size=1024,  # a batch of the stream is one step
            max_steps=10**9,  # until the stream ends
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_num_workers=0,  # the stream belongs to this process
        ),
        train_dataset=to_kto_rows(stream_dataset(stream)),
        peft_config=LoraConfig(
            r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["targets"]
        ),
        callbacks=[callback],
    )


if __name__ == "__main__":
    main()
