"""What scripts import by name: an adapter on a model, and W&B for a loop of their own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import openclaw_rl
from openclaw_rl import log_training_metrics, setup_lora_model, setup_wandb_logging
from openclaw_rl.errors import ConfigError, OpenClawError

METRICS = {
    "total_loss": torch.tensor(0.5, requires_grad=True),
    "mean_reward": -1.0,
    "std_reward": 0.75,
    "grad_norm": torch.tensor(2.0),
    "lr": 0.0625,
}
LOGGED = {
    "loss/total": 0.5,
    "reward/mean": -1.0,
    "reward/std": 0.75,
    "gradient/norm": 2.0,
    "learning_rate": 0.0625,
}


def test_each_name_of_the_package_is_there() -> None:
    assert all(getattr(openclaw_rl, name) for name in openclaw_rl.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'setup_lora'"):
        _ = openclaw_rl.setup_lora


@pytest.fixture
def base(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny)


def test_an_adapter_as_the_trainer_has_it(
    base: Any, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = torch.tensor([[1, 2, 3]])
    before = base(ids).logits
    linear = sum(
        isinstance(m, torch.nn.Linear) for name, m in base.named_modules() if name != "lm_head"
    )
    model = setup_lora_model(base)
    assert torch.equal(model(ids).logits, before), "it starts as the identity"
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(names) == 2 * linear
    assert all("lora_" in name for name in names)
    assert "trainable params" in capsys.readouterr().out
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 32, 0.0)
    assert config.base_model_name_or_path == str(tiny)
    assert not model.training


def test_an_adapter_of_chosen_modules_learns(base: Any) -> None:
    model = setup_lora_model(
        base.train(), lora_rank=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]
    )
    assert model.training
    assert model.peft_config["default"].target_modules == {"q_proj", "v_proj"}
    ids = torch.tensor([[1, 2, 3, 4]])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(5):
        loss = model(ids, labels=ids).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]


def test_an_adapter_that_fits_nothing(base: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^setup_lora_model: target_modules \['c_attn'\] match no layers"
    ):
        setup_lora_model(base, target_modules=["c_attn"])
    with pytest.raises(ValueError, match="rank"):
        setup_lora_model(base, lora_rank=0)


class Wandb(SimpleNamespace):
    """A stand-in for the library, as far as it is used."""

    def __init__(self) -> None:
        super().__init__(run=None, asked={}, got=[])

    def init(self, **asked: Any) -> Any:
        self.asked = asked
        self.run = SimpleNamespace(
            log=lambda metrics, step, commit: self.got.append((metrics, step, commit))
        )
        return self.run


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    made = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", made)  # type: ignore[arg-type]
    return made


def test_a_run_and_its_metrics_by_their_names(wandb: Wandb) -> None:
    assert setup_wandb_logging("mine", {"method": "opd", "lr": 1}) is wandb.run
    assert wandb.asked == {
        "project": "mine",
        "config": {"method": "opd", "lr": 1},
        "name": "openclaw-rl-opd",
    }
    log_training_metrics(3, METRICS | {"opd_loss": 0.25, "mine/extra": 7})
    log_training_metrics(4, LOGGED)
    assert wandb.got == [
        (LOGGED | {"loss/opd": 0.25, "mine/extra": 7.0, "step": 3}, 3, True),
        (LOGGED | {"step": 4}, 4, True),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean_reward": None}, "mean_reward: expected a number, got None"),
        ({"lr": torch.zeros(2)}, "lr: expected a number, got tensor"),
        ({"learning_rate": 1.0}, "learning_rate is given twice, also as learning_rate"),
    ],
)
def test_invalid_metrics_are_refused(wandb: Wandb, change: dict[str, Any], words: str) -> None:
    setup_wandb_logging("mine", {"method": "opd"})
    with pytest.raises(ValueError, match=words):
        log_training_metrics(1, METRICS | change)
    assert wandb.got == []


def test_a_missing_run_and_missing_metrics_are_reported(
    wandb: Wandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OpenClawError, match="Call setup_wandb_logging"):
        log_training_metrics(1, METRICS)
    with pytest.raises(
        ValueError, match=r"missing mean_reward \(reward/mean\); got total_loss, std_reward"
    ):
        log_training_metrics(
            1, {name: value for name, value in METRICS.items() if name != "mean_reward"}
        )
    with pytest.raises(
        ValueError, match=r'a config with a "method", e\.g\. binary; got the keys rank'
    ):
        setup_wandb_logging("mine", {"rank": 1})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(OpenClawError, match="pip install wandb"):
        setup_wandb_logging("mine", {"method": "opd"})


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed: pip install wandb"
)
@pytest.mark.filterwarnings("default")  # its own, and those of what it brings
def test_the_real_wandb_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = setup_wandb_logging("mine", {"method": "combine", "rank": 4})
    assert (run.name, run.project, run.config["rank"]) == ("openclaw-rl-combine", "mine", 4)
    log_training_metrics(3, METRICS | {"binary_loss": float("nan")})
    run.finish()
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert all(name.encode() in kept.read_bytes() for name in (*LOGGED, "loss/binary", "step"))
