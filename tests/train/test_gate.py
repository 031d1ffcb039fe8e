from __future__ import annotations

import math

import pytest

from openclaw_rl.train.gate import refusal

SOUND = {"loss/total": 0.1, "gradient/norm": 2.0, "kl": 0.3, "gap": 0.01}


def test_a_sound_step_passes() -> None:
    assert refusal(SOUND, grad_norm=2.0, kl=0.3) is None


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_metric_must_be_finite(name: str, value: float) -> None:
    assert refusal(SOUND | {name: value}, grad_norm=9.0, kl=9.0) == f"{name} is {value}, expected a finite number"


def test_a_step_that_does_not_say_how_it_went_is_refused() -> None:
    assert "kl is None" in str(refusal({k: v for k, v in SOUND.items() if k != "kl"}, grad_norm=9.0, kl=9.0))


def test_bounds_name_their_settings() -> None:
    assert "gradient norm 2 is above train.gate_grad_norm 1.9" in str(refusal(SOUND, grad_norm=1.9, kl=9.0))
    assert "KL to the base 0.3 nats per token is above train.gate_kl 0.2" in str(refusal(SOUND, grad_norm=9.0, kl=0.2))
