from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.gates import metric_gates as gate
from openclaw_rl.gates.metric_gates import rejection_reason
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.types import PolicyState

SOUND = {"loss/total": 0.1, "gradient/norm": 2.0, "kl": 0.3, "kl/step": 0.002, "gap": 0.01}
BOUNDS = {"safety.gate_grad_norm": 2.0, "safety.gate_kl": 0.3, "safety.max_step_kl": 0.002}


def reason_of(metrics: dict[str, float], bounds: dict[str, float] = BOUNDS) -> str | None:
    reason = rejection_reason(metrics, train_settings(bounds))
    return None if reason is None else reason.detail


def test_a_good_step_passes() -> None:
    assert reason_of(SOUND) is None


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_metric_must_be_finite(name: str, value: float) -> None:
    wide = dict.fromkeys(BOUNDS, 9.0)
    assert reason_of(SOUND | {name: value}, wide) == f"{name} is {value}, expected a finite number"


def test_a_step_without_metrics_is_refused() -> None:
    for name in ("loss/total", "gradient/norm", "kl", "kl/step"):
        assert f"{name} is None" in str(reason_of({k: v for k, v in SOUND.items() if k != name}))


def test_bounds_name_their_settings() -> None:
    refused = {
        name: str(reason_of(SOUND | {"step/scale": 2**-8}, BOUNDS | {name: 0.001}))
        for name in BOUNDS
    }
    assert (
        refused["safety.gate_grad_norm"]
        == "gradient norm 2 is above train.safety.gate_grad_norm 0.001"
    )
    assert (
        refused["safety.gate_kl"]
        == "KL to the base 0.3 nats per token is above train.safety.gate_kl 0.001"
    )
    assert refused["safety.max_step_kl"] == (
        "even 0.00391 of the step moves the policy by 0.002 nats per token, above train.safety.max_step_kl 0.001"
    )


def refuse(words: str) -> gate.Gate:
    return lambda metrics, train: Reason(ReasonCode.WORSE, words)


def test_the_first_refusing_gate_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "GATES", (*gate.GATES, refuse("the last gate"), refuse("x")))
    assert reason_of(SOUND) == "the last gate"
    assert reason_of(SOUND | {"kl/step": 1.0}) != "the last gate"


def test_a_step_back_towards_the_base_passes() -> None:
    far = SOUND | {"kl": 0.4}
    assert reason_of(far | {"kl/before": 0.5}) is None
    assert "train.safety.gate_kl" in str(reason_of(far | {"kl/before": 0.4}))


@pytest.mark.parametrize(
    ("before", "after", "teacher", "passes"),
    [
        (0.4, 0.1, 0.3, False),
        (0.4, 0.2, 0.3, True),
        (0.4, 0.1, 0.15, True),  # the wish itself is for replies that are more certain
        (0.05, 0.1, 0.3, True),  # it comes back
        (0.02, 0.001, 0.02, True),  # certain replies: the share of nearly nothing
    ],
)
def test_a_step_of_practice_keeps_half_of_the_entropy_of_its_teacher(
    before: float, after: float, teacher: float, passes: bool
) -> None:
    entropy = {"entropy/before": before, "entropy/after": after, "entropy/teacher": teacher}
    reason = reason_of(SOUND | entropy)
    assert (reason is None) == passes
    assert (
        passes
        or "the entropy 0.1 nats per token is below train.safety.gate_entropy 0.5 of" in str(reason)
    )
    assert reason_of(SOUND | entropy, BOUNDS | {"safety.gate_entropy": 0.0}) is None


def test_a_step_that_left_its_trust_region_is_not_served(
    store: Store, builder: SampleBuilder, fill: Callable[..., list[str]], tmp_path: Path
) -> None:
    trainer = ScriptedTrainer(lambda samples: {"kl/step": 0.01, "step/scale": 2**-8})
    loop = TrainLoop(
        store, trainer, builder, train_settings({"batch.min_turns": 4}), tmp_path / "policies"
    )
    fill(store, 4)
    assert loop.run_once()
    loop.close()
    with store.read() as conn:
        head, candidate = policies.head(conn), policies.get(conn, 1)
    assert head.version == 0
    assert candidate is not None
    assert candidate.state is PolicyState.REJECTED
    assert "above train.safety.max_step_kl 0.003" in str(candidate.reason)
