"""Each setting of a step changes the step: two steps with it and two without, on the same turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.learner.conftest import VOCABULARY

from openclaw_rl.learner.loss.scored_batch import plain_sequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import train_settings

Outcome = Callable[..., "Result"]

WIDE = {
    "safety.max_turn_log_ratio": 9.0,
    "safety.max_batch_log_ratio": 9.0,
    "safety.max_step_kl": 9.0,
}
"""Bounds that no step of these tests reaches, so that they do not cover what a setting does."""
TOP = {"distill.target": "student_topk"}
EMA = {"distill.teacher": "ema"}

CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "train.method": ("opd", {}),
    "train.finetune": ("full", {}),
    "train.lora.rank": (4, {}),
    "train.lora.alpha": (64.0, {}),
    "train.lora.dropout": (0.5, {}),
    "train.lora.targets": (["q_proj"], {}),
    "train.seed": (8, {"lora.dropout": 0.5}),
    "train.batch.epochs": (2, {}),
    "train.optimizer.learning_rate": (1e-3, {}),
    "train.optimizer.warmup_steps": (4, {}),
    "train.optimizer.warmup_samples": (40, {}),
    "train.optimizer.weight_decay": (0.5, {}),
    "train.optimizer.adam_beta1": (0.5, {}),
    "train.optimizer.adam_beta2": (0.5, {}),
    "train.optimizer.clip_grad": (1e-9, {}),
    "train.loss.surrogate": ("cispo", {}),
    "train.loss.clip_low": (0.99, {}),
    "train.loss.clip_high": (1.01, {}),
    "train.loss.dual_clip": (1.01, {}),
    "train.loss.token_ratio_min": (0.95, {}),
    "train.loss.token_ratio_max": (1.05, {}),
    "train.loss.sequence_mask": ("geometric", {}),
    "train.loss.opsm_delta": (0.5, {"loss.sequence_mask": "opsm"}),
    "train.loss.geometric_low": (0.5, {"loss.sequence_mask": "geometric"}),
    "train.loss.geometric_high": (2.0, {"loss.sequence_mask": "geometric"}),
    "train.loss.w_binary": (0.1, {}),
    "train.loss.w_opd": (0.1, {}),
    "train.loss.kl_coef": (5.0, {}),
    "train.loss.baseline_decay": (0.1, {}),
    "train.loss.baseline_shrink": (0.5, {}),
    "train.loss.length_ema_decay": (0.1, {}),
    "train.distill.target": ("student_topk", {}),
    "train.distill.opd_clip": (0.1, {}),
    "train.distill.topk": (3, TOP),
    "train.distill.teacher_temperature": (2.0, {}),
    "train.distill.divergence": ("forward", TOP),
    "train.distill.ratio_clip": (0.5, TOP),
    "train.distill.hint_choice": ("overlap", {}),
    "train.distill.teacher": ("ema", {}),
    "train.distill.ema_rate": (0.9, EMA),
    "train.distill.ema_max_kl": (1e-9, EMA | {"distill.ema_rate": 0.9}),
    "train.safety.max_turn_log_ratio": (0.25, {"safety.max_batch_log_ratio": 0.25}),
    "train.safety.max_batch_log_ratio": (0.22, {}),
    "train.safety.max_step_kl": (1e-6, {}),
}
"""Setting -> (another value, what is set beside it)."""
LATE = ("train.loss.length_ema_decay",)
"""Settings that show from the third step on."""


@pytest.fixture(scope="module")
def batches() -> list[list[Sample]]:
    """Three batches of six turns, each with a score and two hints, sampled by a policy somewhat away from the base."""
    rng, out = np.random.default_rng(0), []
    for number in range(3):
        out.append([_random_sample(rng, f"turn-{number}-{n}") for n in range(6)])
    return out


def _random_sample(rng: np.random.Generator, turn: str) -> Sample:
    prompt, reply = (
        rng.integers(0, VOCABULARY, int(rng.integers(3, 12))).astype(np.int32) for _ in range(2)
    )
    return Sample(
        turn=turn,
        agent=str(rng.choice(["a", "b"])),
        prompt_ids=prompt,
        response_ids=reply,
        logprobs=rng.normal(0, 0.3, len(reply)).astype(np.float32),
        mask=np.ones(len(reply), bool),
        temperature=1.0,
        version=0,
        reward=float(rng.choice([1.0, -1.0])),
        hinted_prompts=tuple(rng.integers(0, VOCABULARY, 9).astype(np.int32) for _ in range(2)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the steps led to."""

    weights: torch.Tensor
    metrics: list[dict[str, float]]
    dropped: list[list[str]]

    def equals(self, other: Result) -> bool:
        same_weights = self.weights.shape == other.weights.shape and torch.equal(
            self.weights, other.weights
        )
        return same_weights and (self.metrics, self.dropped) == (other.metrics, other.dropped)


def take_steps(
    tiny: str, batches: list[list[Sample]], folder: Path, given: Mapping[str, Any]
) -> Result:
    """Return the trained weights and the metrics of two steps with some settings."""
    train = train_settings({"optimizer.learning_rate": 1e-2} | WIDE | dict(given))
    made = LocalTrainer(tiny, make_method(train), train)
    moved = iter(made.logprobs([plain_sequence(sample) for batch in batches for sample in batch]))
    results = []
    for number, batch in enumerate(batches):
        sampled = [replace(s, logprobs=next(moved).numpy() + s.logprobs) for s in batch]
        results.append(made.step(sampled, str(folder / str(number))))
    trained = torch.cat([p.detach().flatten() for p in made.model.parameters() if p.requires_grad])
    metrics = [
        {name: value for name, value in r.metrics.items() if name != "seconds"} for r in results
    ]
    return Result(weights=trained, metrics=metrics, dropped=[sorted(r.dropped) for r in results])


@pytest.fixture(scope="module")
def plain_steps(
    tiny: str, batches: list[list[Sample]], tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """Return as many steps with settings as are asked for, from a cache."""
    known: dict[tuple[str, int], Result] = {}

    def find(given: Mapping[str, Any], count: int = 2) -> Result:
        if (name := (repr(given), count)) not in known:
            known[name] = take_steps(tiny, batches[:count], tmp_path_factory.mktemp("plain"), given)
        return known[name]

    return find


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_changes_the_steps(
    key: str, tiny: str, batches: list[list[Sample]], plain_steps: Outcome, tmp_path: Path
) -> None:
    (value, beside), count = CHANGES[key], 3 if key in LATE else 2
    changed = take_steps(
        tiny, batches[:count], tmp_path, beside | {key.removeprefix("train."): value}
    )
    assert not changed.equals(plain_steps(beside, count))


@pytest.mark.parametrize(
    "given", [{}, {"safety.gate_kl": 0.1, "batch.max_turns": 9, "threads": 1}, TOP, EMA]
)
def test_only_listed_settings_change_the_steps(
    given: dict[str, Any],
    tiny: str,
    batches: list[list[Sample]],
    plain_steps: Outcome,
    tmp_path: Path,
) -> None:
    """Without this, a difference would say nothing."""
    own = {key: value for key, value in given.items() if key.startswith("distill.")}
    assert take_steps(tiny, batches[:2], tmp_path, given).equals(plain_steps(own))


def make_trainer(tiny: str, **given: Any) -> LocalTrainer:
    train = train_settings(given)
    return LocalTrainer(tiny, make_method(train), train)


def test_micro_tokens_bound_a_pass(tiny: str, batches: list[list[Sample]]) -> None:
    rows = [plain_sequence(sample) for sample in batches[0]]
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    whole, single = make_trainer(tiny), make_trainer(tiny, **{"batch.micro_tokens": longest})
    assert (len(whole._runner.group_rows(rows)), len(single._runner.group_rows(rows)) > 1) == (
        1,
        True,
    )


def test_an_offloaded_step_uses_copies(tiny: str) -> None:
    """On a GPU the copies are in CPU memory; here they are other tensors than the weights."""
    for offload in (False, True):
        made = make_trainer(tiny, **{"optimizer.offload": offload})
        weights = {p.data_ptr() for p in made.model.parameters()}
        assert all((t.data_ptr() in weights) is not offload for t in made._optimizer.master_tensors)


def test_the_number_of_threads_is_that_of_the_settings(tiny: str) -> None:
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            make_trainer(tiny, threads=count)
            assert torch.get_num_threads() == count, "train.threads"
    finally:
        torch.set_num_threads(before)
