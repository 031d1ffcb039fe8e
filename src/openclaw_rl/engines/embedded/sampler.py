"""Sample one token per row, with per-row parameters and random numbers.

Shape legend: N rows, V vocabulary (the model's, padding included). A token is sampled by inverting the cumulative
distribution at one uniform number of the row's generator, so it depends on the row's logits and seed, but not on the
rest of the batch. The reported log-probability is log softmax(logits / temperature) over the whole vocabulary, without
top-p, top-k, min-p, penalties, biases and grammar. At temperature 0 it is reported at temperature 1.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openclaw_rl.engines.embedded.grammar import GrammarState
from openclaw_rl.types import Sampling

TopTokens = tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class SamplingState:
    """Sampling parameters and state of one row. `top`: number of alternatives to report."""

    sampling: Sampling
    top: int = 0
    rng: random.Random = field(default_factory=random.Random)
    # Sampled tokens; filled only if penalties are set.
    token_counts: Counter[int] = field(default_factory=Counter)
    grammar_state: GrammarState | None = None  # constrains the reply
    stop: tuple[int, ...] = ()  # stop tokens, of which none is sampled before `sampling.min_tokens`
    sampled: int = 0  # number of sampled tokens

    @staticmethod
    def from_sampling(
        sampling: Sampling,
        top: int = 0,
        grammar_state: GrammarState | None = None,
        stop: Sequence[int] = (),
    ) -> SamplingState:
        # Seed None: system entropy.
        rng = random.Random(sampling.seed)
        return SamplingState(sampling, top, rng, grammar_state=grammar_state, stop=tuple(stop))

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature <= 0

    @property
    def has_penalties(self) -> bool:
        return bool(self.sampling.presence_penalty or self.sampling.frequency_penalty)

    @property
    def is_shaped(self) -> bool:
        """Whether the row samples from another distribution than the reported one."""
        s = self.sampling
        if self.is_greedy or self.grammar_state is not None or s.min_tokens:
            return True
        is_cut = s.top_p < 1 or s.top_k > 0 or s.min_p > 0
        return is_cut or self.has_penalties or bool(s.logit_bias)

    def accept_token(self, token: int) -> None:
        """Count a sampled token, and advance the grammar by it."""
        self.sampled += 1
        if self.has_penalties:
            self.token_counts[token] += 1
        if self.grammar_state is not None:
            self.grammar_state.accept_token(token)


class Sampler:
    """Sampler for one composition of the batch; rebuilt when a row joins or leaves."""

    def __init__(self, states: Sequence[SamplingState], device: torch.device) -> None:
        self._states = states
        self._device = device
        temperatures = [1.0 if state.is_greedy else state.sampling.temperature for state in states]
        # None: no row is scaled.
        self._temperatures_N1: Tensor | None = None
        if any(temperature != 1.0 for temperature in temperatures):
            self._temperatures_N1 = torch.tensor(temperatures, device=device)[:, None]
        self._shaped_rows = [row for row, state in enumerate(states) if state.is_shaped]
        self._max_top = max((state.top for state in states), default=0)

    def __call__(self, logits_NV: Tensor) -> tuple[list[int], list[float], list[TopTokens] | None]:
        """Return token ids [N], their log-probabilities [N], and the top alternatives [N][K] if any row wants them."""
        scaled_NV = logits_NV
        if self._temperatures_N1 is not None:
            scaled_NV = logits_NV / self._temperatures_N1
        logprobs_NV = scaled_NV.log_softmax(-1)
        uniform_N = [state.rng.random() for state in self._states]
        if len(self._shaped_rows) < len(self._states):
            u = torch.tensor(uniform_N, dtype=torch.float64, device=self._device)
            ids_N = invert_cdf(logprobs_NV.exp(), u)
        else:
            ids_N = torch.empty(len(self._states), dtype=torch.long, device=self._device)
        for row in self._shaped_rows:
            ids_N[row] = sample_shaped(logits_NV[row], self._states[row], uniform_N[row])
        chosen_N = logprobs_NV.gather(1, ids_N[:, None])[:, 0]
        # One device-to-host transfer.
        ids, logprobs = torch.stack([ids_N.double(), chosen_N.double()]).tolist()
        tokens = [int(id_) for id_ in ids]
        for state, token in zip(self._states, tokens, strict=True):
            state.accept_token(token)
        top = self._top_alternatives(logprobs_NV) if self._max_top else None
        return tokens, logprobs, top

    def _top_alternatives(self, logprobs_NV: Tensor) -> list[TopTokens]:
        values, ids = logprobs_NV.topk(min(self._max_top, logprobs_NV.shape[-1]), -1)
        rows = zip(ids.tolist(), values.tolist(), self._states, strict=True)
        return [tuple(zip(i[: d.top], v[: d.top], strict=True)) for i, v, d in rows]


def invert_cdf(probs_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """Return [N] the first id whose cumulative share exceeds `uniform_N`. Ids of probability 0 are never chosen."""
    sums_NV = probs_NV.cumsum(-1, dtype=torch.float64)
    wanted_N1 = uniform_N[:, None] * sums_NV[:, -1:]
    ids_N: Tensor = torch.searchsorted(sums_NV, wanted_N1, right=True)[:, 0]
    return ids_N.clamp_(max=probs_NV.shape[-1] - 1)


def sample_shaped(logits_V: Tensor, state: SamplingState, uniform: float) -> Tensor:
    """Sample an id after grammar, biases, penalties, min_tokens, temperature, top-k, top-p and min-p, in this order."""
    if state.grammar_state is not None:
        logits_V = state.grammar_state.mask_logits(logits_V)
    logits_V = _add_biases(logits_V, state)
    s = state.sampling
    if state.sampled < s.min_tokens:
        logits_V = logits_V.index_fill(
            0, torch.tensor(state.stop, dtype=torch.long, device=logits_V.device), -torch.inf
        )
    if state.is_greedy:
        return logits_V.argmax()
    probs_V, order_V = (logits_V / s.temperature).softmax(-1).sort(descending=True, stable=True)
    keep_V = torch.ones_like(probs_V, dtype=torch.bool)
    if s.top_k > 0:
        keep_V[s.top_k :] = False
    if s.top_p < 1:
        kept_V = probs_V * keep_V
        kept_V = kept_V / kept_V.sum()
        keep_V &= kept_V.cumsum(-1) - kept_V < s.top_p
    if s.min_p > 0:
        keep_V &= probs_V >= s.min_p * probs_V[0]
    keep_V[0] = True
    u = torch.tensor([uniform], dtype=torch.float64, device=logits_V.device)
    return order_V[invert_cdf((probs_V * keep_V)[None], u)[0]]


def _add_biases(logits_V: Tensor, state: SamplingState) -> Tensor:
    """Add OpenAI's logit_bias and penalties to the logits; penalties count the tokens of the reply only."""
    s = state.sampling
    size = logits_V.shape[-1]
    shift = {i: float(v) for i, v in s.logit_bias.items() if 0 <= i < size}
    if state.has_penalties:
        for i, n in state.token_counts.items():
            shift[i] = shift.get(i, 0.0) - s.presence_penalty - s.frequency_penalty * n
    if not shift:
        return logits_V
    at = torch.tensor(list(shift), device=logits_V.device)
    by = torch.tensor(list(shift.values()), dtype=logits_V.dtype, device=logits_V.device)
    return logits_V.index_add(0, at, by)
