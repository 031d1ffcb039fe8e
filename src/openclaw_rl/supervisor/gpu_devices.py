"""Check of the GPU ids in the settings against the GPUs of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge import local_model
from openclaw_rl.settings.load import Config, foreign_environment

# Seconds; on a busy machine the import of torch takes a minute.
_TIMEOUT = 300.0
_COUNT_WITH_TORCH = "import torch; print(torch.cuda.device_count())"
_HIDING_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def _too_few_error(per_node: int, count: int) -> ConfigError:
    has = f"{count} GPUs" if count else "no GPU"
    return ConfigError(
        f"train.launch.gpus_per_node (GPUS_PER_NODE) is {per_node}, and this machine has {has}. Set it to the "
        "number of its GPUs, or leave it out: then one process trains, on a GPU or on the CPU"
    )


def check_gpu_ids(config: Config, workers: Sequence[str]) -> None:
    """Raise `ConfigError` if a worker is given a GPU that this machine does not have."""
    # The GPUs are counted only if some are named.
    given_ids = {names: ids for names, ids in _gpu_ids_of_workers(config, workers) if ids}
    per_node = config.train.launch.gpus_per_node if _trains_on_own_gpus(config, workers) else None
    count = count_gpus() if given_ids or per_node else None
    if count is None:
        return
    if per_node is not None and per_node > count:
        raise _too_few_error(per_node, count)
    for names, ids in given_ids.items():
        _check_ids(names, ids, count)


def _trains_on_own_gpus(config: Config, workers: Sequence[str]) -> bool:
    """Return whether the trainer uses GPUs of this machine. Ray chooses those of its machines."""
    return "train" in workers and config.train.launch.launcher != "ray"


def _check_ids(names: str, ids: Sequence[str], count: int) -> None:
    """Raise `ConfigError` for ids of a setting that a machine with `count` GPUs does not have."""
    missing = [one for one in ids if int(one) >= count]
    if missing:
        raise ConfigError(f"{names} is {','.join(ids)}, {_describe_missing(missing, count)}")


def _describe_missing(missing: Sequence[str], count: int) -> str:
    """Return the rest of a message about GPU ids that a machine with `count` GPUs does not have."""
    if count == 0:
        return "and this machine has no GPU. Leave it out: then the CPU is used"
    return (
        f"and this machine has {count} GPUs, numbered from 0: there is no {', '.join(missing)}. "
        "Name others, or leave it out: then all are used"
    )


def _gpu_ids_of_workers(
    config: Config, workers: Sequence[str]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield (names of the setting, its ids) of each worker that uses GPUs of this machine."""
    if "engine" in workers and config.engine.url is None:
        yield "engine.gpus (ROLLOUT_GPUS, --gpu-ids)", config.engine.gpus
    if local_model.ENGINE_PROCESS in workers:
        yield "judge.gpus", config.judge.gpus
    if _trains_on_own_gpus(config, workers):
        yield "train.gpus (TRAIN_GPUS, --gpus)", config.train.gpus


def count_gpus() -> int | None:
    """Return the number of GPUs of this machine, or None if it cannot be determined.

    nvidia-smi comes first, because the trainer's torch may be a CPU build while the engine has one of its own.
    """
    if shutil.which("nvidia-smi"):
        lines = _run_program("nvidia-smi", "-L").splitlines()
        return sum(line.startswith("GPU ") for line in lines)
    counted = _run_program(sys.executable, "-c", _COUNT_WITH_TORCH)
    return int(counted) if counted else None


def _run_program(*command: str) -> str:
    """Return the output of a program, empty if it fails; variables that hide GPUs are removed."""
    environ = {
        name: value
        for name, value in foreign_environment({}).items()
        if name not in _HIDING_VARIABLES
    }
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""
