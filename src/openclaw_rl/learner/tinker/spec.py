"""The Tinker service as a trainer."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import CreditMethod
from openclaw_rl.protocols import Trainer
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import TrainerSpec, torch_libraries
from openclaw_rl.settings.trainer_keys import FORMULA_KEYS
from openclaw_rl.tinker.consent import SERVICE_KEYS, tinker_consent


def _create(config: Config, method: CreditMethod, base: Path) -> Trainer:
    from openclaw_rl.learner.tinker.trainer import TinkerTrainer

    return TinkerTrainer(config, method, base=base)


def _check_start(config: Config) -> None:
    from openclaw_rl.tinker.start_check import check_tinker

    check_tinker(config)


def _check_settings(config: Config) -> None:
    """Raise `ConfigError` for what training at Tinker cannot do."""
    train = config.train
    for is_wrong, message in (
        (
            config.engine.backend == "fireworks",
            "engine.backend is fireworks, which only serves. Set engine.backend to tinker or to an engine of your own",
        ),
        (
            make_method(train).topk_size > 0,
            f"train.method {train.method}, train.distill.target {train.distill.target} and hint_choice "
            f"{train.distill.hint_choice or 'mixture'} need top log-probabilities, which it does not return. Set "
            "train.method to binary, opd or combine, with train.distill.target token",
        ),
        (
            config.gate.kind == "probes",
            "gate.kind probes scores versions again and again. Set gate.kind to numbers",
        ),
        (train.finetune == "full", "it trains adapters. Set train.finetune to lora"),
        (train.batch.epochs > 1, "it takes one step a batch. Set train.batch.epochs to 1"),
        (
            train.distill.teacher == "ema",
            "the teacher is its base. Set train.distill.teacher to base",
        ),
        (
            train.distill.teacher_temperature != 1,
            "it scores at temperature 1. Leave train.distill.teacher_temperature",
        ),
        (
            train.loss.path is not None,
            "a loss of your own runs in the local trainer. Leave out train.loss.path",
        ),
        (
            train.ranks * train.launch.nodes > 1,
            "it has no ranks here. Leave out train.ranks and train.launch.nodes",
        ),
        (
            train.checkpoint.save_dir is not None or train.checkpoint.resume is not None,
            "checkpoints are at the service. Leave out train.checkpoint.save_dir and train.checkpoint.resume",
        ),
    ):
        if is_wrong:
            raise ConfigError(f"train.trainer is tinker: {message}")


SPEC = TrainerSpec(
    name="tinker",
    summary="the Tinker service (docs/guides/tinker.md)",
    create=_create,
    check_start=_check_start,
    check_settings=_check_settings,
    libraries=torch_libraries,
    consent=tinker_consent("train"),
    section="tinker",
    settings=(*SERVICE_KEYS, "tinker.reduction", "tinker.budget_tokens", *FORMULA_KEYS),
    repair="docs/guides/tinker.md what it needs",
    # Not every server returns the norm of the gradient.
    required_metrics=("loss/total", "kl", "kl/step"),
    is_service=True,
    needs_weights=False,
    scores_top_tokens=False,
    trains_under_lessons=False,
)
