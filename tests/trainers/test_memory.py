"""A step that does not fit: a smaller one, said loudly; then words that help."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.credit import Sample
from openclaw_rl.errors import ModelError
from openclaw_rl.trainers.local import LocalTrainer

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
CURES = ("train.checkpointing", "train.micro_tokens", "train.base_bits 4", "train.lora.rank")


def bound(trainer: LocalTrainer, tokens: int, *, when: Callable[[], bool] = lambda: True) -> None:
    """From now on, passes of more than `tokens` tokens do not fit into memory."""

    def allocate(layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        if ids.numel() > tokens and when():
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {ids.numel()} GiB")

    trainer.causal.get_decoder().register_forward_pre_hook(allocate, with_kwargs=True)


@pytest.mark.parametrize("weights", ["lora", "full"])
def test_a_step_that_does_not_fit_is_tried_in_smaller_passes(
    trainer: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture, weights: str
) -> None:
    settings = {"weights": weights, "learning_rate": 1e-3, "max_gap": 9.0, "max_step_kl": 1e9}
    tight, plain = trainer(micro_tokens=80, **settings), trainer(micro_tokens=40, **settings)
    bound(tight, 50)
    batches = [draw(plain, seed) for seed in range(2)]
    with caplog.at_level(logging.ERROR, "openclaw_rl.trainers.memory"):
        results = [t.step(batches[0], str(tmp_path / n)) for n, t in (("tight", tight), ("plain", plain))]
    assert results[0].digest == results[1].digest, "nothing of the first attempt is in the second"
    assert "Trying passes of 40 tokens instead" in caplog.text
    assert all(cure in caplog.text for cure in CURES)
    caplog.clear()
    results = [t.step(batches[1], str(tmp_path / f"{n}-on")) for n, t in (("tight", tight), ("plain", plain))]
    assert results[0].digest == results[1].digest
    assert "does not fit" not in caplog.text, "once told, it stays small"


def test_what_fits_in_no_way_fails_with_what_would_help(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer(micro_tokens=80)
    batch = draw(made, 0)
    bound(made, 3)
    with pytest.raises(ModelError, match=r"a step of 40 tokens a pass does not fit into memory \(CUDA") as caught:
        made.step(batch, str(tmp_path / "policy"))
    assert all(cure in str(caught.value) for cure in CURES)
    assert not list(tmp_path.iterdir())


def test_a_step_that_was_begun_is_not_begun_again(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """What fails to fit behind the optimizer's step finds other weights than before it."""
    made = trainer(micro_tokens=80, learning_rate=1e-2)
    batch = draw(made, 0)
    weight = next(p for n, p in made.model.named_parameters() if "lora_B" in n)
    bound(made, 3, when=lambda: bool(weight.detach().any()))
    with pytest.raises(ModelError, match="the step does not fit into memory") as caught:
        made.step(batch, str(tmp_path / "policy"))
    assert all(cure in str(caught.value) for cure in CURES)
    assert weight.detach().any(), "it stood behind its step"
