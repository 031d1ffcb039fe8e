"""Packing of rows of different lengths into forward passes of bounded size.

Shapes: B rows, P prompt tokens, R response tokens, L padded length, K response tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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

    @property
    def input_ids(self) -> Ids:
        """Input tokens."""
        return np.concatenate([self.prompt_ids, self.response_ids[:-1]]).astype(
            np.int32, copy=False
        )


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


def pack_padded(
    rows: Sequence[TokenSequence], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (input ids [B, L], index [K] of each response token's predictor in the flattened [B * L] positions).

    Rows are padded on the right. Causal attention never sees the padding, so no mask is needed.
    """
    width = max(row.input_length for row in rows)
    ids_BL = torch.zeros(len(rows), width, dtype=torch.long)
    predictors = []
    for b, row in enumerate(rows):
        ids_BL[b, : row.input_length] = torch.from_numpy(row.input_ids.astype("int64"))
        predictors.append(b * width + torch.arange(len(row.prompt_ids) - 1, row.input_length))
    return ids_BL.to(device), torch.cat(predictors).to(device)
