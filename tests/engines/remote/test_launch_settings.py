"""Each setting of a server that is started here changes its command or its environment; how a running one is found."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw_rl.engines import registry
from openclaw_rl.engines.remote import sglang_launch, vllm_launch
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import Config, from_flat

CHANGES: dict[str, Any] = {
    "model.path": "some/model",
    "model.name": "mine",
    "model.dtype": "float16",
    "model.device": "cuda:3",
    "engine.python": "/env/bin/python",
    "engine.args": ["--tensor-parallel-size", "2"],
    "engine.logprob_convention": "raw",
    "engine.max_loaded_versions": 2,
    "engine.max_batch": 7,
    "engine.max_context": 256,
    "train.lora.rank": 24,
}


def launched(backend: str, given: dict[str, Any], home: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a server, and its environment."""
    config = from_flat(
        {"home": str(home), "engine.backend": backend, "model.dtype": "float32"} | given
    )
    launch = vllm_launch if backend == "vllm" else sglang_launch
    command = (
        launch.server_command(config)
        if backend == "vllm"
        else launch.server_command(config, "0.5.23")
    )
    return command, launch.server_environment(config)


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_changes_the_server(key: str, backend: str, tmp_path: Path) -> None:
    plain = launched(backend, {}, tmp_path)
    assert launched(backend, {key: CHANGES[key]}, tmp_path) != plain
    assert launched(backend, {"train.seed": 8, "engine.threads": 2}, tmp_path) == plain, (
        "and nothing else does"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine.backend": "vllm", "engine.api_key": "right"}, "max_model_len"),
        ({"engine.backend": "vllm"}, r"OPENCLAW_ENGINE_API_KEY"),
        ({"engine.backend": "vllm", "engine.url": "http://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"engine.backend": "sglang", "engine.api_key": "right"}, "sglang|SGLang"),
        ({"engine.backend": "embedded", "engine.url": None}, r"engine\.sock"),
    ],
)
def test_backend_address_and_key_decide_what_is_asked(
    given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """The endpoint wants a key, and then answers as neither program does."""

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer right":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": "gpt"}]})

    async def ask(config: Config) -> None:
        engine = registry.connect_engine(config)
        try:
            await engine.info()
        finally:
            await engine.close()

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            with pytest.raises(EngineError, match=words):
                await ask(from_flat({"home": str(tmp_path), "engine.url": url} | given))
        finally:
            await runner.cleanup()

    asyncio.run(main())
