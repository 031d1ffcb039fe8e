"""SGLang as a program that is started for us: its command line, its private address, and start, requests and end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from openclaw_rl.engines import registry
from openclaw_rl.engines.remote import sglang_launch
from openclaw_rl.engines.remote.sglang import SglangEngine
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config, to_environment
from openclaw_rl.types import Generation, PolicyRef, Sampling

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[3]
LAUNCH = """
import sys, time, yaml
from pathlib import Path
from tests.engines.sglang_server import SglangWire
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
place = yaml.safe_load(Path(flags["--config"]).read_text())
with SglangWire(Path(flags["--model-path"]), key=place["api-key"], port=place["port"], mode="incremental"):
    print("ready", flush=True)
    time.sleep(600)
"""


def interpreter(folder: Path, version: str | None) -> Path:
    """An interpreter in whose environment there is an `sglang` of this version: the wire's double."""
    site = folder / "site"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    (site / "sglang" / "launch_server.py").write_text(LAUNCH)
    if version is not None:
        metadata = site / f"sglang-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        )
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={site}:{ROOT}:{ROOT}/src exec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def settings(engine_config: Callable[..., Config], tmp_path: Path) -> Callable[..., Config]:
    def make(version: str | None = "0.5.23", **engine: object) -> Config:
        python = interpreter(tmp_path / "env", version)
        return engine_config(tmp_path / "home", backend="sglang", python=str(python), **engine)

    return make


def test_the_command_says_what_the_settings_say(settings: Callable[..., Config]) -> None:
    config = settings(max_batch=7, max_loaded_versions=3, max_context=256, args=("--tp", "2"))
    words = sglang_launch.server_command(config, "0.5.23")
    assert words[1:3] == ["-m", "sglang.launch_server"]
    assert words[-2:] == ["--tp", "2"]
    flags = dict(zip(words[3:-4:2], words[4:-4:2], strict=True))
    assert flags["--model-path"] == config.model.path
    assert (flags["--max-running-requests"], flags["--max-loras-per-batch"]) == ("7", "4")
    assert (flags["--context-length"], flags["--dtype"], flags["--grammar-backend"]) == (
        "256",
        "float32",
        "llguidance",
    )
    assert (flags["--max-lora-rank"], flags["--lora-target-modules"]) == ("16", "all")
    assert words[-4:-2] == ["--enable-lora", "--incremental-streaming-output"]
    assert "--incremental-streaming-output" not in sglang_launch.server_command(
        config, "0.5.13.post1"
    )
    assert not any("key" in word for word in words), "command lines can be read by others"


def test_the_address_is_private_made_once_and_kept(settings: Callable[..., Config]) -> None:
    config = settings()
    engine = sglang_launch.connect_engine(config)
    file = config.home_dir / "sglang.yaml"
    place = yaml.safe_load(file.read_text())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (place["host"], len(place["api-key"]) > 30) == ("127.0.0.1", True)
    assert engine.http.address == f"http://127.0.0.1:{place['port']}"
    sglang_launch.connect_engine(config)
    assert yaml.safe_load(file.read_text()) == place
    assert list(config.home_dir.iterdir()) == [file]
    file.write_text("[]")
    with pytest.raises(EngineError, match=r"sglang\.yaml does not have host, port and api-key"):
        sglang_launch.connect_engine(config)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            None,
            r"sglang is not installed for .*pip install sglang.*--engine-url URL.*--backend vllm",
        ),
        ("0.5.8", r"the sglang of .* is 0\.5\.8; expected 0\.5\.9 or newer.*--backend vllm"),
    ],
)
def test_an_engine_that_cannot_start_is_reported_before_anything_starts(
    settings: Callable[..., Config], version: str | None, words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        registry.check_engine(settings(version))


def test_a_missing_interpreter_is_named(
    engine_config: Callable[..., Config], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"engine\.python 'nowhere' cannot be run"):
        registry.check_engine(engine_config(tmp_path, backend="sglang", python="nowhere"))


@pytest.fixture
def start_engine() -> Iterator[Callable[[Config], subprocess.Popen[bytes]]]:
    with contextlib.ExitStack() as stack:

        def start(config: Config) -> subprocess.Popen[bytes]:
            code = (
                "from openclaw_rl.settings.load import inherited_config; from openclaw_rl.engines import registry; "
                "registry.serve(inherited_config())"
            )
            made = subprocess.Popen(
                [sys.executable, "-c", code], env=to_environment(config), stdin=subprocess.DEVNULL
            )
            stack.callback(made.wait, 20)
            stack.callback(made.terminate)
            return made

        yield start


def test_the_engine_starts_sglang_serves_and_ends_with_it(
    settings: Callable[..., Config],
    start_engine: Callable[[Config], subprocess.Popen[bytes]],
    refs: dict[int, PolicyRef],
    reference: Callable[..., np.ndarray],
) -> None:
    config = settings()
    prompt = np.arange(1, 9, dtype=np.int32)

    async def body() -> None:
        engine = registry.connect_engine(config)  # as the gateway does: before there is a server
        assert isinstance(engine, SglangEngine)
        process = start_engine(config)
        try:
            await engine.wait_ready(180)
            await engine.load([refs[1]])
            sampling = Sampling(max_tokens=8)
            call = Generation(
                id="g", version=1, prompt_ids=prompt, sampling=sampling, stop_token_ids=()
            )
            chunks = [chunk async for chunk in engine.generate(call)]
            ids = [i for c in chunks for i in c.token_ids]
            logprobs = [lp for c in chunks for lp in c.logprobs]
            np.testing.assert_allclose(logprobs, reference(1, prompt, ids, 1.0), atol=1e-4)
        finally:
            await engine.close()
        process.terminate()
        assert await asyncio.to_thread(process.wait, 20) == 0

    asyncio.run(asyncio.wait_for(body(), 300))
    assert "ready" in (config.logs_dir / "sglang.log").read_text()
    port = yaml.safe_load((config.home_dir / "sglang.yaml").read_text())["port"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
