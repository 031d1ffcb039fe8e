"""Chunked LM head: log-probabilities and entropy of selected tokens, without a [K, V] tensor.

Shapes: K response tokens, C response tokens of a chunk, N selected tokens at each, H hidden size, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

# Logits, and head weights in another dtype, that exist at once: 64 MiB each in float32.
CHUNK_ELEMENTS = 2**24

PLAUSIBLE_SHARE = 0.02
"""Tokens that a guided teacher may prefer: those with at least this share of the likeliest token's probability under
the hint. Without the bound, guidance would prefer tokens that are absurd in both prompts (arXiv:2210.15097, Eq. 2)."""
# Logps, entropy, ids.
HeadColumns = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitTransform:
    """Change of the logits after the head in some model families: scaling, then `cap · tanh(logits / cap)`."""

    times: float = 1.0
    over: float = 1.0
    cap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        scaled = logits * self.times / self.over
        return scaled if self.cap is None else torch.tanh(scaled / self.cap) * self.cap


IDENTITY_TRANSFORM = LogitTransform()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of selected tokens at K response positions. The entropy has no gradient."""

    # The response token, then the given ids, then the top-k in descending order.
    ids_KN: torch.Tensor
    logps_KN: torch.Tensor  # float32 or wider, at the temperature of each token
    entropy_K: torch.Tensor  # nats

    @property
    def logp(self) -> torch.Tensor:
        """Log-probabilities of the response tokens, [K]."""
        return self.logps_KN[:, 0]

    def split_rows(self, lengths: Sequence[int]) -> list[TokenLogprobs]:
        """Split into one entry per row, on the CPU and without gradients."""
        columns = (self.ids_KN, self.logps_KN, self.entropy_K)
        parts = zip(
            *(torch.split(column.detach().cpu(), list(lengths)) for column in columns), strict=True
        )
        return [
            TokenLogprobs(ids_KN=ids, logps_KN=logps, entropy_K=entropy)
            for ids, logps, entropy in parts
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStates:
    """Hidden states below the head at the K response positions of some rows.

    The head runs later, when the wanted tokens are known, and may run several times.
    """

    head: torch.nn.Module
    hidden_KH: torch.Tensor
    targets_K: torch.Tensor
    temperature_K: torch.Tensor
    lengths: tuple[int, ...]  # response tokens of each row
    logit_transform: LogitTransform = IDENTITY_TRANSFORM

    def select_rows(self, rows: Sequence[int]) -> HiddenStates:
        """Return the given rows, in that order."""
        places = torch.split(
            torch.arange(len(self.targets_K), device=self.targets_K.device), list(self.lengths)
        )
        at = torch.cat([places[i] for i in rows])
        return replace(
            self,
            hidden_KH=self.hidden_KH[at],
            targets_K=self.targets_K[at],
            temperature_K=self.temperature_K[at],
            lengths=tuple(self.lengths[i] for i in rows),
        )

    def token_logprobs(
        self, *, ids_KN: torch.Tensor | None = None, top: int = 0, floats: int | None = None
    ) -> TokenLogprobs:
        """Return log-probabilities of the targets, of `ids_KN` if given, and of the `top` most likely tokens.

        `floats`: number of logits that may exist at once.
        """
        head = self.head
        hidden_KH = self.hidden_KH
        temperature_K = self.temperature_K
        transform = self.logit_transform
        vocabulary = (
            int(head.weight.shape[0]) if isinstance(head.weight, torch.Tensor) else len(hidden_KH)
        )
        size = max(1, (floats or CHUNK_ELEMENTS) // vocabulary)
        wanted_KN = self.targets_K.unsqueeze(-1)
        if ids_KN is not None:
            wanted_KN = torch.cat([wanted_KN, ids_KN], dim=-1)
        # An uncapped transform only scales the logits, as a temperature does.
        if transform.cap is None:
            temperature_K = temperature_K * (transform.over / transform.times)
            transform = IDENTITY_TRANSFORM
        if (
            type(head) is torch.nn.Linear
            and getattr(head, "bias", None) is None
            and transform.cap is None
        ):
            whole: HeadColumns = _ChunkedHead.apply(
                hidden_KH, head.weight, wanted_KN, temperature_K, top, size
            )  # type: ignore[no-untyped-call]
            return TokenLogprobs(logps_KN=whole[0], entropy_K=whole[1], ids_KN=whole[2])
        columns = (hidden_KH, wanted_KN, temperature_K)
        parts = [
            tuple(column[at : at + size] for column in columns)
            for at in range(0, len(hidden_KH), size)
        ]
        triples = [
            checkpoint(_apply_head, head, *part, top, transform, use_reentrant=False)
            for part in parts
        ]
        logps_KN, entropy_K, all_KN = (torch.cat(column) for column in zip(*triples, strict=True))
        return TokenLogprobs(logps_KN=logps_KN, entropy_K=entropy_K, ids_KN=all_KN)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedScores:
    """Scores of K response tokens under the guided teacher, and what the hint prefers at each position.

    The preference of a token is h - p, its log-probability with the hint less that without it, in nats.
    """

    teacher: TokenLogprobs
    # Of the tokens `teacher.ids_KN`, then of all others together as one tail.
    preferences_KN: torch.Tensor
    teacher_K: torch.Tensor  # mean preference under the guided teacher
    plain_K: torch.Tensor  # and under the model without the hint: 0 or less

    def split_rows(self, lengths: Sequence[int]) -> list[GuidedScores]:
        """Split into one entry per row, on the CPU."""
        columns = (self.preferences_KN, self.teacher_K, self.plain_K)
        parts = zip(*(torch.split(column.cpu(), list(lengths)) for column in columns), strict=True)
        rows = zip(self.teacher.split_rows(lengths), parts, strict=True)
        return [
            GuidedScores(
                teacher=teacher, preferences_KN=preferences, teacher_K=of_teacher, plain_K=of_plain
            )
            for teacher, (preferences, of_teacher, of_plain) in rows
        ]


@torch.no_grad()
def guided_scores(
    hinted: HiddenStates,
    plain: HiddenStates,
    guidance_K: torch.Tensor,
    *,
    ids_KN: torch.Tensor | None = None,
    top: int = 0,
    floats: int | None = None,
) -> GuidedScores:
    """Return the scores of the guided teacher for the same K response tokens under both prompts.

    Its logits are h + g · (h - p), with h and p the log-probabilities under the prompts with and without the hint
    (classifier-free guidance, arXiv:2306.17806, Eq. 7). Where h - p is positive, only plausible tokens get it.

    `guidance_K`: g of each token, at least 0; `ids_KN`, `top`, `floats`: as of `HiddenStates.token_logprobs`. Raises
    `ValueError` if the response tokens differ.
    """
    if not torch.equal(hinted.targets_K, plain.targets_K):
        raise ValueError(
            "a guided teacher needs the same response under both prompts, got other tokens"
        )
    vocabulary = (
        int(hinted.head.weight.shape[0]) if isinstance(hinted.head.weight, torch.Tensor) else 1
    )
    size = max(1, (floats or CHUNK_ELEMENTS) // (2 * vocabulary))
    wanted_KN = hinted.targets_K.unsqueeze(-1)
    if ids_KN is not None:
        wanted_KN = torch.cat([wanted_KN, ids_KN], dim=-1)
    parts = []
    for at in range(0, len(wanted_KN), size):
        chunk = slice(at, at + size)
        hinted_CV = torch.log_softmax(_plain_logits(hinted, chunk), dim=-1)
        plain_CV = torch.log_softmax(_plain_logits(plain, chunk), dim=-1)
        parts.append(
            _guided_columns(
                hinted_CV, plain_CV, guidance_K[chunk].to(hinted_CV), wanted_KN[chunk], top
            )
        )
    logps_KN, entropy_K, all_KN, preferences_KN, teacher_K, plain_K = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    return GuidedScores(
        teacher=TokenLogprobs(logps_KN=logps_KN, entropy_K=entropy_K, ids_KN=all_KN),
        preferences_KN=preferences_KN,
        teacher_K=teacher_K,
        plain_K=plain_K,
    )


def _guided_columns(
    hinted_CV: torch.Tensor,
    plain_CV: torch.Tensor,
    guidance_C: torch.Tensor,
    wanted_CN: torch.Tensor,
    top: int,
) -> tuple[torch.Tensor, ...]:
    """Return (logps_CN, entropy_C, ids_CN) of the guided teacher, and the columns of `GuidedScores` after it."""
    preference_CV = hinted_CV - plain_CV
    least_C1 = hinted_CV.max(dim=-1, keepdim=True).values + math.log(PLAUSIBLE_SHARE)
    change_CV = torch.where(hinted_CV >= least_C1, preference_CV, preference_CV.clamp(max=0))
    guided_CV = torch.log_softmax(hinted_CV + guidance_C.unsqueeze(-1) * change_CV, dim=-1)
    logps_CN, entropy_C, ids_CN, _ = _gather_logprobs(guided_CV, wanted_CN, top)
    rest_CV = torch.ones_like(preference_CV, dtype=torch.bool).scatter_(-1, ids_CN, False)
    tails = [
        torch.logsumexp(logp_CV.masked_fill(~rest_CV, -math.inf), -1)
        for logp_CV in (hinted_CV, plain_CV)
    ]
    tail_C = (tails[0] - tails[1]).nan_to_num(0.0)
    preferences_CN = torch.cat([preference_CV.gather(-1, ids_CN), tail_C.unsqueeze(-1)], dim=-1)
    teacher_C = (guided_CV.exp() * preference_CV).sum(-1)
    plain_C = (plain_CV.exp() * preference_CV).sum(-1)
    return logps_CN, entropy_C, ids_CN, preferences_CN, teacher_C, plain_C


def _plain_logits(states: HiddenStates, chunk: slice) -> torch.Tensor:
    """Return the logits [C, V] of some response tokens at their temperatures, in float32 or wider."""
    head = states.head
    hidden_CH = states.hidden_KH[chunk]
    temperature_C = states.temperature_K[chunk]
    transform = states.logit_transform
    if (
        type(head) is torch.nn.Linear
        and getattr(head, "bias", None) is None
        and transform.cap is None
    ):
        return _chunk_logits(
            hidden_CH, head.weight, temperature_C * (transform.over / transform.times)
        )
    logits_CV = head(hidden_CH)
    wide_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    return transform(wide_CV) / temperature_C.unsqueeze(-1)


def _apply_head(head: torch.nn.Module, hidden_CH: torch.Tensor, wanted_CN: torch.Tensor, temperature_C: torch.Tensor,
             top: int, transform: LogitTransform) -> HeadColumns:  # fmt: skip
    """Apply a head with an adapter, a bias or a cap; the backward pass is left to autograd."""
    logits_CV = head(hidden_CH)
    wide_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    logits_CV = transform(wide_CV) / temperature_C.unsqueeze(-1)
    logps_CN, entropy_C, ids_CN, _ = _gather_logprobs(logits_CV, wanted_CN, top)
    return logps_CN, entropy_C.detach(), ids_CN


def _gather_logprobs(logits_CV: torch.Tensor, wanted_CN: torch.Tensor, top: int
            ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return (logps_CN, entropy_C, ids_CN with the top-k after the wanted ids, log-partition log_z_C)."""
    log_z_C = torch.logsumexp(logits_CV, dim=-1)
    with torch.no_grad():
        entropy_C = log_z_C - (torch.softmax(logits_CV, dim=-1) * logits_CV).sum(-1)
        likeliest = (
            logits_CV.topk(min(top, logits_CV.shape[-1]), dim=-1).indices
            if top
            else wanted_CN[:, :0]
        )
        ids_CN = torch.cat([wanted_CN, likeliest], dim=-1)
    return logits_CV.gather(-1, ids_CN) - log_z_C.unsqueeze(-1), entropy_C, ids_CN, log_z_C


def _chunk_logits(
    hidden_CH: torch.Tensor, weight_VH: torch.Tensor, temperature_C: torch.Tensor
) -> torch.Tensor:
    """Return [C, V] in float32 or wider; sums rounded to half precision would have errors of hundredths."""
    wide = torch.promote_types(hidden_CH.dtype, torch.float32)
    if hidden_CH.dtype is wide:
        logits_CV = torch.mm(hidden_CH, weight_VH.T)
    elif hidden_CH.is_cuda:
        logits_CV = torch.mm(hidden_CH, weight_VH.T, out_dtype=wide)
    else:
        logits_CV = hidden_CH.new_empty(len(hidden_CH), len(weight_VH), dtype=wide)
        wide_CH = hidden_CH.to(wide)
        size = max(1, CHUNK_ELEMENTS // weight_VH.shape[1])
        # Without `out_dtype`, the head is cast in parts.
        for at in range(0, len(weight_VH), size):
            logits_CV[:, at : at + size] = torch.mm(wide_CH, weight_VH[at : at + size].to(wide).T)
    return logits_CV.div_(temperature_C.unsqueeze(-1))


class _ChunkedHead(torch.autograd.Function):
    """d logps[n] / d logits = (onehot[n] - softmax) / T, with T the temperature; the backward pass recomputes logits.

    The head's gradient is accumulated in float32 or wider, because rounding the part of each chunk would bias it.
    """

    @staticmethod
    def forward(ctx: Any, hidden_KH: torch.Tensor, weight_VH: torch.Tensor, wanted_KN: torch.Tensor,
                temperature_K: torch.Tensor, top: int, size: int) -> HeadColumns:  # fmt: skip
        parts = []
        for at in range(0, len(hidden_KH), size):
            end = at + size
            logits_CV = _chunk_logits(hidden_KH[at:end], weight_VH, temperature_K[at:end])
            parts.append(_gather_logprobs(logits_CV, wanted_KN[at:end], top))
        logps_KN, entropy_K, ids_KN, log_z_K = (
            torch.cat(column) for column in zip(*parts, strict=True)
        )
        ctx.save_for_backward(hidden_KH, weight_VH, ids_KN, temperature_K, log_z_K)
        ctx.size = size
        ctx.mark_non_differentiable(entropy_K, ids_KN)
        return logps_KN, entropy_K, ids_KN

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_KH, weight_VH, ids_KN, temperature_K, log_z_K = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden_KH) if ctx.needs_input_grad[0] else None
        wide = log_z_K.dtype
        d_weight = torch.zeros_like(weight_VH, dtype=wide) if ctx.needs_input_grad[1] else None
        for at in range(0, len(hidden_KH), ctx.size):
            end = at + ctx.size
            hidden_CH = hidden_KH[at:end]
            temperature_C = temperature_K[at:end]
            logits_CV = _chunk_logits(hidden_CH, weight_VH, temperature_C)
            g_CN = grads[0][at:end] / temperature_C.unsqueeze(-1)
            d_logits_CV = (
                logits_CV.sub_(log_z_K[at:end].unsqueeze(-1))
                .exp_()
                .mul_(-g_CN.sum(-1, keepdim=True))
            )
            d_logits_CV.scatter_add_(-1, ids_KN[at:end], g_CN)
            if d_hidden is not None:
                d_hidden[at:end] = torch.mm(d_logits_CV.to(weight_VH.dtype), weight_VH)
            if d_weight is not None:
                d_weight.addmm_(d_logits_CV.T, hidden_CH.to(wide))
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight_VH.dtype),
            None,
            None,
            None,
            None,
        )
