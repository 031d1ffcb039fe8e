"""A step that does not fit: a smaller one, said loudly; then words that help."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_rl.errors import ModelError, TooLarge
from openclaw_rl.learner.model.oom import RankOutOfMemory, retry_on_oom
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.types import Sample

Make = Callable[..., LocalTrainer]
Draw = Callable[..., list[Sample]]
CURES = (
    "train.gradient_checkpointing",
    "train.batch.micro_tokens",
    "train.base_quantization_bits 4",
    "train.lora.rank",
)


def bound(trainer: LocalTrainer, tokens: int, *, when: Callable[[], bool] = lambda: True) -> None:
    """From now on, passes of more than `tokens` tokens do not fit into memory."""

    def allocate(layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        if ids.numel() > tokens and when():
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {ids.numel()} GiB")

    trainer.causal.get_decoder().register_forward_pre_hook(allocate, with_kwargs=True)


def test_a_step_that_does_not_fit_is_tried_in_smaller_passes(
    trainer: Make, draw: Draw, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"learning_rate": 1e-3, "max_gap": 9.0, "max_step_kl": 1e9}
    tight, plain = trainer(micro_tokens=80, **settings), trainer(micro_tokens=40, **settings)
    bound(tight, 50)
    batches = [draw(plain, seed) for seed in range(2)]
    with caplog.at_level(logging.ERROR, "openclaw_rl.learner.model.oom"):
        results = [
            t.step(batches[0], str(tmp_path / n)) for n, t in (("tight", tight), ("plain", plain))
        ]
    assert results[0].digest == results[1].digest, "nothing of the first attempt is in the second"
    assert "Retrying with passes of 40 tokens" in caplog.text
    assert all(cure in caplog.text for cure in CURES)
    caplog.clear()
    results = [
        t.step(batches[1], str(tmp_path / f"{n}-on"))
        for n, t in (("tight", tight), ("plain", plain))
    ]
    assert results[0].digest == results[1].digest
    assert "does not fit" not in caplog.text, "later steps keep the smaller passes"


def test_a_step_that_never_fits_names_the_settings_to_change(
    trainer: Make, draw: Draw, tmp_path: Path
) -> None:
    made = trainer(micro_tokens=40)
    batch = draw(made, 0, count=2)
    bound(made, 3)
    with pytest.raises(
        TooLarge, match=r"a step with one row per pass does not fit into memory \(CUDA"
    ) as caught:
        made.step(batch, str(tmp_path / "policy"))
    assert all(cure in str(caught.value) for cure in CURES)
    assert not list(tmp_path.iterdir())
    assert made._runner.budget == 40, "what is left of the batch may fit as it was"


def test_passes_are_halved_until_they_fit(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    made = trainer(micro_tokens=200, max_gap=9.0)
    batch = draw(made, 0)
    prompts = [
        (len(ids), len(s.response_ids)) for s in batch for ids in (s.prompt_ids, *s.hinted_prompts)
    ]
    bound(made, max(map(sum, prompts)))
    assert made.step(batch, str(tmp_path / "policy")).folder is not None


def test_a_failure_on_one_rank_is_not_retried() -> None:
    """The others wait for this one's share of the gradients, and would wait in vain for a whole timeout."""
    tried = []

    class Two:
        memory_limits, world_size = 80, 2

        def reduce_memory(self) -> str | None:
            return "less"

    def attempt(error: Exception) -> None:
        tried.append(error)
        if len(tried) % 2:
            raise error

    with pytest.raises(ModelError, match="the step does not fit into memory"):
        retry_on_oom(lambda: attempt(torch.OutOfMemoryError("in add_up")), Two(), lambda: False)
    assert len(tried) == 1
    tried.clear()
    retry_on_oom(
        lambda: attempt(RankOutOfMemory("a pass, as all ranks know")), Two(), lambda: False
    )
    assert len(tried) == 2


def test_a_step_that_has_begun_is_not_retried(trainer: Make, draw: Draw, tmp_path: Path) -> None:
    """What fails to fit behind the optimizer's step finds other weights than before it."""
    made = trainer(micro_tokens=80, learning_rate=1e-2)
    batch = draw(made, 0)
    weight = next(p for n, p in made.model.named_parameters() if "lora_B" in n)
    bound(made, 3, when=lambda: bool(weight.detach().any()))
    with pytest.raises(ModelError, match="the step does not fit into memory") as caught:
        made.step(batch, str(tmp_path / "policy"))
    assert all(cure in str(caught.value) for cure in CURES)
    assert weight.detach().any(), "it stood behind its step"


class Rows:
    """Passes of two rows: they can be halved once."""

    memory_limits, world_size = 128, 1

    def reduce_memory(self) -> str | None:
        self.memory_limits //= 2
        return f"passes of {self.memory_limits} tokens" if self.memory_limits == 64 else None


def test_running_out_of_memory_on_a_cpu_raises_as_on_a_gpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What torch's own allocator raises there, and nothing else of that kind."""
    rows = Rows()
    with (
        caplog.at_level(logging.ERROR, "openclaw_rl.learner.model.oom"),
        pytest.raises(TooLarge, match="can't allocate"),
    ):
        retry_on_oom(lambda: torch.empty(2**50, dtype=torch.float64), rows, lambda: False)
    assert "Retrying with passes of 64 tokens" in caplog.text
    with pytest.raises(RuntimeError, match="must match"):
        retry_on_oom(lambda: torch.ones(2) + torch.ones(3), rows, lambda: False)
