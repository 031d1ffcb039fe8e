"""The trainer that computes in this package, in one process or in several ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from openclaw_rl.methods.types import CreditMethod
from openclaw_rl.protocols import Trainer
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import TORCH_LIBRARIES, RequiredLibraries, TrainerSpec
from openclaw_rl.settings.trainer_keys import ADAPTER_KEYS, FORMULA_KEYS, LOCAL_KEYS


def _create(config: Config, method: CreditMethod, base: Path) -> Trainer:
    if config.train.ranks * config.train.launch.nodes > 1:
        from openclaw_rl.train.ranks import launcher

        return launcher.launch_trainer(config)
    from openclaw_rl.learner.trainer import LocalTrainer

    return LocalTrainer(str(base), method, config.train, config.model)


def _libraries(config: Config) -> Iterable[RequiredLibraries]:
    yield TORCH_LIBRARIES
    if config.train.base_quantization_bits == 4:
        yield RequiredLibraries(
            purpose="train.base_quantization_bits 4",
            modules=("bitsandbytes",),
            package="openclaw-rl[qlora]",
        )
    if config.train.launch.by == "ray":
        yield RequiredLibraries(
            purpose="train.launch.by ray", modules=("ray",), package="openclaw-rl[ray]"
        )


SPEC = TrainerSpec(
    name="local",
    summary="built in, on this machine or in several ranks",
    create=_create,
    libraries=_libraries,
    settings=(*LOCAL_KEYS, *FORMULA_KEYS, *ADAPTER_KEYS),
    required_metrics=("loss/total", "kl", "kl/step", "gradient/norm"),
)
