"""Log-probabilities of response tokens: equal to a plain forward pass, without the prompt in the LM head."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    RemBertConfig,
    RemBertForCausalLM,
)

from openclaw_rl.errors import ModelError
from openclaw_rl.learner.forward import lm_head
from openclaw_rl.learner.forward.packing import TokenSequence, micro_batches
from openclaw_rl.learner.forward.runner import ForwardRunner
from openclaw_rl.learner.trainer import LocalTrainer

Make = Callable[..., LocalTrainer]


def rows(seed: int, count: int = 7) -> list[TokenSequence]:
    rng = np.random.default_rng(seed)
    return [
        TokenSequence(
            prompt_ids=rng.integers(0, 64, int(rng.integers(1, 40))).astype(np.int32),
            response_ids=rng.integers(0, 64, int(rng.integers(1, 30))).astype(np.int32),
            temperature=float(rng.uniform(0.3, 2.0)),
        )
        for _ in range(count)
    ]


def plainly(model: Any, row: TokenSequence) -> torch.Tensor:
    ids = torch.tensor(np.concatenate([row.prompt_ids, row.response_ids]), dtype=torch.long)
    logits = model(input_ids=ids.unsqueeze(0)).logits[0].double() / row.temperature
    logp = torch.log_softmax(logits, -1)
    p = len(row.prompt_ids)
    return logp[p - 1 : -1].gather(-1, ids[p:].unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("micro_tokens", [1, 60, 10_000])
def test_equal_to_a_plain_forward(trainer: Make, micro_tokens: int) -> None:
    model, batch = trainer().causal, rows(1)
    with torch.no_grad():
        for row, scores in zip(
            batch, ForwardRunner(model, micro_tokens=micro_tokens).logprobs(batch), strict=True
        ):
            torch.testing.assert_close(scores.logp.double(), plainly(model, row), atol=1e-5, rtol=0)
            assert ((scores.entropy_K > 0) & (scores.entropy_K <= np.log(64) + 1e-5)).all()


def test_gradients_survive_the_chunked_head(trainer: Make) -> None:
    made = trainer()
    parameters = [p for p in made.model.parameters() if p.requires_grad]

    def gradients(head_floats: int) -> list[torch.Tensor]:
        logp_K, _ = ForwardRunner(made.causal, micro_tokens=4096).forward(
            rows(2), floats=head_floats
        )
        return list(torch.autograd.grad(logp_K.square().sum(), parameters))

    for whole, chunked in zip(gradients(2**24), gradients(64 * 5), strict=True):
        torch.testing.assert_close(whole, chunked, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_added_up_in_float32(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """A head in three parts, against float64; what a bfloat16 product would give is off by far more."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(48, 40, bias=False).to(dtype)
    hidden_KH = (8 * torch.randn(7, 48)).to(dtype)
    monkeypatch.setattr(lm_head, "CHUNK_ELEMENTS", 48 * 16)
    with torch.no_grad():
        logits_KV = hidden_KH.double() @ layer.weight.double().T
        ids_K = logits_KV.argmin(-1)
        picked = lm_head.HiddenStates(
            head=layer,
            hidden_KH=hidden_KH,
            targets_K=ids_K,
            temperature_K=torch.ones(7),
            lengths=(7,),
        ).token_logprobs()
        rough_KV = (hidden_KH @ layer.weight.T).double()
    wanted_K, rough_K = (
        x.log_softmax(-1).gather(-1, ids_K[:, None])[:, 0] for x in (logits_KV, rough_KV)
    )
    torch.testing.assert_close(picked.logp.double(), wanted_K, atol=1e-5, rtol=0)
    assert (rough_K - wanted_K).abs().max() > 1e-3, "rounding would show"


def test_prompts_never_reach_the_head(trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, seen = rows(3), []
    passes = ForwardRunner(trainer().causal, micro_tokens=10_000)
    logits = lm_head._chunk_logits

    def watched(hidden: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden))
        return logits(hidden, *rest)

    monkeypatch.setattr(lm_head, "_chunk_logits", watched)
    passes.logprobs(batch)
    assert sum(seen) == sum(len(r.response_ids) for r in batch)


def test_batches_keep_to_the_budget() -> None:
    rng = np.random.default_rng(0)
    lengths = [int(n) for n in rng.integers(1, 100, 50)]
    groups = micro_batches(lengths, 128)
    assert sorted(i for g in groups for i in g) == list(range(50))
    assert all(len(g) * max(lengths[i] for i in g) <= 128 for g in groups)
    assert micro_batches([500, 3, 2], 100) == [[0], [1, 2]]


SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
BENT: dict[str, Any] = {
    "gemma2": lambda shape: Gemma2ForCausalLM(Gemma2Config(**shape, final_logit_softcapping=0.5)),
    # At the cap that such models have, small logits are bent by a ten-thousandth of themselves.
    "gemma2 as it is": lambda shape: Gemma2ForCausalLM(Gemma2Config(**shape)),
    "cohere": lambda shape: CohereForCausalLM(CohereConfig(**shape, logit_scale=0.25)),
    "granite": lambda shape: GraniteForCausalLM(GraniteConfig(**shape, logits_scaling=6.0)),
}


@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logit_transforms_of_the_model_are_applied(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = BENT[name](SMALL).eval().to(dtype)
    passes = ForwardRunner(model, micro_tokens=10_000)
    assert passes._logit_transform != lm_head.IDENTITY_TRANSFORM
    wide = copy.deepcopy(model).float()
    tolerance = 1e-5 if dtype is torch.float32 else 0.03
    with torch.no_grad():
        for row, scores in zip(batch := rows(1), passes.logprobs(batch), strict=True):
            torch.testing.assert_close(
                scores.logp.double(), plainly(wide, row), atol=tolerance, rtol=0
            )


def test_an_unknown_logit_transform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = BENT["gemma2"](SMALL).eval()
    monkeypatch.setattr("openclaw_rl.learner.forward.logit_transform._CAPS", ())
    with pytest.raises(ModelError, match="this gemma2 model changes its logits after the LM head"):
        ForwardRunner(model, micro_tokens=10)


def test_a_model_that_cannot_be_trained_is_refused_by_name() -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    model = RemBertForCausalLM(
        RemBertConfig(**shape, is_decoder=True, intermediate_size=32, input_embedding_size=16)
    )
    with pytest.raises(
        ModelError, match=r"this rembert model cannot be trained here \(RuntimeError"
    ):
        ForwardRunner(model.eval(), micro_tokens=10)


def test_a_row_needs_both_parts() -> None:
    with pytest.raises(ValueError, match="got 0 and 1 tokens"):
        TokenSequence(
            prompt_ids=np.zeros(0, np.int32), response_ids=np.zeros(1, np.int32), temperature=1.0
        )
    with pytest.raises(ValueError, match="temperature above 0, got 0"):
        TokenSequence(
            prompt_ids=np.zeros(1, np.int32), response_ids=np.zeros(1, np.int32), temperature=0.0
        )
