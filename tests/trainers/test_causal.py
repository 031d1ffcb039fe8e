"""Causal kernels of sequences that share nothing, and their outputs, which checkpoints keep."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from openclaw_rl.credit import Sample
from openclaw_rl.trainers import attention, causal, tree
from openclaw_rl.trainers.causal import HOST, Given, Kernel, States
from openclaw_rl.trainers.local import LocalTrainer
from openclaw_rl.trainers.pack import Row

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
CPU = torch.device("cpu")


def row(*ids: int, answer: int = 3) -> Row:
    every = np.array(ids, np.int32)
    return Row(prompt_ids=every[:-answer], response_ids=every[-answer:], temperature=1.0)


def spans(*rows: Row, padded: int = 0) -> object:
    planted = tree.plant(rows, CPU)
    return attention.Plan(tree.pad(planted, padded or planted.tokens), None).spans


@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 4, 16), (8, 2, 32), (6, 1, 64)])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str
)
def test_the_kernel_is_attention(heads: int, groups: int, size: int, dtype: torch.dtype, bound: float) -> None:
    assert causal.gap_of(HOST, heads, groups, size, dtype, CPU) <= bound


def test_a_kernel_that_is_wrong_is_seen() -> None:
    def backward(d_out: torch.Tensor, states: States, given: Given, scale: float) -> States:
        d_query, d_key, d_value = HOST.backward(d_out, states, given, scale)
        return d_query, d_key, 1.2 * d_value

    assert causal.gap_of(Kernel("wrong", HOST.forward, backward), 4, 2, 16, torch.float32, CPU) > 0.1


def test_which_trees_are_sequences() -> None:
    session = [row(*range(10)), row(*range(20)), row(*range(30))]
    assert spans(*session) == [(0, 29)], "turns of one session, each of which goes on where the last one ended"
    assert spans(*session, padded=256) == [(0, 29)]
    assert spans(*session, row(*range(40, 60))) == [(0, 29), (29, 48)]
    assert spans(*session, row(*range(15), 50, 51, 52, 53)) is None, "a branch"
    assert spans(*(row(*range(n, n + 8)) for n in range(attention.APART + 1))) is None, "too many calls"


def test_checkpoints_keep_what_attention_gave(
    trainer: Make, draw: Draw, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, plans = [0], []

    def forward(*states: Any) -> Given:
        calls[0] += torch.is_grad_enabled() or 1
        return HOST.forward(*states)

    class Watched(attention.Plan):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            plans.append(self)

    monkeypatch.setattr(attention, "Plan", Watched)
    monkeypatch.setattr(causal, "HOST", Kernel("counted", forward, HOST.backward))
    causal.kernel_for.cache_clear()
    asked: dict[bool, int] = {}
    made: dict[bool, LocalTrainer] = {}
    for thrifty in (False, True):
        made[thrifty] = trainer(max_gap=9.0, checkpointing=thrifty)
        batch = draw(made[thrifty], 11)[:1]
        calls[0] = 0
        made[thrifty].step(batch, str(tmp_path / str(thrifty)))
        asked[thrifty] = calls[0]
    causal.kernel_for.cache_clear()
    assert asked[True] == asked[False] > 0, "computed again with the layer"
    for name, weight in made[False]._weights.parameters.items():
        torch.testing.assert_close(made[True]._weights.parameters[name], weight, rtol=1e-5, atol=1e-7)
    checkpointed = [plan for plan in plans[len(plans) // 2 :] if plan.spans]
    assert checkpointed
    assert not any(plan.kept for plan in checkpointed), "what is kept goes with the backward pass"


@pytest.mark.parametrize("end", [8, 6], ids=["whole", "padded"])
def test_what_is_kept_goes_with_its_graph(end: int) -> None:
    """An output that knew its own graph would keep both for good."""
    given: list[torch.Tensor] = []

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Given:
        out, rest = HOST.forward(query, key, value, scale)
        given.append(out.contiguous().clone())
        return given[-1], rest

    states = [torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3)]
    kept: causal.Kept = {}
    out = causal.attend(*states, Kernel("watched", forward, HOST.backward), [(0, end)], 0.25, kept, 7)  # type: ignore[misc]
    assert list(kept) == [7]
    out.sum().backward()
    assert states[2].grad is not None
    alive = weakref.ref(given.pop())
    del out
    kept.clear()
    assert alive() is None


def test_a_trial_within_a_layer_is_none_of_its_checkpoints() -> None:
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        causal.gap_of(HOST, 4, 2, 16, torch.float32, CPU)
    assert not seen
