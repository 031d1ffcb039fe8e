"""Checks before anything starts: faults that no restart of a worker can heal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from openclaw_rl.engines import registry
from openclaw_rl.errors import ConfigError
from openclaw_rl.examination.probe_set import load_probes
from openclaw_rl.judge import local_model
from openclaw_rl.judge import preflight as judge_preflight
from openclaw_rl.plugins.source_check import check_plugin_files
from openclaw_rl.render.model_check import check_model_text, check_model_weights
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec, judge_spec, trainer_spec
from openclaw_rl.settings.specs import RequiredLibraries, missing_modules
from openclaw_rl.supervisor.gpu_devices import check_gpu_ids
from openclaw_rl.train import checkpoints, tracking
from openclaw_rl.trajectories import sync_worker


def check_before_start(config: Config, workers: Sequence[str]) -> None:
    """Raise `OpenClawError` if one of the workers could not run with these settings on this machine."""
    check_installation(config, workers)
    check_gpu_ids(config, workers)
    _check_models(config, workers)
    for worker, check in _WORKER_CHECKS.items():
        if worker in workers:
            check(config)


def _check_engine(config: Config) -> None:
    # See `check_service`.
    if engine_spec(config).starts_before_consent:
        registry.check_engine(config)


def _check_judge(config: Config) -> None:
    judge_preflight.check_judge_settings(config)
    judge_spec(config).check_start(config)


def _check_judge_engine(config: Config) -> None:
    registry.check_engine(local_model.engine_config(config))


def _check_trainer(config: Config) -> None:
    trainer_spec(config).check_start(config)
    engine_spec(config).check_beside_trainer(config)
    if config.train.launch.node_rank == 0:
        checkpoints.check_save_dir(config.train)


_WORKER_CHECKS: Mapping[str, Callable[[Config], None]] = {
    "engine": _check_engine,
    "judge": _check_judge,
    local_model.ENGINE_PROCESS: _check_judge_engine,
    "data": sync_worker.check_folders,
    "train": _check_trainer,
}
"""Worker -> check of what it needs beside libraries, GPUs and models, in the order of the checks."""


def check_service(config: Config, workers: Sequence[str]) -> None:
    """Raise `EngineError` if a service cannot be the engine. Runs after the owner agreed that it is asked."""
    if "engine" in workers and not engine_spec(config).starts_before_consent:
        registry.check_engine(config)


def _check_models(config: Config, workers: Sequence[str]) -> None:
    """Raise `ModelError` for a model folder that a worker could not use."""
    engine = engine_spec(config)
    files = ModelFiles.from_config(config.model)
    if not {"gateway", "train", "data"}.isdisjoint(workers):
        check_model_text(files)
    loaded_here = False
    runs_here = False
    if "engine" in workers:
        loaded_here = engine.in_process
        runs_here = engine.runs_here and config.engine.url is None
    if "train" in workers:
        loaded_here |= trainer_spec(config).needs_weights
    if loaded_here or runs_here:
        check_model_weights(files, loaded_here=loaded_here)
    if local_model.ENGINE_PROCESS in workers:
        judge = local_model.model_files(config)
        check_model_text(judge)
        check_model_weights(judge, loaded_here=engine.in_process)


def check_installation(config: Config, workers: Sequence[str]) -> None:
    """Raise `ConfigError` for a library that is not installed, `PluginError` for a plug-in that cannot work."""
    for needed in _needed_libraries(config, workers):
        missing = missing_modules(needed)
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise ConfigError(
                f"{needed.purpose} needs {', '.join(missing)}, which {verb} not installed here. "
                f"Install it with: pip install '{needed.package}'"
            )
    if "train" in workers and config.train.launch.node_rank == 0:
        tracking.check_installed(config.track)
        load_probes(config.gate.probes)
    check_plugin_files(config)


def _needed_libraries(config: Config, workers: Sequence[str]) -> Iterator[RequiredLibraries]:
    if {"engine", local_model.ENGINE_PROCESS} & set(workers):
        yield from engine_spec(config).libraries(config)
    if "judge" in workers:
        yield from judge_spec(config).libraries(config)
    if "train" in workers:
        yield from trainer_spec(config).libraries(config)
