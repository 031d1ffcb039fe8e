"""Time and memory of one training step, against batch size and context length.

python benchmarks/cost.py [--rounds 3] [--most 32768]
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings.load import train_settings, trainer_variables

PAGE = Path(__file__).parent.parent / "docs" / "results" / "performance.md"
VOCABULARY = 4096
MODEL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 65_536,
    "tie_word_embeddings": True,
}
# Of every session of the first table.
CONTEXT = 1024
# Of a session.
TURNS = 4
LEAST = 1024
HEAD = (
    "| tokens | turns | s | ms per 1000 tokens | peak MiB | attention's share |",
    "|---|---|---|---|---|---|",
)
TEXT = """\
# Training step cost

Measured by `make bench` (`benchmarks/cost.py`) on a CPU, one thread, with a small model (4 layers of width 128, a
vocabulary of 4,096). One step is everything that the local trainer does for a batch: scoring under the policy and the
frozen base, forward and backward passes, the optimizer, scoring under the new policy, and writing its folder. Tokens
are those of the batch's prefix tree, which holds a shared prefix once. Memory is the growth of the process's peak. For
GPUs see [GPU](../guides/gpu.md).

## More conversations

Each session has {turns} turns and {context} tokens in all. For {times:.0f} times the tokens, a step takes
{growth:.1f} times as long and {wider:.1f} times the memory. Memory grows less than time because one forward pass has at
most `train.batch.micro_tokens` (4,096) tokens.

{sessions}

## Longer conversations

One session of {turns} turns with a growing context. The cost of attention is linear in the pairs of a token and a
token that it attends to; all other cost is linear in tokens. Attention's share of the operations therefore grows with
the context. The share in the table is computed, not measured. A context takes one forward pass even if it is longer
than `train.batch.micro_tokens`, so memory grows with the context. When the available memory is used up, layers are
recomputed (`train.gradient_checkpointing`).

{contexts}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sessions that share nothing."""

    sessions: int
    context: int  # tokens of each, the last reply's last one included

    @property
    def tokens(self) -> int:
        return self.sessions * self.context


def rows(batch: Batch) -> list[TokenSequence]:
    """An eighth of a session's tokens is replies."""
    random = np.random.default_rng(0)
    out = []
    piece = batch.context // (8 * TURNS)

    def draw(n: int) -> np.ndarray:
        return random.integers(0, VOCABULARY, n).astype(np.int32)

    for _ in range(batch.sessions):
        history = draw(batch.context + 1 - 2 * TURNS * piece)
        for _ in range(TURNS):
            prompt = np.concatenate([history, draw(piece)])
            answer = draw(piece)
            out.append(TokenSequence(prompt_ids=prompt, response_ids=answer, temperature=1.0))
            history = np.concatenate([prompt, answer])
    return out


def share(batch: Batch) -> float:
    """Attention's of a forward pass's operations: 4 S L H D of that, 2 N T and the head's 2 V h K."""
    import flops

    work = flops.work_of(rows(Batch(sessions=1, context=batch.context)))
    attention = (
        4
        * work.pairs
        * MODEL["num_hidden_layers"]
        * MODEL["num_attention_heads"]
        * MODEL["head_dim"]
    )
    rest = (
        2 * flops.linear(MODEL) * work.tokens + 2 * VOCABULARY * MODEL["hidden_size"] * work.asked
    )
    return attention / (attention + rest)


# -------------------------------------------------------------------------------------------- child


def child(batch: Batch, folder: Path) -> None:
    """Two steps: memory is what they take, time is the processor time of the faster one."""
    import torch

    import qwen3
    from openclaw_rl.learner.trainer import LocalTrainer

    torch.set_num_threads(1)
    # No trust region: how often it halves a step is no matter of tokens.
    train = train_settings(
        {
            "method": "binary",
            "safety.max_turn_log_ratio": 1e9,
            "loss.token_ratio_min": 1e-9,
            "loss.token_ratio_max": 1e9,
            "safety.max_step_kl": 1e9,
        }
    )
    method = make_method(train_settings({"method": "binary"}))
    trainer = LocalTrainer(str(folder), method, train)
    samples = qwen3.samples(rows(batch))
    before = _peak()
    seconds = []
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        for n in range(2):
            began = time.process_time()
            done = trainer.step(samples, f"{scratch}/{n}")
            assert done.folder is not None, done.dropped
            seconds.append(time.process_time() - began)
    sys.stdout.write(json.dumps({"seconds": min(seconds), "mib": _peak() - before}) + "\n")


def _peak() -> float:
    """MiB: the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ------------------------------------------------------------------------------------------- parent


def make_model(folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**MODEL)).save_pretrained(folder)


def measure(batch: Batch, folder: Path, rounds: int) -> tuple[float, float]:
    """(seconds, MiB): medians over processes."""
    command = [
        sys.executable,
        __file__,
        "--child",
        str(batch.sessions),
        str(batch.context),
        "--folder",
        str(folder),
    ]
    env = dict(os.environ) | trainer_variables() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    found = []
    for _ in range(rounds):
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=1800, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{batch}: {done.stderr[-2000:]}")
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return statistics.median(f["seconds"] for f in found), statistics.median(
        f["mib"] for f in found
    )


def table(
    batches: Sequence[Batch], folder: Path, rounds: int
) -> tuple[list[str], list[tuple[float, float]]]:
    """(lines, seconds and MiB)."""
    lines = list(HEAD)
    found = []
    for batch in batches:
        took, mib = measure(batch, folder, rounds)
        found.append((took, mib))
        lines.append(
            f"| {batch.tokens} | {batch.sessions * TURNS} | {took:.2f} | {1e6 * took / batch.tokens:.0f} | {mib:.0f} "
            f"| {share(batch):.0%} |"
        )
        print(lines[-1], flush=True)
    return lines, found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=32_768, help="tokens of the largest batch")
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--child", nargs=2, type=int, metavar=("SESSIONS", "CONTEXT"))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.child:
        child(Batch(sessions=given.child[0], context=given.child[1]), given.folder)
        return
    sizes = [LEAST * 2**n for n in range(16) if LEAST * 2**n <= given.most]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        make_model(folder)
        many = [Batch(sessions=size // CONTEXT, context=CONTEXT) for size in sizes]
        sessions, found = table(many, folder, given.rounds)
        contexts, _ = table(
            [Batch(sessions=1, context=size) for size in sizes], folder, given.rounds
        )
    text = TEXT.format(
        turns=TURNS,
        context=CONTEXT,
        growth=found[-1][0] / found[0][0],
        wider=found[-1][1] / found[0][1],
        times=sizes[-1] / sizes[0],
        sessions="\n".join(sessions),
        contexts="\n".join(contexts),
    )
    # Only as a script, whose folder is on the path.
    from provenance import write_result

    write_result(given.out, text)


if __name__ == "__main__":
    main()
