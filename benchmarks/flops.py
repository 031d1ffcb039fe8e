"""What a step costs by its formulas: floating-point operations, and memory. No measurements here.

Legend: N weights of the decoder's linear layers, V x h those of the head, a those of an adapter, T tokens of the tree,
K response tokens, S pairs of tokens of which one sees the other, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from openclaw_rl.learner.forward import prefix_tree
from openclaw_rl.learner.forward.packing import TokenSequence

Mode = Literal["lora", "qlora", "full"]
# Of bfloat16, dense, in TFLOP/s, as the vendor states them; by what the device's name contains.
PEAKS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2250.0,
    "A100": 312.0,
    "RTX 4090": 165.0,
    "L40S": 362.0,
}
RANK = 16
GIB = 2**30


def peak_of(name: str) -> float | None:
    """FLOP/s of a device by its name; None: not in the table."""
    return next((1e12 * teraflops for known, teraflops in PEAKS.items() if known in name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One forward and backward pass."""

    tokens: int  # T
    asked: int  # K
    pairs: int  # S


def work_of(rows: Sequence[TokenSequence]) -> Work:
    """Of rows that are one tree."""
    planted = prefix_tree.build_tree(rows, torch.device("cpu"))
    return Work(
        tokens=planted.tokens, asked=len(planted.kept_K), pairs=int((planted.depth_T + 1).sum())
    )


def linear(shape: Mapping[str, Any]) -> int:
    """N."""
    h = shape["hidden_size"]
    m = shape["intermediate_size"]
    q, kv = _widths(shape)
    return int(shape["num_hidden_layers"] * (2 * h * q + 2 * h * kv + 3 * h * m))


def adapter(shape: Mapping[str, Any]) -> int:
    """a: of rank 16 on all linear layers."""
    h = shape["hidden_size"]
    m = shape["intermediate_size"]
    q, kv = _widths(shape)
    return int(shape["num_hidden_layers"] * RANK * (2 * (h + q) + 2 * (h + kv) + 3 * (h + m)))


def _widths(shape: Mapping[str, Any]) -> tuple[int, int]:
    return shape["num_attention_heads"] * shape["head_dim"], shape["num_key_value_heads"] * shape[
        "head_dim"
    ]


def flops(shape: Mapping[str, Any], work: Work, mode: Mode) -> float:
    """Those that the step needs; what checkpointing computes again is not counted.

    full: 6 N T + 6 V h K + 12 S L H D. With an adapter no gradient of the frozen weights is made, and those of the
    adapter are: 4 N T + 6 a T + 4 V h K + 12 S L H D.
    """
    q, _ = _widths(shape)
    attention = 12 * work.pairs * shape["num_hidden_layers"] * q
    head = shape["vocab_size"] * shape["hidden_size"] * work.asked
    if mode == "full":
        return 6.0 * linear(shape) * work.tokens + 6 * head + attention
    return (4.0 * linear(shape) + 6 * adapter(shape)) * work.tokens + 4 * head + attention


def memory(shape: Mapping[str, Any], tokens: int, mode: Mode) -> float:
    """Bytes at the peak of a step with checkpointing: an estimate, to compare with what is measured.

    Base weights in 2 bytes (NF4: 0.53 in linear layers). An adapter in six copies of 4 bytes: weights, gradients, two
    moments, the weights before the step, the initial weights. A whole model: weights and base in 2 bytes, float32
    copies, gradients and two moments in 4; its weights before the step are in CPU memory. Then a layer's input for each
    layer; what one layer keeps, half as much again for its gradients; the head's chunks.
    """
    h = shape["hidden_size"]
    layers = shape["num_hidden_layers"]
    embeddings = 2 * shape["vocab_size"] * h
    if mode == "full":
        fixed = (linear(shape) + embeddings / 2) * (2 * 2 + 4 * 4)
    else:
        fixed = (
            linear(shape) * (2 if mode == "lora" else 0.53) + embeddings + adapter(shape) * 4 * 6
        )
    return fixed + tokens * (2 * h * layers + 1.5 * kept(shape)) + 4 * 2**26


def kept(shape: Mapping[str, Any]) -> float:
    """Bytes for a token that a layer keeps for its backward pass, base in bfloat16.

    Norms compute in float32; an adapter keeps the inputs that its linear layers share.
    """
    h = shape["hidden_size"]
    m = shape["intermediate_size"]
    q, kv = _widths(shape)
    return 2 * 2 * h + 2 * 4 * m + 6 * (2 * h + q + kv) + 2 * (2 * q + 2 * kv)
