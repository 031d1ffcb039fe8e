"""The causal kernel of sequences that share nothing. `make gpu-check` compares a GPU's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend

from openclaw_rl.learner.forward import causal_attention, prefix_tree, tree_attention
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
CPU = torch.device("cpu")


def row(*ids: int, answer: int = 3) -> TokenSequence:
    every = np.array(ids, np.int32)
    return TokenSequence(prompt_ids=every[:-answer], response_ids=every[-answer:], temperature=1.0)


def spans(*rows: TokenSequence, padded: int = 0) -> object:
    planted = prefix_tree.build_tree(rows, CPU)
    return tree_attention.AttentionPlan(
        prefix_tree.pad_tree(planted, padded or planted.tokens), None
    ).spans


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's kernels stand in for those of a GPU."""
    monkeypatch.setattr(causal_attention, "KERNELS", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
    monkeypatch.setattr(causal_attention, "has_kernel", lambda *shape: True)


@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 4, 16), (8, 2, 32), (6, 1, 64)])
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)],
    ids=str,
)
def test_the_kernel_matches_attention(
    heads: int, groups: int, size: int, dtype: torch.dtype, bound: float, host: None
) -> None:
    assert causal_attention.kernel_error(heads, groups, size, dtype, CPU) <= bound


def test_a_wrong_kernel_is_detected(host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = causal_attention.attend_spans
    monkeypatch.setattr(
        causal_attention, "attend_spans", lambda q, k, v, *rest: honest(q, k, 1.2 * v, *rest)
    )
    assert causal_attention.kernel_error(4, 2, 16, torch.float32, CPU) > 0.1


def test_a_cpu_has_no_kernel() -> None:
    assert not causal_attention.has_kernel(4, 2, 16, torch.bfloat16, CPU)


def test_trees_of_separate_sequences_are_recognised() -> None:
    session = [row(*range(10)), row(*range(20)), row(*range(30))]
    assert spans(*session) == [(0, 29)], (
        "turns of one session, each of which goes on where the last one ended"
    )
    assert spans(*session, padded=256) == [(0, 29)]
    assert spans(*session, row(*range(40, 60))) == [(0, 29), (29, 48)]
    assert spans(*session, row(*range(15), 50, 51, 52, 53)) is None, "a branch"
    assert (
        spans(*(row(*range(9 * n, 9 * n + 8)) for n in range(tree_attention.MAX_SPANS + 1))) is None
    ), "too many calls"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_with_the_kernel_equals_one_without(
    trainer: Make,
    draw: Draw,
    tmp_path: Path,
    host: None,
    monkeypatch: pytest.MonkeyPatch,
    checkpointing: bool,
) -> None:
    calls = [0]
    honest = causal_attention.attend_spans

    def counted(*given: Any) -> torch.Tensor:
        calls[0] += 1
        return honest(*given)

    monkeypatch.setattr(causal_attention, "attend_spans", counted)
    made = trainer(max_gap=9.0, checkpointing=checkpointing)
    batch = draw(made, 11)
    made.step(batch, str(tmp_path / "with"))
    assert calls[0] > 0
    monkeypatch.setattr(causal_attention, "has_kernel", lambda *shape: False)
    plain = trainer(max_gap=9.0)
    calls[0] = 0
    plain.step(batch, str(tmp_path / "without"))
    assert calls[0] == 0
    for name, weight in plain._weights.parameters.items():
        torch.testing.assert_close(made._weights.parameters[name], weight, rtol=1e-4, atol=1e-6)


def test_padding_attends_to_nothing(host: None) -> None:
    states = [torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3)]
    out = causal_attention.attend_spans(states[0], states[1], states[2], [(0, 2), (2, 6)], 0.25)
    assert out.shape == (1, 2, 8, 16)
    assert not out[:, :, 6:].any()
    for found in torch.autograd.grad(out.sum(), states):
        assert not found[:, :, 6:].any()


def test_a_trial_inside_a_layer_is_not_checkpointed(host: None) -> None:
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        causal_attention.kernel_error(4, 2, 16, torch.float32, CPU)
    assert not seen
