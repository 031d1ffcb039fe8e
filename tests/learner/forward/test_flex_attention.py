"""FlexAttention over a tree, as far as a CPU goes: masks, outputs and gradients by torch's own unfused form of it.

On a CPU torch refuses gradients of FlexAttention, and only that refusal is taken away here: the unfused form has them.
`make gpu-check` compares the fused one on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tests.learner.forward import test_exact_gradients
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from openclaw_rl.learner.forward import flex_attention, prefix_tree, tree_attention
from openclaw_rl.learner.forward.flex_attention import BLOCK, TreeMasks
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.forward.prefix_tree import PrefixTree
from openclaw_rl.learner.forward.runner import ForwardRunner

V = 50


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flex_attention, "BACKEND", "aot_eager")
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *states: None)
    yield
    torch._dynamo.reset()
    flex_attention.compiled_kernel.cache_clear()


def grown(seed: int, branches: int, longest: int) -> list[TokenSequence]:
    """Rows that leave one another at random depths."""
    random = np.random.default_rng(seed)
    rows = [random.integers(0, V, int(random.integers(2, longest))).astype(np.int32)]
    for _ in range(branches):
        stem = rows[int(random.integers(len(rows)))]
        own = random.integers(0, V, int(random.integers(2, longest))).astype(np.int32)
        rows.append(np.concatenate([stem[: int(random.integers(0, len(stem)))], own]))
    cuts = [int(random.integers(1, len(ids))) for ids in rows]
    return [
        TokenSequence(prompt_ids=ids[:n], response_ids=ids[n:], temperature=1.0)
        for ids, n in zip(rows, cuts, strict=True)
    ]


def planted(rows: list[TokenSequence]) -> PrefixTree:
    bare = prefix_tree.build_tree(rows, torch.device("cpu"))
    return prefix_tree.pad_tree(bare, flex_attention.padded_length(bare.tokens))


def seen(of: PrefixTree, window: int | None) -> torch.Tensor:
    """[T, T] by the segments: a path, then the run itself up to the token."""
    out = torch.zeros(of.tokens, of.tokens, dtype=torch.bool)
    for segment in of.segments:
        path = [j for a, b in (*segment.above, (segment.start, segment.end)) for j in range(a, b)]
        for i in range(segment.start, segment.end):
            upto = segment.depth + i - segment.start + 1
            out[i, path[max(0, upto - (window or upto)) : upto]] = True
    return out


def blocks(counts: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """[N, N] bool from the form that the kernel reads."""
    out = torch.zeros(which.shape[-2:], dtype=torch.bool)
    for row, (count, places) in enumerate(
        zip(counts[0, 0].tolist(), which[0, 0].tolist(), strict=True)
    ):
        out[row, places[:count]] = True
    return out


def means(mask: BlockMask, tokens: int) -> torch.Tensor:
    """[T, T] what the kernel makes of it: full blocks as they are, mixed ones by the rule, nothing else."""
    at = torch.arange(tokens)
    zero = torch.zeros((), dtype=torch.long)
    rule = mask.mask_mod(zero, zero, at[:, None], at[None])
    mixed, full = (
        blocks(mask.kv_num_blocks, mask.kv_indices),
        blocks(mask.full_kv_num_blocks, mask.full_kv_indices),
    )
    assert not (mixed & full).any()

    def wide(of: torch.Tensor) -> torch.Tensor:
        return of.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)

    assert torch.equal(blocks(mask.q_num_blocks, mask.q_indices).T, mixed), (
        "the backward pass reads the same blocks"
    )
    assert torch.equal(blocks(mask.full_q_num_blocks, mask.full_q_indices).T, full)
    return wide(full) | wide(mixed) & rule


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 6),
    st.integers(3, 250),
    st.sampled_from([None, 1, 7, 130, 300]),
)
def test_the_block_mask_is_the_tree(
    seed: int, branches: int, longest: int, window: int | None
) -> None:
    of = planted(grown(seed, branches, longest))
    wanted = seen(of, window)
    mask = TreeMasks(of).block_mask(window)
    assert torch.equal(means(mask, of.tokens), wanted)
    squares = wanted.view(of.tokens // BLOCK, BLOCK, -1, BLOCK)
    full = blocks(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert not (full & ~squares.all(3).all(1)).any()
    if window is None:  # no work that could be spared
        assert torch.equal(full, squares.all(3).all(1))
        assert torch.equal(
            blocks(mask.kv_num_blocks, mask.kv_indices) | full, squares.any(3).any(1)
        )


def test_a_mask_is_made_once_for_all_layers() -> None:
    masks = TreeMasks(planted(grown(1, 3, 200)))
    assert masks.block_mask(None) is masks.block_mask(None)
    assert masks.block_mask(7) is masks.block_mask(7)
    assert masks.block_mask(7) is not masks.block_mask(None)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4), st.integers(3, 200), st.integers(0, 200))
def test_padding_is_not_attended_to(seed: int, branches: int, longest: int, more: int) -> None:
    bare = prefix_tree.build_tree(grown(seed, branches, longest), torch.device("cpu"))
    padded = prefix_tree.pad_tree(bare, bare.tokens + more)
    assert padded.tokens == bare.tokens + more
    assert torch.equal(padded.ids_T[: bare.tokens], bare.ids_T)
    assert int(padded.kept_K.max()) < bare.tokens
    assert not seen(padded, None)[: bare.tokens, bare.tokens :].any()
    assert not seen(padded, None)[bare.tokens :, : bare.tokens].any()
    i = torch.arange(padded.tokens)[:, None]
    assert torch.equal(seen(padded, None), (i >= i.T) & (i < padded.end_T[None])), (
        "the rule holds there, too"
    )


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(0, 10**6), st.integers(0, 5), st.integers(10, 150), st.sampled_from([None, 9, 140]),
    st.sampled_from([(4, 2), (3, 1)]), st.sampled_from([0.25, 0.3]),
)  # fmt: skip
def test_states_and_gradients_match_attention_by_segments(
    unfused: None,
    seed: int,
    branches: int,
    longest: int,
    window: int | None,
    heads: tuple[int, int],
    scale: float,
) -> None:
    of = planted(grown(seed, branches, longest))
    random = torch.Generator().manual_seed(seed)
    shapes = (heads[0], heads[1], heads[1])
    given_states = [
        torch.randn(1, n, of.tokens, 16, generator=random, dtype=torch.float64) for n in shapes
    ]
    weights = torch.randn(1, heads[0], of.tokens, 16, generator=random, dtype=torch.float64)
    results = []
    for way, what in (
        (flex_attention.attend_tree, TreeMasks(of)),
        (tree_attention.attend_by_segments, of),
    ):
        states = [s.clone().requires_grad_() for s in given_states]
        out = way(*states, what, scale, window)  # type: ignore[operator]
        results.append([out.detach(), *torch.autograd.grad((out * weights).sum(), states)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_one_kernel_serves_all_lengths_and_trees(
    unfused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled again: per window or none, with or without gradients. Nothing for lengths, trees and sizes."""
    made = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(flex_attention, "BACKEND", made)
    for seed, longest in enumerate((400, 200, 20, 300)):
        of = planted(grown(seed, 3, longest))
        masks = TreeMasks(of)
        query = torch.randn(1, 4, of.tokens, 16)
        key, value = torch.randn(2, 1, 2, of.tokens, 16)
        for window in (None, 5, 60):
            for trains in (True, False):
                with torch.set_grad_enabled(trains):
                    flex_attention.attend_tree(
                        query.requires_grad_(trains), key, value, masks, 0.25, window
                    )
    assert made.frame_count == 4


def test_too_many_kernels_raise_an_error(unfused: None) -> None:
    of = planted(grown(0, 3, 500))
    query = torch.randn(1, 2, of.tokens, 16)
    flex_attention.attend_tree(query, query, query, TreeMasks(of), 0.25, None)
    limit = torch._dynamo.config.patch(recompile_limit=1)
    with limit, pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        flex_attention.attend_tree(
            query.double(), query.double(), query.double(), TreeMasks(of), 0.25, None
        )


SHAPE = test_exact_gradients.SHAPE | {"vocab_size": V, "max_position_embeddings": 2048}


def _gemma3() -> Gemma3ForCausalLM:
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=40, layer_types=kinds))


# The compiler asks tensors for their gradient, and hides what torch says to that, but not from a filter of errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_gradients_of_a_whole_model_match_attention_by_segments(unfused: None) -> None:
    torch.manual_seed(0)
    peft = get_peft_model(
        _gemma3().eval(), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    )
    for weight in (w for n, w in peft.named_parameters() if "lora_" in n):
        torch.nn.init.normal_(weight, std=0.2)
    causal = peft.get_base_model().double()
    parameters = [p for p in causal.parameters() if p.requires_grad]
    rows = grown(3, 4, 150)
    results = []
    for asked in (True, False):
        passes = ForwardRunner(causal, micro_tokens=10**6, flex=asked)
        assert passes.uses_tree
        assert passes.uses_flex is asked
        logp_K, _ = passes.forward(rows)
        results.append([logp_K.detach(), *torch.autograd.grad(logp_K.square().sum(), parameters)])
    for got, want in zip(*results, strict=True):
        assert (got - want).norm() <= 1e-6 * want.norm()  # the models' own norms compute in float32


def test_a_failing_flex_attention_falls_back_to_segments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On this machine torch refuses gradients of FlexAttention; a GPU without a compiler is the same case."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    flex_attention.compiled_kernel.cache_clear()
    with caplog.at_level(logging.WARNING), pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "BACKEND", "aot_eager")
        passes = ForwardRunner(model, micro_tokens=10**6, flex=True)
    assert passes.uses_tree
    assert not passes.uses_flex
    assert "FlexAttention does not work here, attention runs segment by segment" in caplog.text
    assert "backward on CPU" in caplog.text
    rows = grown(4, 3, 60)
    plain = ForwardRunner(model, micro_tokens=10**6)
    assert not plain.uses_flex
    for got, want in zip(passes.logprobs(rows), plain.logprobs(rows), strict=True):
        torch.testing.assert_close(got.logp, want.logp)


def test_attention_with_changed_scores_falls_back_to_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**SHAPE, final_logit_softcapping=None)).eval()
    assert not ForwardRunner(model, micro_tokens=10**6).uses_tree
    assert "softcap" in caplog.text
