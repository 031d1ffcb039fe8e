"""Compiled layers: the same numbers, and words where a compiler fails. On a CPU with a backend that takes no minute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointError

from openclaw_rl.learner.model import compile
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]

# Of torch about itself, where a compiled piece takes up what an uncompiled one gave.
pytestmark = [
    pytest.mark.system,
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compile, "BACKEND", "eager")
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def weights(made: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made._weights.parameters.values()])


def test_compiled_layers_give_the_same_results(
    trainer: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And where a checkpoint computes something else again, the step is taken all the same, without compiled code."""
    plain, fast = trainer(max_gap=9.0), trainer(max_gap=9.0, compile=True, checkpointing=True)
    assert fast._runner.is_compiled
    assert not plain._runner.is_compiled
    # Norm, attention before and after its kernel, the feed-forward part, each with gradients and without, with room to
    # spare. Once for each layer would be 16.
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 12
    batch = draw(plain, 11)
    for made in (plain, fast):
        made.step(batch, str(tmp_path / str(made is fast)))
    assert fast._runner.is_compiled
    torch.testing.assert_close(weights(fast), weights(plain), rtol=1e-4, atol=1e-6)

    honest = fast._take_step

    def once(*given: Any) -> Any:
        if fast._runner.is_compiled:
            raise CheckpointError("a different number of tensors")
        return honest(*given)

    fast._take_step = once  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert fast.step(draw(plain, 3), str(tmp_path / "again")).folder
    assert "run uncompiled" in caplog.text


def test_a_failing_compiler_is_reported(trainer: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compile, "BACKEND", broken)
    with caplog.at_level(logging.WARNING):
        made = trainer(compile=True, max_gap=9.0)
    assert "no compiler here" in caplog.text
    assert not made._runner.is_compiled
    assert made.step(draw(made, 3), str(tmp_path / "1")).folder


def test_a_wrong_compiler_is_reported(trainer: Make, caplog: pytest.LogCaptureFixture,
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def wrong(graph: Any, _: object) -> Any:
        return lambda *given: [
            2.0 * o if isinstance(o, torch.Tensor) and o.ndim else o for o in graph.forward(*given)
        ]

    monkeypatch.setattr(compile, "BACKEND", wrong)
    # One kind of part is enough to be found, and compiles fast.
    monkeypatch.setattr(
        compile, "compiled_modules", lambda causal: [x.mlp for x in causal.get_decoder().layers]
    )
    with caplog.at_level(logging.WARNING):
        made = trainer(compile=True)
    assert "are off by" in caplog.text
    assert not made._runner.is_compiled
