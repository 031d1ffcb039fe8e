"""An OpenAI-compatible endpoint as the policy's engine: taken if it is exact, refused with the reason else."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
from aiohttp import web
from tests.engines.contract_fixtures import closing
from tests.engines.test_contract import collect

from openclaw_rl.engines import registry
from openclaw_rl.engines.remote import engine as remote
from openclaw_rl.engines.remote import openai_compatible
from openclaw_rl.errors import ConfigError, EngineError, EngineGone
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.testing import write_adapter
from openclaw_rl.types import Generation, PolicyRef, Sampling

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PROMPT = np.arange(3, 9, dtype=np.int32)


def after(ids: list[int], version: int = 0) -> int:
    """The likeliest id: a function of every id that was read."""
    return (sum(i * (n + 1) for n, i in enumerate(ids)) + version) % 24


class Endpoint:
    """A completions server, exact unless told otherwise. Ids are letters. `requests` records (path, body)."""

    def __init__(
        self,
        *,
        ids: bool = True,
        logprobs: bool = True,
        reads: Callable[[list[int]], list[int]] = lambda ids: ids,
        echo: bool = True,
        usage: bool = True,
        reports: Callable[[list[int]], list[int]] = lambda ids: ids,
        text_prompts_only: bool = False,
        adapters: bool = True,
        models: tuple[str, ...] = ("letters",),
        context: int | None = 64,
    ) -> None:
        self.ids, self.logprobs, self.reads, self.reports = ids, logprobs, reads, reports
        self.echo, self.usage, self.text_prompts_only = echo, usage, text_prompts_only
        self.models, self.context = models, context
        self.loaded: dict[str, str] = {}  # ever
        self.held: dict[str, str] = {}  # now
        self.requests: list[tuple[str, Any]] = []
        self._app = web.Application()
        self._app.router.add_get("/v1/models", self._models)
        self._app.router.add_post("/v1/completions", self._completions)
        if adapters:
            self._app.router.add_post("/v1/load_lora_adapter", self._load)
            self._app.router.add_post("/v1/unload_lora_adapter", self._unload)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._stop, up = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(up),), daemon=True
        )
        self._thread.start()
        assert up.wait(240)
        return self

    async def _serve(self, up: threading.Event) -> None:
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        up.set()
        await self._stop.wait()
        await runner.cleanup()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(240)
        self._loop.close()

    async def _models(self, request: web.Request) -> web.Response:
        cards = [
            {"id": name} | ({"max_model_len": self.context} if self.context else {})
            for name in self.models
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "lora_name" not in body:
            return web.json_response(
                {"error": {"message": "lora_name: field required"}}, status=400
            )
        self.loaded[body["lora_name"]] = self.held[body["lora_name"]] = body["lora_path"]
        return web.Response()

    async def _unload(self, request: web.Request) -> web.Response:
        body = await request.json()
        del self.held[body["lora_name"]]
        return web.Response()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((request.path, body))
        if self.text_prompts_only:
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=400)
        version = int(body["model"].split("-")[1]) if body["model"].startswith("openclaw-") else 0
        prompt, drawn = self.reads(body["prompt"]), list[int]()
        while len(drawn) < body["max_tokens"]:
            drawn.append(after([*prompt, *drawn], version))
            if drawn[-1] in body["stop_token_ids"]:
                break
        if body.get("stream"):
            return await self._stream(request, body, drawn)
        answer: dict[str, Any] = {"choices": [self._choice(body, drawn, "length")]}
        if self.echo:
            answer["choices"][0]["prompt_token_ids"] = prompt
        if self.usage:
            answer["usage"] = {"prompt_tokens": len(prompt)}
        return web.json_response(answer)

    async def _stream(
        self, request: web.Request, body: Any, drawn: list[int]
    ) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for n, token in enumerate(drawn, 1):
            finish = (
                "stop" if token in body["stop_token_ids"] else "length" if n == len(drawn) else None
            )
            choice = self._choice(body, [token], finish)
            await answer.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer

    def _choice(self, body: Any, drawn: list[int], finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "text": "".join(LETTERS[i] for i in drawn),
            "finish_reason": finish,
        }
        if self.ids:
            choice["token_ids"] = self.reports(drawn)
        if self.logprobs:
            scale = body["temperature"] or 1.0
            ids = self.reports(drawn)
            choice["logprobs"] = {
                "tokens": [LETTERS[i] for i in ids],
                "token_logprobs": [-(1 + i % 5) / 10 for i in ids],
                "top_logprobs": [
                    {f"token_id:{(i + k) % 24}": -0.1 - k / scale for k in range(6)} for i in ids
                ],
            }
        return choice


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Config]:
    """A model folder with the letters' tokenizer, and the endpoint as its engine."""
    vocab = {letter: i for i, letter in enumerate(LETTERS)}
    (tmp_path / "letters").mkdir()
    tokenizer = {"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}}
    tokenizer["model"] = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": None}
    (tmp_path / "letters" / "tokenizer.json").write_text(json.dumps(tokenizer))

    def make(url: str | None, **engine: object) -> Config:
        flat = {
            "home": str(tmp_path),
            "model.path": str(tmp_path / "letters"),
            "engine.backend": "openai",
        }
        return from_flat(
            flat
            | ({"engine.url": url} if url else {})
            | {f"engine.{k}": v for k, v in engine.items()}
        )

    return make


def call(version: int = 0, **sampling: object) -> Generation:
    wanted = Sampling(**({"max_tokens": 8} | sampling))
    return Generation(
        id="g", version=version, prompt_ids=PROMPT, sampling=wanted, stop_token_ids=(30,)
    )


@pytest.mark.parametrize("echo", [True, False])
def test_an_exact_endpoint_is_the_engine(
    settings: Callable[..., Config], tmp_path: Path, echo: bool, caplog: pytest.LogCaptureFixture
) -> None:
    digest = write_adapter(tmp_path / "adapter")
    adapter = PolicyRef(version=1, path=str(tmp_path / "adapter"), digest=digest)

    async def body(url: str) -> None:
        async with closing(registry.connect_engine(settings(url))) as engine:
            info = await engine.info()
            assert (info.model, info.context_length, info.versions, info.grammar) == (
                "letters",
                64,
                (0,),
                False,
            )
            await engine.load([PolicyRef(version=0, path=None, digest=""), adapter])
            for version in (0, 1):
                reply = await collect(engine, call(version))
                ids = PROMPT.tolist()
                for token, logprob in zip(reply.token_ids, reply.logprobs, strict=True):
                    assert (token, logprob) == (
                        after(ids, version),
                        pytest.approx(-(1 + token % 5) / 10),
                    )
                    ids.append(token)

    with (
        Endpoint(echo=echo) as endpoint,
        caplog.at_level(logging.WARNING, "openclaw_rl.engines.remote.openai_compatible"),
    ):
        registry.check_engine(settings(endpoint.url))
        asyncio.run(body(endpoint.url))
    assert str(tmp_path / "adapter") in endpoint.loaded.values()
    assert not caplog.records
    assert not endpoint.held, "whoever hangs up takes its adapters away"


REFUSED = {
    "no ids": ({"ids": False}, "it returns no token ids"),
    "no logprobs": ({"logprobs": False}, r"it returns 0 usable log-probabilities for 6 tokens"),
    "text prompts only": (
        {"text_prompts_only": True},
        r"refuses /v1/completions with a prompt of token ids .*must be a string",
    ),
    "another prompt": (
        {"reads": lambda ids: [0, *ids]},
        "re-tokenises the prompt: it read other ids than were sent",
    ),
    "another prompt, untold": (
        {"reads": lambda ids: [0, *ids], "echo": False},
        "counts 9 prompt tokens where 8 were sent",
    ),
    "a prompt untold": (
        {"echo": False, "usage": False},
        "counts None prompt tokens where 8 were sent",
    ),
    "ids of another tokenizer": (
        {"reports": lambda ids: [(i + 1) % 24 for i in ids]},
        "do not decode to its text",
    ),
}


@pytest.mark.parametrize(("settings_of", "words"), REFUSED.values(), ids=REFUSED)
def test_an_inexact_endpoint_is_refused_at_the_start_with_the_reason(
    settings: Callable[..., Config], settings_of: dict[str, Any], words: str
) -> None:
    with Endpoint(**settings_of) as endpoint:
        with pytest.raises(EngineError, match=words) as caught:
            registry.check_engine(settings(endpoint.url))
        message = str(caught.value)
        assert "judge.base_url" in message
        assert "teacher.base_url" in message
        assert "vLLM, SGLang" in message

        async def later() -> None:  # the gateway's own connection says the same
            async with closing(registry.connect_engine(settings(endpoint.url))) as engine:
                with pytest.raises(EngineError, match=words):
                    await engine.wait_ready(5)

        asyncio.run(later())


def test_ids_that_the_model_did_not_read_are_detected_without_a_tokenizer(
    settings: Callable[..., Config], tmp_path: Path
) -> None:
    (tmp_path / "letters" / "tokenizer.json").unlink()
    words = "its ids are not what its model read"
    with (
        Endpoint(reports=lambda ids: [(i + 1) % 24 for i in ids]) as endpoint,
        pytest.raises(EngineError, match=words),
    ):
        registry.check_engine(settings(endpoint.url))


def test_an_endpoint_without_adapter_routes_serves_the_base_and_reports_it(
    settings: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = write_adapter(tmp_path / "adapter")

    async def body(url: str) -> None:
        async with closing(registry.connect_engine(settings(url))) as engine:
            assert (await collect(engine, call())).finish == "length"
            with pytest.raises(EngineError, match="version 1"):
                await engine.load(
                    [PolicyRef(version=1, path=str(tmp_path / "adapter"), digest=digest)]
                )
            assert (await collect(engine, call())).finish == "length"

    with (
        Endpoint(adapters=False) as endpoint,
        caplog.at_level(logging.WARNING, "openclaw_rl.engines.remote.openai_compatible"),
    ):
        asyncio.run(body(endpoint.url))
    assert "serves the base only" in caplog.text


def test_the_model_and_its_context_length_are_reported(settings: Callable[..., Config]) -> None:
    with Endpoint(models=("other", "letters", "third")) as endpoint:
        registry.check_engine(settings(endpoint.url))
        assert {body["model"] for _, body in endpoint.requests} == {"letters"}
    with (
        Endpoint(models=("one", "two")) as endpoint,
        pytest.raises(EngineError, match="these models: one, two"),
    ):
        registry.check_engine(settings(endpoint.url))
    with Endpoint(context=None) as endpoint:
        with pytest.raises(EngineError, match=r"engine\.max_context"):
            registry.check_engine(settings(endpoint.url))
        registry.check_engine(settings(endpoint.url, max_context=32))


def test_an_endpoint_that_is_down_wrong_or_without_the_model(
    settings: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    with Endpoint() as endpoint:
        url = endpoint.url
    with caplog.at_level(logging.WARNING, "openclaw_rl.engines.remote.openai_compatible"):
        registry.check_engine(settings(url))
    assert "is checked once it answers" in caplog.text
    with pytest.raises(ConfigError, match=r"engine\.url is needed"):
        settings(None)
    with (
        Endpoint() as endpoint,
        pytest.raises(EngineError, match="is not an OpenAI-compatible endpoint"),
    ):
        registry.check_engine(settings(endpoint.url.replace("/v1", "/elsewhere")))


@pytest.mark.parametrize(
    ("one", "two", "differ"),
    [
        (([1, 2], [-1.0, -2.0]), ([1, 2], [-1.0, -2.0]), False),
        (([1, 2], [-1.0, -2.0]), ([1, 2], [-1.0, -2.5]), True),
        (([1, 2], [-1.0, -2.0]), ([3, 9], [-1.01, -7.0]), False),  # as likely: both are right
        (([1, 2], [-1.0, -2.0]), ([3, 2], [-1.5, -2.0]), True),
        (([1, 2], [-1.0, -2.0]), ([1], [-1.0]), True),
    ],
)
def test_two_greedy_replies(one: Any, two: Any, differ: bool) -> None:
    assert openai_compatible._replies_differ(one, two) is differ


def test_an_endpoint_that_never_answers_delays_nothing(
    settings: Callable[..., Config],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with caplog.at_level(logging.WARNING, "openclaw_rl.engines.remote.openai_compatible"):
            registry.check_engine(settings(url), wait=0.1)
        assert "did not answer within 0.1 s" in caplog.text

        async def body() -> None:
            for kind in ("openai", "vllm", "sglang"):
                config = from_flat({"engine.backend": kind, "engine.url": url})
                async with closing(registry.connect_engine(config)) as engine:
                    with pytest.raises(EngineGone, match=r"did not answer within 0\.1 s"):
                        await engine.info()

        monkeypatch.setattr(remote, "_HANDSHAKE_TIMEOUT", 0.1)
        asyncio.run(body())
