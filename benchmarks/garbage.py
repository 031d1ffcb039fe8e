"""Train on streams of garbage at thirty times the default learning rate, with and without the safety checks.

    python benchmarks/garbage.py

The streams are repeated tokens, random or constant rewards, rewards that flip, truncated replies, wrong
log-probabilities and turns of a much earlier policy: forty steps of eight turns each on a random two-layer model.
Writes the table in docs/concepts/training_safety.md; `tests/train/test_garbage.py` asserts the bounds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings

PAGE = Path(__file__).parent.parent / "docs" / "concepts" / "training_safety.md"
BEGIN = "<!-- made by benchmarks/garbage.py: begin -->"
END = "<!-- end -->"
V = 64
STEPS = 40
TURNS = 8
RATE = 0.05
UNBOUND = {"max_step_kl": 1e9, "kl_coef": 0.0, "max_gap": 1e9, "gap_low": 1e-9, "gap_high": 1e9}

Reward = Callable[[np.random.Generator], float | None]
Make = Callable[[LocalTrainer, np.random.Generator, int], list[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one stream: the metrics of each step that was taken, and of the others why not (one reason a batch)."""

    steps: list[dict[str, float]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    left_out: int = 0  # turns without gradient, of all


def turns(
    trainer: LocalTrainer, rng: np.random.Generator, reward: Reward, *, junk: bool, off: float
) -> list[Sample]:
    """Eight turns, of random words or one token over and over; `off`: nats that their log-probabilities are wrong."""
    rows = []
    errors = []
    rewards = []
    for _ in range(TURNS):
        prompt = rng.integers(0, V, 6).astype(np.int32)
        size = int(rng.integers(4, 12))
        response = np.full(size, rng.integers(V)) if junk else rng.integers(0, V, size)
        rows.append(
            TokenSequence(
                prompt_ids=prompt, response_ids=response.astype(np.int32), temperature=1.0
            )
        )
        errors.append(rng.normal(0, off, size) if off else np.zeros(size))
        rewards.append(reward(rng))
    return [
        Sample(
            turn=f"t{n}", agent="a", prompt_ids=row.prompt_ids, response_ids=row.response_ids,
            logprobs=(truth.numpy() + error).astype(np.float32), mask=np.ones(len(error), np.bool_), temperature=1.0,
            version=0, reward=score,
        )
        for n, (row, truth, error, score) in enumerate(zip(rows, trainer.logprobs(rows), errors, rewards, strict=True))
    ]  # fmt: skip


def _coin(rng: np.random.Generator) -> float:
    return float(rng.choice([-1.0, 1.0]))


def _spikes(trainer: LocalTrainer, rng: np.random.Generator, _: int) -> list[Sample]:
    """One token in ten is three nats off, as after a kernel's fault."""
    out = []
    for s in turns(trainer, rng, _coin, junk=False, off=0.0):
        wrong = (rng.random(len(s.mask)) < 0.1) * rng.choice([-3.0, 3.0], len(s.mask))
        out.append(replace(s, logprobs=(s.logprobs + wrong).astype(np.float32)))
    return out


def _truncated(trainer: LocalTrainer, rng: np.random.Generator, _: int) -> list[Sample]:
    """Every reply runs into its limit: no score counts, and the hints are noise."""
    made = turns(trainer, rng, lambda _: None, junk=True, off=0.0)
    return [replace(s, hinted_prompts=(rng.integers(0, V, 9).astype(np.int32),)) for s in made]


def _flip(trainer: LocalTrainer, rng: np.random.Generator, step: int) -> list[Sample]:
    """The same eight replies, praised in one step and blamed in the next."""
    made = turns(trainer, np.random.default_rng(1), lambda _: 1.0, junk=False, off=0.0)
    return [replace(s, reward=1.0 if (n + step) % 2 else -1.0) for n, s in enumerate(made)]


def _gone(trainer: LocalTrainer, rng: np.random.Generator, _: int) -> list[Sample]:
    """Replies that the base wrote, however many versions ago, always with the same score."""
    made = turns(trainer, np.random.default_rng(2), lambda _: 1.0, junk=False, off=0.0)
    rows = [
        TokenSequence(prompt_ids=s.prompt_ids, response_ids=s.response_ids, temperature=1.0)
        for s in made
    ]
    base = trainer.logprobs(rows, base=True)
    return [
        replace(s, logprobs=mu.numpy(), reward=1.0 if n % 2 else -1.0)
        for n, (s, mu) in enumerate(zip(made, base, strict=True))
    ]


def _plain(reward: Reward, *, junk: bool = False, off: float = 0.0) -> Make:
    return lambda trainer, rng, step: turns(trainer, rng, reward, junk=junk, off=off)


STREAMS: dict[str, Make] = {
    "repeated tokens, always praised": _plain(lambda rng: 1.0, junk=True),
    "random rewards": _plain(_coin),
    "every score is -1": _plain(lambda rng: -1.0),
    "every score is +1": _plain(lambda rng: 1.0),
    "wrong log-probabilities": _plain(_coin, off=0.4),
    "log-probabilities with spikes of three nats": _spikes,
    "truncated replies, random hints": _truncated,
    "praised and blamed alternately": _flip,
    "turns of a much earlier policy": _gone,
}


def run(base: str, out: Path, make: Make, *, count: int = STEPS, **settings: Any) -> Outcome:
    """`count` batches of one stream. `settings`: of `train`, besides the learning rate."""
    rng = np.random.default_rng(0)
    train = train_settings({"learning_rate": RATE} | settings)
    method = make_method(train)
    trainer = LocalTrainer(base, method, train)
    steps = []
    refused = []
    left_out = 0
    for step in range(count):
        result = trainer.step(make(trainer, rng, step), str(out / f"{step}"))
        left_out += len(result.dropped)
        if result.folder is None:
            refused.append(next(iter(result.dropped.values())).detail)
        else:
            steps.append(dict(result.metrics))
    return Outcome(steps=steps, refused=refused, left_out=left_out)


def save_tiny(folder: Path) -> str:
    """A random Qwen3 of two layers whose log-probabilities differ visibly."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, max_position_embeddings=256, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    return str(folder)


def table(rows: Sequence[tuple[str, Outcome, Outcome]]) -> str:
    """One line a stream."""
    lines = [
        "| stream | steps | turns left out | masked | gradient norm, most | KL of a step, most | KL to the base, end "
        "| KL to the base, end, unbounded | entropy, first to last |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, held, free in rows:
        first = held.steps[0]
        last = held.steps[-1]
        masked = float(np.mean([m["masked/gap"] for m in held.steps]))
        lines.append(
            f"| {name} | {len(held.steps)} of {STEPS} | {held.left_out / STEPS / TURNS:.0%} | {masked:.1%} "
            f"| {max(m['gradient/norm'] for m in held.steps):.1f} | {max(m['kl/step'] for m in held.steps):.4f} "
            f"| {last['kl']:.3f} | {free.steps[-1]['kl']:.2f} | {first['entropy']:.2f} → {last['entropy']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        base = save_tiny(Path(folder) / "base")
        for number, (name, make) in enumerate(STREAMS.items(), 1):
            print(f"{number} of {len(STREAMS)}: {name}", file=sys.stderr)
            held = run(base, Path(folder) / f"{number}-held", make)
            free = run(base, Path(folder) / f"{number}-free", make, **UNBOUND)
            rows.append((name, held, free))
    made = table(rows)
    print(made)
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{made}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
