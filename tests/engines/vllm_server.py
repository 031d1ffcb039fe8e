"""A server that speaks as much of vLLM's HTTP as the client uses, with `ScriptedEngine` in the place of a model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from aiohttp import web

from openclaw_rl.engines.remote.http_client import HttpClient
from openclaw_rl.errors import EngineError
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Generation, Sampling

CONTEXT = 512
BASE = "policy"


class VllmDouble:
    """Starts on entry, in a thread of its own. `requests` records what was asked: (path, body)."""

    def __init__(self, socket: Path, engine: ScriptedEngine, *, mode: str = "processed") -> None:
        self.socket, self.engine, self.mode = socket, engine, mode
        self.adapters: dict[str, str] = {}  # name -> folder
        self.weights, self.loaded = "base", "/base"  # the tag, and the folder that was loaded last
        self.refused_weights: set[str] = set()
        self.requests: list[tuple[str, Any]] = []
        self.reads_images, self.rendered = (
            False,
            [11, 12, 13],
        )  # whether chats with images are rendered, and to what
        self.device: str | None = None  # reported by `/server_info`; None: there is no such route
        # How streams end before their time (`BREAKS`), and at which token.
        self.breaks: tuple[str, int] | None = None
        self.routes: Mapping[str, Any] = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/tokenize": self._tokenize,
            "/v1/load_lora_adapter": self._load,
            "/v1/unload_lora_adapter": self._unload,
            "/pause": self._plain,
            "/resume": self._plain,
            "/reset_prefix_cache": self._plain,
            "/collective_rpc": self._rpc,
            "/update_weight_version": self._tag,
        }

    def http(self) -> HttpClient:
        return HttpClient("http://vllm", socket=self.socket)

    # Life

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        up = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(up),), daemon=True
        )
        self._thread.start()
        assert up.wait(240)
        return self

    async def _serve(self, up: threading.Event) -> None:
        app = web.Application()
        for path, handler in self.routes.items():
            app.router.add_post(path, handler)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/server_info", self._server_info)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        await web.UnixSite(runner, str(self.socket)).start()
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
        self.socket.unlink(missing_ok=True)

    # Routes

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [
            {"id": BASE, "root": "/base", "parent": None, "max_model_len": CONTEXT}
        ]
        return web.json_response(
            {"data": cards + [{"id": name, "parent": BASE} for name in self.adapters]}
        )

    async def _body(self, request: web.Request) -> Any:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.path, body))
        return body

    async def _plain(self, request: web.Request) -> web.Response:
        await self._body(request)
        return web.json_response({"status": "done"})

    async def _load(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if body["lora_name"] in self.adapters:
            return _refused(400, f"The lora adapter '{body['lora_name']}' has already been loaded.")
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def _unload(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        return (
            web.Response()
            if self.adapters.pop(body["lora_name"], None)
            else _refused(404, "cannot be found")
        )

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        path = body["kwargs"]["weights_path"]
        if path in self.refused_weights:
            return _refused(500, f"no weights in {path}")
        assert self.engine.running.total() == 0, "weights were changed under a reply"
        self.loaded = path
        return web.json_response({"results": [None]})

    async def _tag(self, request: web.Request) -> web.Response:
        self.weights = (await self._body(request))["new_version"]
        return web.json_response({"success": True})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weights})

    async def _server_info(self, request: web.Request) -> web.Response:
        if self.device is None:
            return _refused(404, "Not Found")
        config = {
            "device_config": {"device": self.device},
            "model_config": {"dtype": "torch.float32"},
        }
        return web.json_response({"vllm_config": config})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        model = body["model"]
        if model != BASE and model not in self.adapters:
            return _refused(404, f"The model `{model}` does not exist.")
        if len(body["prompt"]) + body["max_tokens"] > CONTEXT:
            return _refused(400, f"maximum context length is {CONTEXT}")
        version = 0 if model == BASE else int(model.split("-")[1])
        self.engine.held.add(version)
        if body.get("stream"):
            return await self._stream(request, body, version)
        return web.json_response({"choices": [self._whole(body, version)]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if not self.reads_images:
            return _refused(400, f"{body['model']} is not a multimodal model")
        return web.json_response({"tokens": self.rendered})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        """As `/v1/completions` does, in the shape of a chat."""
        body = await self._body(request)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        sampling = Sampling(temperature=body["temperature"], max_tokens=body["max_tokens"])
        prompt = np.array(self.rendered, dtype=np.int32)
        asked = Generation(
            id="g", version=0, prompt_ids=prompt, sampling=sampling, stop_token_ids=()
        )
        events: list[Any] = [
            {"prompt_token_ids": self.rendered, "choices": [{"delta": {"role": "assistant"}}]}
        ]
        async for chunk in self.engine.generate(asked):
            (token,), (logprob,) = chunk.token_ids, chunk.logprobs
            content = [{"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []}]
            choice = {
                "token_ids": [token],
                "logprobs": {"content": content},
                "finish_reason": chunk.finish,
            }
            events.append({"choices": [choice]})
        events.append(
            {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": len(prompt) - 1}}}
        )
        for event in events:
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def _stream(self, request: web.Request, body: Any, version: int) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        sampling = Sampling(temperature=body["temperature"], max_tokens=body["max_tokens"])
        prompt = np.array(body["prompt"], dtype=np.int32)
        stop = tuple(body["stop_token_ids"])
        asked = Generation(
            id="g", version=version, prompt_ids=prompt, sampling=sampling, stop_token_ids=stop
        )
        sent = 0
        try:
            async for chunk in self.engine.generate(asked):
                choice = {
                    "token_ids": chunk.token_ids,
                    "logprobs": self._logprobs(chunk.token_ids[0], version, body),
                    "finish_reason": chunk.finish,
                }
                event = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
                if self.breaks is not None and self.breaks[1] <= (sent := sent + 1):
                    return await _broken_off(request, answer, event, self.breaks[0])
                await answer.write(event)
            usage = {"prompt_tokens_details": {"cached_tokens": len(prompt) - 1}}
            await answer.write(
                b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
            )
        except EngineError as error:
            await answer.write(
                b"data: " + json.dumps({"error": {"message": str(error)}}).encode() + b"\n\n"
            )
        await answer.write(b"data: [DONE]\n\n")
        return answer

    def _logprobs(self, token: int, version: int, body: Any) -> dict[str, Any]:
        """The token, and alternatives that are less likely by equal steps."""
        temperature = 1.0 if self.mode == "raw" else max(body["temperature"], 0.1)
        own = self.engine.token_logprob(
            token, version, 1.0 if self.mode == "raw" else body["temperature"]
        )
        top = {f"token_id:{token}": own}
        cut = self.mode == "processed" and body["top_k"] == 1
        for i in range(1, body["logprobs"] + 1):
            top[f"token_id:{token + i}"] = -9999.0 if cut else own - i / temperature
        return {"tokens": [f"token_id:{token}"], "token_logprobs": [own], "top_logprobs": [top]}

    def _whole(self, body: Any, version: int) -> dict[str, Any]:
        """One token, with the scores that were asked for."""
        if "structured_outputs" in body:
            return {"text": "1"}
        if "prompt_logprobs" in body:
            scores = [
                {str(i): {"logprob": self.engine.token_logprob(i, version)}} for i in body["prompt"]
            ]
            return {"prompt_logprobs": [None, *scores[1:]], "token_ids": [1]}
        named = {
            f"token_id:{i}": self.engine.token_logprob(i, version, body["temperature"])
            for i in body["logprob_token_ids"]
        }
        return {
            "logprobs": {
                "tokens": ["token_id:1"],
                "token_logprobs": [-1.0],
                "top_logprobs": [named],
            }
        }


async def _broken_off(
    request: web.Request, answer: web.StreamResponse, event: bytes, how: str
) -> web.StreamResponse:
    """As a server ends a stream that is killed, that dies within, or that lets go of a request."""
    match how:
        case "killed":
            pass
        case "killed within a line":
            await answer.write(event[: len(event) // 2])
        case "killed behind the finish":
            await answer.write(
                b'data: {"choices": [{"token_ids": [], "finish_reason": "length"}]}\n\n'
            )
        case "ended without a finish":
            return answer
        case "ended with [DONE] alone":
            await answer.write(b"data: [DONE]\n\n")
            return answer
        case "the engine died":
            await answer.write(
                b'data: {"error": {"message": "EngineCore encountered an issue"}}\n\n'
            )
            return answer
        case "aborted":
            await answer.write(
                b'data: {"choices": [{"token_ids": [], "finish_reason": "abort"}]}\n\n'
            )
            return answer
        case _:
            raise ValueError(how)
    assert request.transport is not None
    request.transport.close()
    return answer


BREAKS = (
    "killed",
    "killed within a line",
    "killed behind the finish",
    "ended without a finish",
    "ended with [DONE] alone",
    "the engine died",
    "aborted",
)


def _refused(status: int, words: str) -> web.Response:
    return web.json_response({"error": {"message": words}}, status=status)
