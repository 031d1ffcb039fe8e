"""Start of an SGLang server: its flags, its environment, and its port with a private API key."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.common.sockets import free_port
from openclaw_rl.engines.remote import server_process
from openclaw_rl.engines.remote.http_client import SGLANG_HEALTH, HttpClient
from openclaw_rl.engines.remote.loaded_versions import owner_of
from openclaw_rl.engines.remote.sglang import FALLBACK_ADVICE, SglangEngine, check_version
from openclaw_rl.engines.remote.sglang_router import SglangRouterEngine
from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import OnConnect
from openclaw_rl.settings.load import Config, foreign_environment

_FIND_VERSION = "import importlib.metadata as m; print(m.version('sglang'))"
_HOST = "127.0.0.1"
# Earlier versions lost tokens when two events met in the queue.
_INCREMENTAL_MIN_VERSION = (0, 5, 14)


def connect_engine(config: Config, *, on_connect: OnConnect | None = None) -> SglangEngine:
    """Return a client for the server at `engine.url`, or for the one that the engine process starts."""
    engine = config.engine
    base = server_process.model_location(config.model.path)
    owner = owner_of(config.home_dir)
    if engine.url is not None:
        http = HttpClient(engine.url, SGLANG_HEALTH, api_key=engine.api_key)
        if engine.weights == "trainer":
            home = config.home_dir
            return SglangRouterEngine(
                http, engine, base, owner=owner, on_connect=on_connect, home=home
            )
        return SglangEngine(http, engine, base, owner=owner, on_connect=on_connect)
    place = _read_address(config)
    http = HttpClient(_base_url(place), SGLANG_HEALTH, api_key=str(place["api-key"]))

    def locate() -> str:
        return _base_url(_read_address(config))

    return SglangEngine(http, engine, base, locate=locate, owner=owner, on_connect=on_connect)


def check_sglang(config: Config) -> str:
    """Return the installed version. Raises `EngineError` if it cannot be started with these settings."""
    python = config.engine.python or sys.executable
    completed = server_process.run_python(python, _FIND_VERSION)
    if completed.returncode != 0:
        raise EngineError(
            f"sglang is not installed for {python}. Install it there (`pip install sglang`; it needs a GPU), or give "
            "the interpreter of an environment that has it: --engine-python PATH. To use a running SGLang server: "
            "--engine-url URL. Or fall back to vLLM: --backend vllm"
        )
    version = completed.stdout.decode(errors="replace").strip()
    check_version(version, f"the sglang of {python}")
    if config.engine.effective_convention == "processed":
        raise EngineError(
            f"engine.logprob_convention is processed; SGLang supports scaled or raw. {FALLBACK_ADVICE}"
        )
    return version


def main(config: Config) -> None:
    """Run an SGLang server on a free port until a signal. Raises `EngineError`."""
    version = check_sglang(config)
    place = _read_address(config)
    if _is_port_taken(int(place["port"])):
        place = _write_address(config, str(place["api-key"]), again=True)
    http = HttpClient(_base_url(place), SGLANG_HEALTH, api_key=str(place["api-key"]))
    server_process.run_server(
        config, "sglang", server_command(config, version), server_environment(config), http
    )


def server_command(config: Config, version: str) -> list[str]:
    """Return the command line. Address and key are in a file, because other users can read command lines."""
    engine = config.engine
    model = server_process.model_location(config.model.path)
    flags: dict[str, str] = {
        "config": str(_address_file(config)),
        "model-path": model,
        "tokenizer-path": server_process.model_location(
            config.model.tokenizer or config.model.path
        ),
        "served-model-name": config.model.name,
        "dtype": server_process.dtype_flag(config.model.dtype, model),
        "grammar-backend": "llguidance",
        "max-running-requests": str(engine.max_batch),
        # The base counts as one.
        "max-loras-per-batch": str(engine.max_loaded_versions + 1),
        "max-lora-rank": str(config.train.lora.rank),
        "lora-target-modules": "all",
        "log-level-http": "warning",
    }
    if engine.max_context is not None:
        flags["context-length"] = str(engine.max_context)
    gpu = re.fullmatch(r"cuda:(\d+)", config.model.device)
    if gpu is not None:
        flags["base-gpu-id"] = gpu[1]
    switches = ["enable-lora"]
    if server_process.version_numbers(version) >= _INCREMENTAL_MIN_VERSION:
        # Else every event repeats the whole reply.
        switches.append("incremental-streaming-output")
    return server_process.command_line(engine, "sglang.launch_server", flags, switches)


def server_environment(config: Config) -> dict[str, str]:
    """Return our environment without API keys, with the variable that sets SGLang's logprob convention."""
    raw = "1" if config.engine.effective_convention == "raw" else "0"
    return foreign_environment(
        {"SGLANG_RETURN_ORIGINAL_LOGPROB": raw, "OMP_WAIT_POLICY": "passive"},
        loads_models=True,
    )


def _address_file(config: Config) -> Path:
    return config.home_dir / "sglang.yaml"


def _read_address(config: Config) -> dict[str, Any]:
    """Return host, port and key of this home's server, in SGLang's `--config` format; create them if missing."""
    try:
        address = yaml.safe_load(_address_file(config).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _write_address(config, secrets.token_urlsafe(32))
    except (OSError, yaml.YAMLError) as error:
        raise EngineError(
            f"{_address_file(config)} cannot be read ({error}). Remove it; it is then created again"
        ) from None
    if not isinstance(address, dict) or {"host", "port", "api-key"} - set(address):
        raise EngineError(
            f"{_address_file(config)} does not have host, port and api-key. Remove it; it is then created again"
        )
    return address


def _write_address(config: Config, key: str, *, again: bool = False) -> dict[str, Any]:
    file = _address_file(config)
    place = {"host": _HOST, "port": free_port(), "api-key": key}
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(place), encoding="utf-8")
    if again:
        temporary.replace(file)
        return place
    try:
        # Unlike a rename, it fails if the file exists.
        file.hardlink_to(temporary)
    except FileExistsError:
        # Another process was first.
        return _read_address(config)
    finally:
        temporary.unlink()
    return place


def _base_url(place: dict[str, Any]) -> str:
    return f"http://{place['host']}:{place['port']}"


def _is_port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return True
        return False
