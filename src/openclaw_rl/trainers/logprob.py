"""Log-probabilities of given response tokens. Prompt positions never reach the LM head, shared ones are made once.

At agent ratios (long prompts, short answers) these are the largest savings there are: the head's [tokens, V] matrix is
never made for tokens that nobody asks about, and what rows have in common is one trunk of one tree.

Legend: B rows, L padded length, T tokens of a tree, K response tokens of all rows together, R of one row, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from openclaw_rl.errors import ModelError
from openclaw_rl.trainers import attention, head, tree
from openclaw_rl.trainers.pack import Row, micro_batches, pack

log = logging.getLogger(__name__)
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}  # of a log-probability; lower precisions: below
_LOW_TOLERANCE = 0.3


class Passes:
    """Forward passes of one model over rows: as trees where its layers allow it, else padded.

    `shares` says whether; models whose layers carry a state along the sequence cannot branch.
    """

    def __init__(self, model: Any, *, micro_tokens: int) -> None:
        """`model`: a causal language model of transformers, with or without PEFT layers inside."""
        self._model, self._budget = model, micro_tokens
        self._own = model.config._attn_implementation
        self._together = _together(model.config.get_text_config())
        self._growing = [m for m in model.modules() if getattr(m, "rope_type", None) == "dynamic"]
        self.shares = self._try_tree()

    def _try_tree(self) -> bool:
        """A small tree must give what its rows give."""
        ids = np.arange(12, dtype=np.int32) * 7 % max(2, self._model.config.get_text_config().vocab_size)
        rows = [
            Row(prompt_ids=ids[:n], response_ids=ids[a : a + 3], temperature=1.0) for n, a in ((6, 2), (6, 7), (4, 5))
        ]
        if getattr(self._model.config.get_text_config(), "attention_chunk_size", None):
            return self._go_padded("its layers attend in chunks")
        with torch.no_grad():
            padded = torch.cat([self._padded([row])[0] for row in rows])
            try:
                self._model.set_attn_implementation(attention.NAME)
                shared = self._tree(rows)[0]
            except (TypeError, ValueError, KeyError, RuntimeError, AttributeError) as error:
                return self._go_padded(f"{type(error).__name__}: {error}")
        gap = (shared - padded).abs().max().item()
        if not gap <= _TOLERANCE.get(self._model.dtype, _LOW_TOLERANCE):
            return self._go_padded(f"log-probabilities are off by {gap:.3g}")
        return True

    def _go_padded(self, why: str) -> bool:
        self._model.set_attn_implementation(self._own)
        log.warning(
            "%s: rows are trained one by one, shared prompts are computed again for each (%s)",
            type(self._model).__name__,
            why,
        )
        return False

    def groups(self, rows: Sequence[Row]) -> list[list[int]]:
        """Row numbers, a list for each forward pass: each within the budget of tokens, but for single long rows."""
        alone = [[i] for i, row in enumerate(rows) if row.length > self._together]
        rest = [i for i, row in enumerate(rows) if row.length <= self._together]
        if self.shares:
            found = tree.groups([rows[i] for i in rest], self._budget)
        else:
            found = micro_batches([rows[i].length for i in rest], self._budget)
        return [*alone, *([rest[j] for j in group] for group in found)]

    def forward(self, rows: Sequence[Row], *, floats: int = head.FLOATS) -> tuple[torch.Tensor, torch.Tensor]:
        """(logp_K, entropy_K in nats) of one pass, at each row's temperature; response tokens in the rows' order."""
        for rope in self._growing:
            rope.max_seq_len_cached = 0  # else it keeps what the longest row so far made of it
        return self._tree(rows, floats) if self.shares else self._padded(rows, floats)

    def _tree(self, rows: Sequence[Row], floats: int = head.FLOATS) -> tuple[torch.Tensor, torch.Tensor]:
        planted = tree.plant(rows, self._model.device)
        out = self._model.get_decoder()(
            input_ids=planted.ids_T[None], position_ids=planted.depth_T[None], use_cache=False, tree=planted
        )
        hidden_KH = out.last_hidden_state[0][planted.kept_K]
        return head.select(
            self._model.get_output_embeddings(), hidden_KH, planted.targets_K, planted.temperature_K, floats=floats
        )

    def _padded(self, rows: Sequence[Row], floats: int = head.FLOATS) -> tuple[torch.Tensor, torch.Tensor]:
        packed = pack(rows, self._model.device)
        hidden_BLH = self._model.get_decoder()(input_ids=packed.ids_BL, use_cache=False).last_hidden_state
        hidden_KH = hidden_BLH.flatten(0, 1)[packed.kept_K]
        return head.select(
            self._model.get_output_embeddings(), hidden_KH, packed.targets_K, packed.temperature_K, floats=floats
        )

    @torch.no_grad()
    def score(self, rows: Sequence[Row]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each row (logp [R], entropy [R]), on the CPU and without gradients."""
        out: list[tuple[torch.Tensor, torch.Tensor]] = [(torch.empty(0), torch.empty(0))] * len(rows)
        for group in self.groups(rows):
            logp_K, entropy_K = self.forward([rows[i] for i in group])
            lengths = [len(rows[i].response_ids) for i in group]
            for i, logp, entropy in zip(group, _cut(logp_K, lengths), _cut(entropy_K, lengths), strict=True):
                out[i] = (logp, entropy)
        return out


def _together(text: Any) -> float:
    """The length up to which a row's positions mean the same whatever is computed beside it (RoPE that grows)."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kinds = [rope] if "rope_type" in rope else [kind for kind in rope.values() if isinstance(kind, dict)]
    grown = [kind for kind in kinds if kind.get("rope_type") in ("longrope", "dynamic")]
    lengths = [
        kind.get("original_max_position_embeddings")
        or getattr(text, "original_max_position_embeddings", None)
        or text.max_position_embeddings
        for kind in grown
    ]
    return min(lengths, default=math.inf)


def _cut(values_K: torch.Tensor, lengths: list[int]) -> Sequence[torch.Tensor]:
    return torch.split(values_K.cpu(), lengths)


@torch.no_grad()
def check_head(model: Any) -> None:
    """Some models bend their logits after the head (soft caps, scales). Raises `ModelError` for those we would miss."""
    ids_BL = torch.arange(min(8, model.config.vocab_size), device=model.device).unsqueeze(0)
    own = model(input_ids=ids_BL, use_cache=False).logits
    ours = model.get_output_embeddings()(model.get_decoder()(input_ids=ids_BL, use_cache=False).last_hidden_state)
    gap = (own - ours).abs().max().item()
    if not gap < 1e-2:
        raise ModelError(
            f"{model.config.name_or_path}: this {model.config.model_type} model changes its logits after the LM head "
            f"(by up to {gap:.3g}), which the local trainer does not know. Use a model without logit scaling or caps."
        )
