"""Checks before anything starts: faults that no restart of a worker can heal."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

from openclaw_rl.engines import registry
from openclaw_rl.engines.tinker.launch import check_tinker
from openclaw_rl.errors import ConfigError
from openclaw_rl.examination.probe_set import load_probes
from openclaw_rl.judge import local_model
from openclaw_rl.judge import preflight as judge_preflight
from openclaw_rl.plugins.source_check import check_plugin_files
from openclaw_rl.render.model_check import check_model_text, check_model_weights
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.gpu_devices import check_gpu_ids
from openclaw_rl.train import checkpoints, tracking
from openclaw_rl.trajectories import sync_worker

_TORCH_LIBRARIES = ("torch", "transformers", "safetensors", "psutil")


def check_before_start(config: Config, workers: Sequence[str]) -> None:
    """Raise `OpenClawError` if one of the workers could not run with these settings on this machine."""
    check_installation(config, workers)
    check_gpu_ids(config, workers)
    _check_models(config, workers)
    # See `check_service`.
    if "engine" in workers and config.engine.backend != "fireworks":
        registry.check_engine(config)
    if "judge" in workers:
        judge_preflight.check_judge_settings(config)
    if local_model.ENGINE_PROCESS in workers:
        registry.check_engine(local_model.engine_config(config))
    if "data" in workers:
        sync_worker.check_folders(config)
    if "train" in workers:
        _check_trainer(config)
    if "train" in workers and config.train.launch.node_rank == 0:
        checkpoints.check_save_dir(config.train)


def check_service(config: Config, workers: Sequence[str]) -> None:
    """Raise `EngineError` if a service cannot be the engine. Runs after the owner agreed that it is asked."""
    if "engine" in workers and config.engine.backend == "fireworks":
        registry.check_engine(config)


def _check_trainer(config: Config) -> None:
    """Raise `OpenClawError` if the trainer's versions could not be served, or if Tinker cannot be used."""
    if config.train.trainer == "tinker":
        check_tinker(config)
    elif config.engine.backend == "tinker":
        raise ConfigError(
            f"engine.backend is tinker and train.trainer {config.train.trainer}: Tinker serves only what it trained, "
            "because it loads no adapter from outside. Set train.trainer to tinker, or start `openclaw-rl serve`, "
            "which does not train"
        )


def _check_models(config: Config, workers: Sequence[str]) -> None:
    """Raise `ModelError` for a model folder that a worker could not use."""
    engine = config.engine
    files = ModelFiles.from_config(config.model)
    if {"gateway", "train", "data"} & set(workers):
        check_model_text(files)
    trains_here = "train" in workers and config.train.trainer != "tinker"
    loaded_here = trains_here or ("engine" in workers and engine.backend == "embedded")
    if loaded_here or (
        "engine" in workers
        and engine.url is None
        and engine.backend not in ("openai", "tinker", "fireworks")
    ):
        check_model_weights(files, loaded_here=loaded_here)
    if local_model.ENGINE_PROCESS in workers:
        judge = local_model.model_files(config)
        check_model_text(judge)
        check_model_weights(judge, loaded_here=engine.backend == "embedded")


def check_installation(config: Config, workers: Sequence[str]) -> None:
    """Raise `ConfigError` for a library that is not installed, `PluginError` for a plug-in that cannot work."""
    for purpose, libraries, package in _needed_libraries(config, workers):
        missing = [name for name in libraries if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"{purpose} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed "
                f"here. Install it with: pip install '{package}'"
            )
    if "train" in workers and config.train.launch.node_rank == 0:
        tracking.check_installed(config.track)
        load_probes(config.gate.probes)
    check_plugin_files(config)


def _needed_libraries(
    config: Config, workers: Sequence[str]
) -> Iterator[tuple[str, Sequence[str], str]]:
    """Yield (what needs them, libraries, pip requirement)."""
    train = config.train
    local = "openclaw-rl[local]"
    if {"engine", local_model.ENGINE_PROCESS} & set(
        workers
    ) and config.engine.backend == "embedded":
        yield "engine.backend embedded", (*_TORCH_LIBRARIES, "peft", "llguidance"), local
    if "judge" in workers and config.judge.kind == "classifier":
        yield "judge.kind classifier", _TORCH_LIBRARIES, local
    if "train" in workers:
        yield "the trainer", (*_TORCH_LIBRARIES, "peft"), local
        if train.base_quantization_bits == 4:
            yield "train.base_quantization_bits 4", ("bitsandbytes",), "openclaw-rl[qlora]"
        if train.launch.by == "ray":
            yield "train.launch.by ray", ("ray",), "openclaw-rl[ray]"
