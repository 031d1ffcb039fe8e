"""Training step against TRL's: the same model, the same tokens, LoRA on all linear layers, one optimizer step.

    python benchmarks/trainer.py [--rounds 3]

Each step runs in a separate process, ours and TRL's alternately. Ours is the trainer's whole step (the policy before,
the frozen base, the step, the policy after it, the folder on disk). TRL's is what `GRPOTrainer` does for a batch that
was sampled elsewhere: reference log-probabilities (beta 0.1), loss and gradients by 8 rows, AdamW. Memory is the
growth of the process's peak since before the first step. Each process has the environment in which its own program
starts it: ours asks torch for huge pages. With huge pages, TRL's step on 1 turn is about 10% faster.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings, trainer_variables

VOCABULARY = 8192
MODEL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
# Sessions, turns of each, tokens: trunk of all, what the person says, the reply.
SHAPES = {
    "1 turn": (1, 1, 400, 40, 60),
    "4 turns": (1, 4, 400, 40, 60),
    "10 turns": (1, 10, 400, 40, 60),
    "20 turns": (1, 20, 400, 40, 60),
    # 8k and 150 tokens a turn, a quarter of each.
    "OpenClaw: 4 sessions of 4 turns": (4, 4, 2048, 13, 38),
}
RESULTS = Path(__file__).parent / "results" / "trainer.md"
HEAD = (
    "| batch | TRL, turns/s | ours, turns/s | times | TRL, peak MiB | ours, peak MiB | share |",
    "|---|---|---|---|---|---|---|",
)
# TRL's default per_device_train_batch_size.
MICRO_ROWS = 8


def samples(shape: str) -> list[Sample]:
    """The turns of some sessions, each upon those before it, all on one trunk."""
    sessions, turns, trunk, said, reply = SHAPES[shape]
    rng = np.random.default_rng(0)

    def draw(n: int) -> np.ndarray:
        return rng.integers(0, VOCABULARY, n).astype(np.int32)

    start = draw(trunk)
    out = []
    for session in range(sessions):
        history = start
        for turn in range(turns):
            prompt = np.concatenate([history, draw(said)])
            response = draw(reply)
            out.append(
                Sample(
                    turn=f"{session}-{turn}",
                    agent="a",
                    prompt_ids=prompt,
                    response_ids=response,
                    logprobs=np.full(reply, -np.log(VOCABULARY), np.float32),
                    mask=np.ones(reply, np.bool_),
                    temperature=1.0,
                    version=0,
                    reward=float(rng.choice([-1.0, 1.0])),
                )
            )
            history = np.concatenate([prompt, response])
    return out


def make_model(folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**MODEL)).save_pretrained(folder)


# ----------------------------------------------------------------------------------------- children


def ours(folder: Path, batch: Sequence[Sample]) -> Callable[[], None]:
    from openclaw_rl.learner.trainer import LocalTrainer

    # The trust region takes no part: TRL has none, and how often it halves depends on the learning rate.
    train = train_settings(
        {
            "method": "binary",
            "safety.max_turn_log_ratio": 1e9,
            "loss.token_ratio_min": 1e-9,
            "loss.token_ratio_max": 1e9,
            "safety.max_step_kl": 1e9,
            "batch.micro_tokens": 16384,
        }
    )
    method = make_method(train_settings({"method": "binary"}))
    trainer = LocalTrainer(str(folder), method, train)
    scratch = tempfile.mkdtemp(dir=folder.parent)

    def step() -> None:
        result = trainer.step(batch, str(Path(scratch) / str(time.monotonic_ns())))
        assert result.folder is not None, result.dropped

    return step


def theirs(folder: Path, batch: Sequence[Sample]) -> Callable[[], None]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(dir=folder.parent), use_cpu=True, report_to=[], beta=0.1, epsilon_high=0.28,
        per_device_train_batch_size=MICRO_ROWS, num_generations=MICRO_ROWS, max_completion_length=256, bf16=False,
        learning_rate=1.5e-3, gradient_checkpointing=False, loss_type="dr_grpo",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 8}),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"
        ),
    )
    model = trainer.model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1.5e-3)
    micro = [_padded(batch[at : at + MICRO_ROWS]) for at in range(0, len(batch), MICRO_ROWS)]

    def step() -> None:
        trainer.current_gradient_accumulation_steps = len(micro)
        for inputs in micro:
            with torch.no_grad(), model.disable_adapter():
                ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
                mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
                reference, *_ = trainer._get_per_token_logps_and_entropies(
                    model, ids, mask, inputs["completion_ids"].shape[1]
                )
            trainer._compute_loss(model, inputs | {"ref_per_token_logps": reference}).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _padded(batch: Sequence[Sample]) -> dict[str, Any]:
    """As TRL pads: prompts on the left, completions on the right."""
    import torch

    p = max(len(s.prompt_ids) for s in batch)
    r = max(len(s.response_ids) for s in batch)
    out = {
        "prompt_ids": torch.zeros(len(batch), p, dtype=torch.long),
        "prompt_mask": torch.zeros(len(batch), p, dtype=torch.long),
        "completion_ids": torch.zeros(len(batch), r, dtype=torch.long),
        "completion_mask": torch.zeros(len(batch), r, dtype=torch.long),
        "old_per_token_logps": torch.zeros(len(batch), r),
        "advantages": torch.tensor([s.reward or 0.0 for s in batch]),
    }
    for i, s in enumerate(batch):
        out["prompt_ids"][i, p - len(s.prompt_ids) :] = torch.from_numpy(
            s.prompt_ids.astype(np.int64)
        )
        out["prompt_mask"][i, p - len(s.prompt_ids) :] = 1
        out["completion_ids"][i, : len(s.response_ids)] = torch.from_numpy(
            s.response_ids.astype(np.int64)
        )
        out["completion_mask"][i, : len(s.response_ids)] = 1
        out["old_per_token_logps"][i, : len(s.response_ids)] = torch.from_numpy(s.logprobs)
    return out


def child(side: str, shape: str, folder: Path) -> None:
    """Two steps: memory is what the first one takes, time is the faster one's."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    batch = samples(shape)
    make = {"ours": ours, "trl": theirs}[side]
    step = make(folder, batch)
    before = _peak()
    began = time.perf_counter()
    step()
    first = time.perf_counter() - began
    peak = _peak() - before
    began = time.perf_counter()
    step()
    seconds = min(first, time.perf_counter() - began)
    sys.stdout.write(json.dumps({"seconds": seconds, "mib": peak}) + "\n")


def _peak() -> float:
    """MiB: the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ------------------------------------------------------------------------------------------- parent


def measure(side: str, shape: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", side, "--shape", shape, "--folder", str(folder)]
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    # Each as its own program starts it.
    env = dict(os.environ) | (trainer_variables() if side == "ours" else {}) | fixed
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{side}, {shape}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=["ours", "trl"])
    parser.add_argument("--shape", choices=list(SHAPES))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.shape, given.folder)
        return
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        make_model(folder)
        for shape in [given.shape] if given.shape else SHAPES:
            runs: dict[str, list[dict[str, float]]] = {"trl": [], "ours": []}
            for _ in range(given.rounds):
                for side, into in runs.items():
                    into.append(measure(side, shape, folder))
            rows.append(_row(shape, runs))
            print(rows[-1], flush=True)
    text = "\n".join([__doc__.split("\n", 1)[0], "", *HEAD, *rows, "", __doc__.split("\n\n", 2)[2]])
    # Only as a script, whose folder is on the path.
    from provenance import write_result

    write_result(RESULTS, text)


def _row(shape: str, runs: dict[str, list[dict[str, float]]]) -> str:
    count = len(samples(shape))
    seconds = {side: statistics.median(r["seconds"] for r in of) for side, of in runs.items()}
    mib = {side: statistics.median(r["mib"] for r in of) for side, of in runs.items()}
    return (
        f"| {shape} | {count / seconds['trl']:.2f} | {count / seconds['ours']:.2f} "
        f"| {seconds['trl'] / seconds['ours']:.1f} | {mib['trl']:.0f} | {mib['ours']:.0f} "
        f"| {mib['ours'] / mib['trl']:.2f} |"
    )


if __name__ == "__main__":
    main()
