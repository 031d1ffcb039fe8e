"""Another program as the trainer: it connects to the home and gets the batches."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.types import CreditMethod
from openclaw_rl.protocols import Trainer
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import TrainerSpec, torch_libraries
from openclaw_rl.settings.trainer_keys import ADAPTER_KEYS


def _create(config: Config, _method: CreditMethod, base: Path) -> Trainer:
    from openclaw_rl.other_trainers.external_trainer import ExternalTrainer

    return ExternalTrainer(config, str(base))


def _check_settings(config: Config) -> None:
    if config.gate.kind == "probes":
        raise ConfigError(
            "train.trainer is external: gate.kind probes compares log-probabilities, which another program does not "
            "give. Set gate.kind to numbers, which bounds the metrics that it reports, or off"
        )
    if config.train.ranks * config.train.launch.nodes > 1:
        raise ConfigError(
            "train.trainer is external: ranks are the other program's business. Leave out train.ranks"
        )


SPEC = TrainerSpec(
    name="external",
    summary="a program that connects to the home and gets the batches, such as TRL or slime "
    "(docs/guides/other_trainers.md)",
    experimental=True,
    create=_create,
    check_settings=_check_settings,
    libraries=torch_libraries,
    settings=("train.answer_within", *ADAPTER_KEYS),
    loads_server=True,
)
