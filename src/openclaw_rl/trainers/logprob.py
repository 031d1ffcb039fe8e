"""Log-probabilities of given response tokens. Prompt positions never reach the LM head.

At agent ratios (long prompts, short answers) this is the largest saving there is: the head's [tokens, V] matrix is
never made for tokens that nobody asks about. What is left is taken in chunks, in float32 at least.

Legend: B rows, L padded length, K response tokens of all rows together, H hidden size, V vocabulary, R response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from openclaw_rl.errors import ModelError
from openclaw_rl.trainers.pack import Packed, Row, micro_batches, pack

HEAD_FLOATS = 2**24  # logits held at once: 64 MiB in float32


def _chunk(
    head: torch.nn.Module, hidden_KH: torch.Tensor, targets_K: torch.Tensor, temperature_K: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_KV = head(hidden_KH)
    logits_KV = logits_KV.to(torch.promote_types(logits_KV.dtype, torch.float32)) / temperature_K.unsqueeze(-1)
    log_z_K = torch.logsumexp(logits_KV, dim=-1)
    logp_K = logits_KV.gather(-1, targets_K.unsqueeze(-1)).squeeze(-1) - log_z_K
    with torch.no_grad():
        entropy_K = log_z_K - (torch.softmax(logits_KV, dim=-1) * logits_KV).sum(-1)
    return logp_K, entropy_K


def _select(
    head: torch.nn.Module, vocabulary: int, hidden_KH: torch.Tensor, packed: Packed, floats: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logp_K, entropy_K); the head is recomputed in the backward pass as soon as there is more than one chunk."""
    size = max(1, floats // vocabulary)
    columns = (hidden_KH, packed.targets_K, packed.temperature_K)
    parts = [tuple(column[at : at + size] for column in columns) for at in range(0, len(hidden_KH), size)]
    if len(parts) == 1 or not torch.is_grad_enabled():
        pairs = [_chunk(head, *part) for part in parts]
    else:
        pairs = [checkpoint(_chunk, head, *part, use_reentrant=False) for part in parts]
    logp, entropy = zip(*pairs, strict=True)
    return torch.cat(logp), torch.cat(entropy)


def forward(model: Any, packed: Packed, *, head_floats: int = HEAD_FLOATS) -> tuple[torch.Tensor, torch.Tensor]:
    """(logp_K, entropy_K in nats) of one packed forward pass, at each row's temperature.

    `model` is a causal language model of transformers, with or without PEFT layers inside.
    """
    hidden_BLH = model.get_decoder()(input_ids=packed.ids_BL, use_cache=False).last_hidden_state
    hidden_KH = hidden_BLH.flatten(0, 1)[packed.kept_K]
    return _select(model.get_output_embeddings(), model.config.vocab_size, hidden_KH, packed, head_floats)


def _cut(values_K: torch.Tensor, lengths: list[int]) -> Sequence[torch.Tensor]:
    return torch.split(values_K.cpu(), lengths)


@torch.no_grad()
def score(model: Any, rows: Sequence[Row], *, micro_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each row (logp [R], entropy [R]), on the CPU and without gradients."""
    out: list[tuple[torch.Tensor, torch.Tensor]] = [(torch.empty(0), torch.empty(0))] * len(rows)
    for group in micro_batches([row.length for row in rows], micro_tokens):
        logp_K, entropy_K = forward(model, pack([rows[i] for i in group], model.device))
        lengths = [len(rows[i].response_ids) for i in group]
        for i, logp, entropy in zip(group, _cut(logp_K, lengths), _cut(entropy_K, lengths), strict=True):
            out[i] = (logp, entropy)
    return out


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
