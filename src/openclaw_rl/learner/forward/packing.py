"""Packing of rows of different lengths into forward passes of bounded size.

Shapes: B rows, P prompt tokens, R response tokens, L padded length, K response tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from openclaw_rl.types import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """Sequence to score; only the response gets log-probabilities."""

    prompt_ids: Ids  # [P]
    response_ids: Ids  # [R]
    temperature: float

    def __post_init__(self) -> None:
        if len(self.prompt_ids) == 0 or len(self.response_ids) == 0:
            raise ValueError(
                f"expected a prompt and a response, got {len(self.prompt_ids)} and {len(self.response_ids)} tokens"
            )
        if not self.temperature > 0:
            raise ValueError(f"expected a temperature above 0, got {self.temperature}")

    @property
    def input_length(self) -> int:
        """Number of input tokens: all but the last response token, which predicts no response token."""
        return len(self.prompt_ids) + len(self.response_ids) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """Rows as tensors, padded on the right. Causal attention never sees the padding, so no mask is needed."""

    ids_BL: torch.Tensor
    kept_K: torch.Tensor  # index into the flattened [B * L] positions that predict a response token
    targets_K: torch.Tensor
    temperature_K: torch.Tensor  # float64, on the CPU


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return groups of row numbers with rows times longest row <= `budget`; a longer row gets its own group."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and (len(groups[-1]) + 1) * longest <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
            longest = lengths[index]
    return groups


def pack_padded(rows: Sequence[TokenSequence], device: torch.device) -> PaddedBatch:
    """Return the tensors of one forward pass, with response tokens in row order."""
    width = max(row.input_length for row in rows)
    ids_BL = torch.zeros(len(rows), width, dtype=torch.long)
    kept, targets, temperatures = [], [], []
    for b, row in enumerate(rows):
        p, r = len(row.prompt_ids), len(row.response_ids)
        response_R = torch.from_numpy(row.response_ids.astype("int64"))
        ids_BL[b, :p] = torch.from_numpy(row.prompt_ids.astype("int64"))
        ids_BL[b, p : row.input_length] = response_R[:-1]
        kept.append(b * width + torch.arange(p - 1, p - 1 + r))
        targets.append(response_R)
        temperatures.append(torch.full((r,), row.temperature, dtype=torch.float64))
    return PaddedBatch(
        ids_BL=ids_BL.to(device),
        kept_K=torch.cat(kept).to(device),
        targets_K=torch.cat(targets).to(device),
        temperature_K=torch.cat(temperatures),
    )
