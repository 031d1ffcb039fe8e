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

from openclaw_rl.engines.base import OnConnect
from openclaw_rl.engines.remote import server_process
from openclaw_rl.engines.remote.loaded_versions import owner_of
from openclaw_rl.engines.remote.sglang import FALL_BACK, Server, SglangEngine, check_version, numbers
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config, foreign_environment

_FIND = "import importlib.metadata as m; print(m.version('sglang'))"
_HOST = "127.0.0.1"
_INCREMENTAL = (0, 5, 14)  # earlier versions lost tokens when two events met in the queue


def connect(config: Config, *, on_connect: OnConnect | None = None) -> SglangEngine:
    """Return a client for the server at `engine.url`, or for the one that the engine process starts."""
    engine, base = config.engine, server_process.location(config.model.path)
    owner = owner_of(config.home_dir)
    if engine.url is not None:
        return SglangEngine(
            Server(engine.url, api_key=engine.api_key),
            engine,
            base,
            owner=owner,
            on_connect=on_connect,
        )
    place = _place(config)
    server = Server(_url(place), api_key=str(place["api-key"]), locate=lambda: _url(_place(config)))
    return SglangEngine(server, engine, base, owner=owner, on_connect=on_connect)


def check(config: Config) -> str:
    """Return the installed version. Raises `EngineError` if it cannot be started with these settings."""
    python = config.engine.python or sys.executable
    found = server_process.asked(python, _FIND)
    if found.returncode != 0:
        raise EngineError(
            f"sglang is not installed for {python}. Install it there (`pip install sglang`; it needs a GPU), or give "
            "the interpreter of an environment that has it: --engine-python PATH. To use a running SGLang server: "
            "--engine-url URL. Or fall back to vLLM: --backend vllm"
        )
    version = found.stdout.decode(errors="replace").strip()
    check_version(version, f"the sglang of {python}")
    if config.engine.convention == "processed":
        raise EngineError(f"engine.logprobs is processed; SGLang supports scaled or raw. {FALL_BACK}")
    return version


def main(config: Config) -> None:
    """Run an SGLang server on a free port until a signal. Raises `EngineError`."""
    version = check(config)
    place = _place(config)
    if _taken(int(place["port"])):
        place = _write(config, str(place["api-key"]), again=True)
    server_process.keep(
        config,
        server_process.Program(
            name="sglang",
            command=command(config, version),
            environment=environment(config),
            http=Server(_url(place), api_key=str(place["api-key"])),
        ),
    )


def command(config: Config, version: str) -> list[str]:
    """Return the command line. Address and key are in a file, because other users can read command lines."""
    engine, model = config.engine, server_process.location(config.model.path)
    flags: dict[str, str] = {
        "config": str(_file(config)),
        "model-path": model,
        "tokenizer-path": server_process.location(config.model.tokenizer or config.model.path),
        "served-model-name": config.model.name,
        "dtype": server_process.dtype(config.model.dtype, model),
        "grammar-backend": "llguidance",
        "max-running-requests": str(engine.max_batch),
        "max-loras-per-batch": str(engine.versions + 1),  # the base counts as one
        "max-lora-rank": str(config.train.lora.rank),
        "lora-target-modules": "all",
        "log-level-http": "warning",
    }
    if engine.max_context is not None:
        flags["context-length"] = str(engine.max_context)
    if (found := re.fullmatch(r"cuda:(\d+)", config.model.device)) is not None:
        flags["base-gpu-id"] = found[1]
    switches = ["enable-lora"]
    if numbers(version) >= _INCREMENTAL:
        switches.append("incremental-streaming-output")  # else every event repeats the whole reply
    return [
        *(engine.python or sys.executable, "-m", "sglang.launch_server"),
        *(word for name, value in flags.items() for word in (f"--{name}", value)),
        *(f"--{name}" for name in switches),
        *engine.args,  # last, so that they override ours
    ]


def environment(config: Config) -> dict[str, str]:
    """Return our environment without API keys, with the variable that sets SGLang's logprob convention."""
    raw = "1" if config.engine.convention == "raw" else "0"
    return foreign_environment({"SGLANG_RETURN_ORIGINAL_LOGPROB": raw, "OMP_WAIT_POLICY": "passive"})


def _file(config: Config) -> Path:
    return config.home_dir / "sglang.yaml"


def _place(config: Config) -> dict[str, Any]:
    """Return host, port and key of this home's server, in SGLang's `--config` format; create them if missing."""
    try:
        found = yaml.safe_load(_file(config).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _write(config, secrets.token_urlsafe(32))
    except (OSError, yaml.YAMLError) as error:
        raise EngineError(f"{_file(config)} cannot be read ({error}). Remove it; it is then created again") from None
    if not isinstance(found, dict) or {"host", "port", "api-key"} - set(found):
        raise EngineError(f"{_file(config)} does not have host, port and api-key. Remove it; it is then created again")
    return found


def _write(config: Config, key: str, *, again: bool = False) -> dict[str, Any]:
    file = _file(config)
    place = {"host": _HOST, "port": _free_port(), "api-key": key}
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = file.with_name(f"{file.name}.{os.getpid()}")
    own.touch(mode=0o600)
    own.write_text(yaml.safe_dump(place), encoding="utf-8")
    if again:
        own.replace(file)
        return place
    try:
        file.hardlink_to(own)  # unlike a rename, it fails if the file exists
    except FileExistsError:  # another process was first
        return _place(config)
    finally:
        own.unlink()
    return place


def _url(place: dict[str, Any]) -> str:
    return f"http://{place['host']}:{place['port']}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return True
        return False
