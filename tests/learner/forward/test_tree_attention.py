"""A batch as one tree: the same log-probabilities and the same gradients as one row at a time, and less work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tests.learner.forward import test_exact_gradients
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from openclaw_rl.learner.forward import prefix_tree, tree_attention
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.runner import ForwardRunner

V = 50
SHAPE = test_exact_gradients.SHAPE | {"vocab_size": V, "num_hidden_layers": 3}
SLIDING = {
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MODELS: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**SHAPE)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, **SLIDING)),
}


def session(seed: int, turns: int = 4) -> list[TokenSequence]:
    """A trunk, a session of turns upon one another, branches, a hinted prompt, a turn twice, another agent's row."""
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> np.ndarray:
        return rng.integers(0, V, int(rng.integers(low, high))).astype(np.int32)

    history, rows = draw(10, 30), []
    for _ in range(turns):
        prompt, temperature = np.concatenate([history, draw(1, 9)]), float(rng.uniform(0.5, 1.5))
        choices = [draw(1, 9) for _ in range(int(rng.integers(1, 4)))]
        rows += [
            TokenSequence(prompt_ids=prompt, response_ids=c, temperature=temperature)
            for c in choices
        ]
        hinted = np.concatenate([prompt[:-1], draw(2, 5), prompt[-1:]])
        rows.append(
            TokenSequence(prompt_ids=hinted, response_ids=choices[0], temperature=temperature)
        )
        history = np.concatenate([prompt, choices[-1]])
    rows += [
        rows[1],
        TokenSequence(prompt_ids=draw(1, 20), response_ids=draw(1, 9), temperature=1.0),
    ]
    return [rows[i] for i in rng.permutation(len(rows))]


def one_by_one(model: Any, rows: list[TokenSequence]) -> torch.Tensor:
    """[K] the plain way, by the model's own attention."""
    out = []
    for row in rows:
        for module in (m for m in model.modules() if getattr(m, "rope_type", None) == "dynamic"):
            module.max_seq_len_cached = 0  # it remembers the longest row
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids]).astype(np.int64))
        logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0] / row.temperature
        logp = torch.log_softmax(logits, -1)[len(row.prompt_ids) - 1 :]
        out.append(logp.gather(-1, ids[len(row.prompt_ids) :, None])[:, 0])
    return torch.cat(out)


@pytest.mark.parametrize("tuned", ["lora", "full"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_through_the_tree_are_exact(name: str, tuned: str) -> None:
    """In float64, to 1e-6 relative: the shared trunk, branches, and a head in chunks."""
    torch.manual_seed(3)
    model = MODELS[name]().double().eval()
    if tuned == "lora":
        peft = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
        )
        for weight in (w for n, w in peft.named_parameters() if "lora_" in n):
            torch.nn.init.normal_(weight, std=0.2)
        model = peft.get_base_model()
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = session(7)
    weights_K = torch.randn(sum(len(r.response_ids) for r in rows), dtype=torch.float64)
    expected = one_by_one(model, rows)
    wanted = torch.autograd.grad((expected * weights_K).sum(), parameters)

    passes = ForwardRunner(model, micro_tokens=10_000)
    assert passes.uses_tree
    assert passes.group_rows(rows) == [passes.group_rows(rows)[0]], "one tree"
    got_K, _ = passes.forward(rows, floats=V * 7)
    torch.testing.assert_close(got_K, expected, rtol=1e-6, atol=1e-9)
    gradients = torch.autograd.grad((got_K * weights_K).sum(), parameters)
    for gradient, want in zip(gradients, wanted, strict=True):
        assert (gradient - want).abs().max() <= 1e-6 * want.abs().max()


@pytest.mark.parametrize("shares", [True, False])
def test_computations_keep_their_precision(shares: bool) -> None:
    """Temperatures neither: at a low one their rounding is multiplied. This family computes all in float64."""
    torch.manual_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=V, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    ).double()
    rows = [replace(row, temperature=0.1 + n / 30) for n, row in enumerate(session(7))]
    expected_K, parameters = one_by_one(model.eval(), rows), list(model.parameters())
    passes = ForwardRunner(model, micro_tokens=10_000)
    passes.uses_tree = shares
    got_K, _ = passes.forward(rows)
    torch.testing.assert_close(got_K, expected_K, rtol=1e-11, atol=1e-11)
    wanted = torch.autograd.grad(expected_K.sum(), parameters)
    for gradient, want in zip(torch.autograd.grad(got_K.sum(), parameters), wanted, strict=True):
        assert (gradient - want).abs().max() <= 1e-9 * want.abs().max()


@pytest.mark.parametrize("shares", [True, False])
def test_window_masks_are_bounded(monkeypatch: pytest.MonkeyPatch, shares: bool) -> None:
    """However long the trunk: in pieces, of which those above no branch see no further back than their window."""
    torch.manual_seed(5)
    monkeypatch.setattr(tree_attention, "MAX_QUERIES", 4)
    model, rows = MODELS["gemma3"]().double().eval(), session(13)
    expected_K = one_by_one(model, rows)
    passes = ForwardRunner(model, micro_tokens=10_000)
    passes.uses_tree = shares
    whole, sizes = tree_attention._window_mask, []

    def spy(
        first: int, queries: int, keys: int, window: int | None, device: torch.device
    ) -> torch.Tensor | None:
        sizes.extend([queries] if window else [])
        return whole(first, queries, keys, window, device)

    monkeypatch.setattr(tree_attention, "_window_mask", spy)
    got_K, _ = passes.forward(rows)
    torch.testing.assert_close(got_K, expected_K, rtol=1e-6, atol=1e-6)
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(expected_K.sum(), parameters)
    for gradient, want in zip(torch.autograd.grad(got_K.sum(), parameters), wanted, strict=True):
        assert (gradient - want).abs().max() <= 1e-6 * want.abs().max()
    assert 0 < max(sizes) <= 4


def test_micro_batches_of_the_tree_add_up() -> None:
    torch.manual_seed(4)
    model = MODELS["qwen3"]().double().eval()
    rows = session(8)
    sums = []
    for budget in (10_000, 60, 1):
        passes = ForwardRunner(model, micro_tokens=budget)
        groups = passes.group_rows(rows)
        assert sorted(i for g in groups for i in g) == list(range(len(rows)))
        total = [torch.zeros_like(p) for p in model.parameters()]
        for group in groups:
            logp_K, _ = passes.forward([rows[i] for i in group])
            for into, g in zip(
                total, torch.autograd.grad(logp_K.sum(), list(model.parameters())), strict=True
            ):
                into += g
        sums.append(torch.cat([t.flatten() for t in total]))
    for other in sums[1:]:  # the model's own norms compute in float32
        assert (other - sums[0]).abs().max() <= 1e-6 * sums[0].abs().max()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 120))
def test_a_pass_stays_within_its_budget(seed: int, turns: int, budget: int) -> None:
    rows = [*session(seed), *session(seed + 1)][: 2 * turns]
    groups = prefix_tree.group_rows(rows, budget)
    assert sorted(i for g in groups for i in g) == list(range(len(rows)))
    for group in groups:
        tokens = prefix_tree.build_tree([rows[i] for i in group], torch.device("cpu")).tokens
        longest = max(rows[i].input_length for i in group)
        assert tokens <= max(budget, longest + budget // 4)


def test_a_trunk_over_the_budget_is_computed_once() -> None:
    """Else each of its turns would compute it again."""
    rng = np.random.default_rng(0)
    trunk = rng.integers(0, V, 100).astype(np.int32)

    def row() -> TokenSequence:
        said, reply = rng.integers(0, V, 3), rng.integers(0, V, 3)
        prompt = np.concatenate([trunk, said]).astype(np.int32)
        return TokenSequence(
            prompt_ids=prompt, response_ids=reply.astype(np.int32), temperature=1.0
        )

    rows = [row() for _ in range(4)]
    for budget in (104, 100, 80):  # just below the rows, and well below
        assert len(prefix_tree.group_rows(rows, budget)) == 1
    assert len(prefix_tree.group_rows(rows, 16)) > 1, "memory that is short has its way"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_the_tree_has_every_row_once(seed: int, turns: int) -> None:
    rows = session(seed, turns)
    planted = prefix_tree.build_tree(rows, torch.device("cpu"))
    distinct = {r.input_ids[:n].tobytes() for r in rows for n in range(1, r.input_length + 1)}
    assert planted.tokens == len(distinct), "each prefix once"
    at = torch.split(planted.kept_K, [len(r.response_ids) for r in rows])
    for row, places in zip(rows, at, strict=True):
        i = int(places[-1])
        seen = [j for j in range(planted.tokens) if j <= i < int(planted.end_T[j])]
        assert planted.ids_T[seen].tolist() == row.input_ids.tolist(), (
            "a token sees its own row, in order"
        )
        assert planted.depth_T[seen].tolist() == list(range(row.input_length))
    for segment in planted.segments:
        above = [j for a, b in segment.above for j in range(a, b)]
        assert above == [j for j in range(segment.start) if segment.start < int(planted.end_T[j])]
        assert segment.depth == len(above) == int(planted.depth_T[segment.start])


def test_models_that_carry_a_state_are_trained_row_by_row(caplog: pytest.LogCaptureFixture) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    model = MambaForCausalLM(
        MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=2, state_size=4)
    ).eval()
    passes = ForwardRunner(model, micro_tokens=1)
    assert not passes.uses_tree
    assert "shared prompts are computed again" in caplog.text
    rows = session(9, 1)
    with torch.no_grad():
        expected = one_by_one(model, rows)
    got = torch.cat([scores.logp for scores in passes.logprobs(rows)])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_windows_given_only_by_the_mask_are_kept() -> None:
    """Some models tell the attention function nothing of their window; rows are longer than it here."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    torch.manual_seed(0)
    shape = SHAPE | {"use_sliding_window": True, "sliding_window": 7, "num_experts": 2}
    shape |= {"layer_types": SLIDING["layer_types"]}
    shape |= {
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "num_experts_per_tok": 1,
    }
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**shape)).eval()
    assert "sliding_attention" in model.config.layer_types
    rows = session(12)
    with torch.no_grad():
        expected = one_by_one(model, rows)
        passes = ForwardRunner(model, micro_tokens=10_000)
        got_K, _ = passes.forward(rows)
    assert passes.uses_tree
    torch.testing.assert_close(got_K, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_longest_row_keep_rows_apart(kind: str) -> None:
    torch.manual_seed(0)
    rope: dict[str, Any] = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0}
    if kind == "longrope":
        rope |= {
            "short_factor": [1.0] * 4,
            "long_factor": [3.0] * 4,
            "original_max_position_embeddings": 24,
        }
    length = 96 if kind == "longrope" else 24
    model = LlamaForCausalLM(
        LlamaConfig(**SHAPE | {"max_position_embeddings": length}, rope_parameters=rope)
    ).eval()
    rows = session(5)
    assert min(r.input_length for r in rows) <= 24 < max(r.input_length for r in rows)
    with torch.no_grad():
        expected = one_by_one(model, rows)
    passes = ForwardRunner(model, micro_tokens=10_000)
    groups = passes.group_rows(rows)
    assert sorted(i for g in groups for i in g) == list(range(len(rows)))
    got = torch.cat([scores.logp for scores in passes.logprobs(rows)])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
