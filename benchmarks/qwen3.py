"""Models of public shapes with random weights, and sessions of agents to train them on.

Shapes as in the `config.json` of Qwen/Qwen3-0.6B, -1.7B and -4B; `tiny` is for machines without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.methods.types import Sample


def _shape(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }


SHAPES = {
    "4B": _shape(2560, 9728, 36, 32),
    "1.7B": _shape(2048, 6144, 28, 16),
    "0.6B": _shape(1024, 3072, 28, 16),
    "tiny": _shape(64, 128, 2, 4) | {"vocab_size": 512, "num_key_value_heads": 2, "head_dim": 16},
}


def make(shape: str, device: torch.device, dtype: torch.dtype, *, sharpness: float = 1.0) -> Any:
    """The model, made on the device. `sharpness`: factor of its matrices; above 1, log-probabilities differ visibly."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape]))
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.ndim == 2 and sharpness != 1.0):
            parameter.mul_(sharpness)
    return model.eval()


def save(
    shape: str, folder: Path, device: torch.device, dtype: torch.dtype, *, sharpness: float = 1.0
) -> str:
    """Write it where trainer and engine load models from."""
    make(shape, device, dtype, sharpness=sharpness).save_pretrained(folder)
    return str(folder)


def session(vocabulary: int, tokens: int, turns: int = 8, seed: int = 0) -> list[TokenSequence]:
    """The turns of one session: half of `tokens` is its prompt, the rest are what is said and answered, in equal parts.

    All of it is one tree of `tokens` tokens.
    """
    random = np.random.default_rng(seed)
    piece = tokens // (4 * turns)
    # The very last token is not fed.
    history = _draw(random, vocabulary, tokens + 1 - 2 * turns * piece)
    rows = []
    for _ in range(turns):
        prompt = np.concatenate([history, _draw(random, vocabulary, piece)])
        answer = _draw(random, vocabulary, piece)
        rows.append(TokenSequence(prompt_ids=prompt, response_ids=answer, temperature=1.0))
        history = np.concatenate([prompt, answer])
    return rows


def _draw(random: np.random.Generator, vocabulary: int, tokens: int) -> np.ndarray:
    return random.integers(0, vocabulary, tokens).astype(np.int32)


def samples(
    rows: Sequence[TokenSequence], logprobs: Sequence[np.ndarray] | None = None, seed: int = 0
) -> list[Sample]:
    """The rows as turns with scores. `logprobs`: under which they were sampled; default: a flat policy's."""
    random = np.random.default_rng(seed)
    return [
        Sample(
            turn=f"turn-{i}",
            agent="a",
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            logprobs=np.full(len(row.response_ids), -5.0, np.float32)
            if logprobs is None
            else logprobs[i],
            mask=np.ones(len(row.response_ids), np.bool_),
            temperature=row.temperature,
            version=0,
            reward=1.0 if i == 0 else float(random.choice([-1.0, 1.0])),
        )
        for i, row in enumerate(rows)
    ]
