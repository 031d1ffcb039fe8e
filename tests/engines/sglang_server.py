"""SGLang's HTTP, stated as a server of our own: `/generate` and what goes with it, over a real model in memory.

Facts, with their places in SGLang 0.5.23 (`python/sglang/srt/`); 0.5.9 and 0.5.14 were read for what differs.

- `/generate`: fields `input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num,
  token_ids_logprob, lora_path, rid, stream` (managers/io_struct.py, GenerateReqInput); sampling parameters and their
  defaults in sampling/sampling_params.py, SamplingParams. `lora_path` is the adapter's name.
- Streams are `data: {output_ids, meta_info}` events and end with `data: [DONE]`; an error found before the scheduler is
  an event `{"error": {"message"}}`, and a 400 when not streamed (entrypoints/http_server.py, serve_generate_request).
- By default every event holds all tokens so far; with `--incremental-streaming-output` (before 0.5.14:
  `--stream-output`) the new ones only (managers/tokenizer_manager.py, _handle_batch_output). Log-probabilities were
  those of all tokens in either mode until _slice_streaming_output_meta_info came (0.5.14). `completion_tokens` counts
  all in every mode.
- `meta_info.output_token_logprobs` are [logprob, id, null]; `output_top_logprobs` and `output_token_ids_logprobs` have
  a list of such at each position (tokenizer_manager.py, convert_logprob_style).
- Log-probabilities are log softmax(logits / T), before top-p, top-k and min-p (layers/sampler.py, the standard path);
  at temperature 0, T is 1 (sampling_params.py, __post_init__). SGLANG_RETURN_ORIGINAL_LOGPROB: T is 1 always.
- `sampling_seed` is honoured with `--enable-deterministic-inference` only (sampling/sampling_batch_info.py); here too.
- A stop id ends the reply and belongs to `output_ids` (managers/schedule_batch.py, output_ids_through_stop). With
  `ignore_eos` neither the end of sequence nor stop ids are looked at (same file, _check_token_based_finish).
- `finish_reason`: {"type": "stop", "matched": id} | {"type": "length", "length": n} | {"type": "abort", "message",
  "status_code"?}; an abort with a status from 400 on is that HTTP error when not streamed (tokenizer_manager.py,
  _handle_abort_finish_reason).
- Lengths: max_req_len = context - 1 (managers/tp_worker.py); prompts of max_req_len - 5 tokens and more are aborted
  with 400 (managers/utils.py, validate_input_length); `max_new_tokens` is cut to max_req_len - prompt - 1
  (managers/scheduler.py, init_req_max_new_tokens); prompt and `max_new_tokens` together above the context are refused
  (tokenizer_manager.py, _validate_one_request).
- Scoring: with `max_new_tokens` 0 nothing is sampled; `input_token_logprobs` begins at `logprob_start_len` with an
  entry without a value; they are at temperature 1; the vocabulary's last id is told as 0
  (managers/scheduler_components/logprob_result_processor.py).
- An adapter's scaling is lora_alpha / r for all modules, whatever use_rslora and the patterns say (lora/lora.py,
  lora/lora_config.py).
- `/load_lora_adapter`, `/unload_lora_adapter`: 200 or 400 with {success, error_message}; a name that is loaded is
  refused (lora/lora_manager.py, validate_new_adapter). `/update_weights_from_disk`: {success, message}.
- `/abort_request` ends every request whose id begins with `rid` (managers/scheduler.py, abort_request).
- `/model_info` has `weight_version` ("default" at the start), `/server_info` the settings, `version` and
  `max_req_input_len` (http_server.py; scheduler.py, get_init_info). With `--api-key` all but `/health` want it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from aiohttp import web

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import EngineSequence, NewToken, SequenceScored
from openclaw_rl.errors import EngineError
from openclaw_rl.settings.load import EngineConfig, ModelConfig
from openclaw_rl.types import PolicyRef, Sampling

FIELDS = {
    "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob",
    "lora_path", "rid", "stream",
}  # fmt: skip
PARAMETERS = {
    "max_new_tokens", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "json_schema", "ebnf", "ignore_eos", "skip_special_tokens",
    "spaces_between_special_tokens", "no_stop_trim", "logit_bias", "sampling_seed",
}  # fmt: skip
BASE = PolicyRef(version=0, path=None, digest="")


class Refused(Exception):
    """What SGLang raises as a ValueError, before or in its scheduler."""


class SglangWire:
    """Starts on entry, in a thread of its own. `mode`: "cumulative", "incremental" or "incremental, whole logprobs"."""

    def __init__(
        self,
        model: Path,
        *,
        mode: str = "cumulative",
        version: str = "0.5.23",
        grammar: str = "xgrammar",
        eos: int | None = None,
        key: str | None = None,
        lora: bool = True,
        port: int = 0,
    ) -> None:
        self.mode, self.key, self.eos, self.lora, self._port = mode, key, eos, lora, port
        self.settings: dict[str, Any] = {
            "version": version,
            "model_path": str(model),
            "grammar_backend": grammar,
            "allow_auto_truncate": False,
            "device": "cpu",
            "dtype": "float32",
        }
        self.weight_version = "default"
        self.requests: list[tuple[str, Any]] = []
        self.hits: Counter[str] = Counter()
        self.adapters: dict[str, PolicyRef] = {}
        self._made = 0
        self._start(model)
        self.settings["max_req_input_len"] = self._max_req_len - 5

    def _start(self, model: Path) -> None:
        base = EmbeddedModel.load(ModelConfig(path=str(model), device="cpu"))
        self.core = EmbeddedEngine(
            base, EngineConfig(max_loaded_versions=64, max_batch=16, prefill_chunk=64)
        )
        self.context, self._max_req_len = base.context_length, base.context_length - 1

    @property
    def running(self) -> int:
        return self.core.running_count + self.core.waiting_count

    def asked(self, path: str) -> list[Any]:
        """The bodies of the calls of one route."""
        return [body for route, body in self.requests if route == path]

    # Life

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._stop, self._busy = asyncio.Event(), asyncio.Event()
        self._queues: dict[EngineSequence, asyncio.Queue[NewToken | SequenceScored | None]] = (
            defaultdict(asyncio.Queue)
        )
        self._rids: dict[str, EngineSequence] = {}
        up = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(up),), daemon=True
        )
        self._thread.start()
        assert up.wait(240)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(240)
        self._loop.close()

    async def _serve(self, up: threading.Event) -> None:
        app = web.Application(middlewares=[self._keyed])
        app.router.add_get("/health", self._health)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/load_lora_adapter", self._load)
        app.router.add_post("/unload_lora_adapter", self._unload)
        app.router.add_post("/update_weights_from_disk", self._update)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        steps = asyncio.create_task(self._steps())
        up.set()
        await self._stop.wait()
        steps.cancel()
        await runner.cleanup()

    async def _steps(self) -> None:
        while True:
            if not self.core.has_work:
                self._busy.clear()
                await self._busy.wait()
            for item in self.core.step():
                assert isinstance(item, NewToken | SequenceScored)
                self._queues[item.seq].put_nowait(item)
            await asyncio.sleep(0)

    @web.middleware
    async def _keyed(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.hits[request.path] += 1
        if (
            self.key
            and request.path != "/health"
            and request.headers.get("Authorization") != f"Bearer {self.key}"
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _body(self, request: web.Request) -> Any:
        body = await request.json()
        self.requests.append((request.path, body))
        return body

    # Routes

    async def _health(self, request: web.Request) -> web.Response:
        await asyncio.sleep(1)  # as it does
        return web.Response()

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response(self.settings)

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": self.settings["model_path"], "weight_version": self.weight_version}
        )

    async def _abort(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        for rid, seq in list(self._rids.items()):
            if rid.startswith(body["rid"]):
                self._end(seq)
        return web.Response()

    def _end(self, seq: EngineSequence) -> None:
        self.core.cancel(seq)
        self._busy.set()
        self._queues[seq].put_nowait(None)

    async def _load(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        name = body["lora_name"]
        try:
            if not self.lora:
                raise Refused("LoRA is not enabled. Please set `--enable-lora` to enable LoRA.")
            if name in self.adapters:
                raise Refused(f"Failed to load LoRA adapter {name} because it is already loaded")
            self._made += 1
            digest = digest_of_folder(body["lora_path"])
            ref = PolicyRef(version=self._made, path=body["lora_path"], digest=digest)
            refs = [BASE, *self.adapters.values(), ref]
            files = {(ref.version, digest): adapter_file.read_adapter(ref)}
            for _ in self.core.load_versions(refs, files):
                pass
        except (Refused, EngineError, OSError) as error:
            return web.json_response({"success": False, "error_message": str(error)}, status=400)
        self.adapters[name] = ref
        return web.json_response({"success": True, "error_message": None, "loaded_adapters": {}})

    async def _unload(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        ref = self.adapters.pop(body["lora_name"], None)
        if ref is None:
            return web.json_response({"success": False, "error_message": "not found"}, status=400)
        for work in (
            self.core.load_versions([BASE, *self.adapters.values()], {}),
            self.core.unload_unused(),
        ):
            for _ in work:
                pass
        return web.json_response({"success": True})

    async def _update(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        assert not self.core.has_work, "SGLang would wait here, and nobody else would be served"
        folder = Path(body["model_path"])
        if not (folder / "config.json").exists():
            message = f"Failed to get weights iterator: {folder}"
            return web.json_response({"success": False, "message": message}, status=400)
        self._start(folder)
        self.settings["model_path"] = str(folder)  # before 0.5.23 (tokenizer_manager.py)
        self.weight_version = body["weight_version"]
        return web.json_response({"success": True, "message": "Succeeded to update model weights."})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        _known(body, FIELDS)
        _known(body["sampling_params"], PARAMETERS)
        if not body.get("stream"):
            return await self._whole(body)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        events = self._events(body)
        try:
            async for event in events:
                await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await answer.write(b"data: [DONE]\n\n")
        except ConnectionError:
            await events.aclose()
        return answer

    async def _events(self, body: Any) -> AsyncIterator[dict[str, Any]]:
        try:
            seq = self._submit(body)
        except Refused as error:
            yield {"error": {"message": str(error), "type": "invalid_request_error", "code": 400}}
            return
        except EngineError as error:  # the scheduler's own, which comes as an abort
            yield {"output_ids": [], "meta_info": {"finish_reason": _aborted(str(error), 400)}}
            return
        tokens: list[NewToken] = []
        self._rids[body["rid"]] = seq
        try:
            while not tokens or tokens[-1].finish is None:
                item = await self._queues[seq].get()
                if item is None:
                    yield self._told(tokens, 0, {"type": "abort", "message": "Abort by user"})
                    return
                assert isinstance(item, NewToken)
                tokens.append(item)
                yield self._told(tokens, len(tokens) - 1, self._finish(item, len(tokens)))
        finally:
            if not tokens or tokens[-1].finish is None:
                self._end(seq)
            self._rids.pop(body["rid"], None)
            self._queues.pop(seq, None)

    def _finish(self, token: NewToken, count: int) -> dict[str, Any] | None:
        if token.finish is None:
            return None
        return (
            {"type": "stop", "matched": token.token}
            if token.finish == "stop"
            else {"type": "length", "length": count}
        )

    def _told(
        self, tokens: list[NewToken], seen: int, finish: dict[str, Any] | None
    ) -> dict[str, Any]:
        cut = 0 if self.mode == "cumulative" else seen
        sliced = tokens[cut if self.mode != "incremental, whole logprobs" else 0 :]
        return {
            "text": "",
            "output_ids": [t.token for t in tokens[cut:]],
            "meta_info": {
                "id": "x",
                "finish_reason": finish,
                "completion_tokens": len(tokens),
                "cached_tokens": tokens[0].seq.reused_tokens if tokens else 0,
                "weight_version": self.weight_version,
                "output_token_logprobs": [[t.logprob, t.token, None] for t in sliced],
                "output_top_logprobs": [
                    [[lp, i, None] for i, lp in t.top or ()] or None for t in sliced
                ],
            },
        }

    async def _whole(self, body: Any) -> web.Response:
        ids, start = body["input_ids"], body["logprob_start_len"]
        params = body["sampling_params"]
        try:
            if start > len(ids):
                raise Refused("logprob_start_len is higher than the number of input tokens")
            self._check_length(ids, params)
            meta: dict[str, Any] = {"completion_tokens": params["max_new_tokens"]}
            if params["max_new_tokens"] == 0:
                scores = await self._score(body, ids[: start + 1], ids[start + 1 :], 1.0)
                last = self.core.model.vocab_size - 1  # told as 0
                pairs = zip(scores, ids[start + 1 :], strict=True)
                meta["input_token_logprobs"] = [[None, ids[start], None]]
                meta["input_token_logprobs"] += [[s, i if i < last else 0, None] for s, i in pairs]
            else:
                wanted = body["token_ids_logprob"]
                scored = [
                    (await self._score(body, ids, [i], params["temperature"]))[0] for i in wanted
                ]
                meta["output_token_ids_logprobs"] = [
                    [[s, i, None] for s, i in zip(scored, wanted, strict=True)]
                ]
        except (Refused, EngineError) as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        return web.json_response({"text": "", "output_ids": [], "meta_info": meta})

    # The scheduler

    def _version(self, body: Any) -> int:
        name = body.get("lora_path")
        if name is None:
            return 0
        if name not in self.adapters:
            raise Refused(f"The following requested LoRA adapters are not loaded: {name}")
        return self.adapters[name].version

    def _check_length(self, ids: list[int], params: Any) -> None:
        if len(ids) + params["max_new_tokens"] > self.context:
            raise Refused(
                f"Requested token count exceeds the model's maximum context length of {self.context} tokens"
            )
        if len(ids) >= self._max_req_len - 5:
            words = (
                f"Input length ({len(ids)} tokens) exceeds the maximum allowed length "
                f"({self._max_req_len - 5} tokens)"
            )
            raise EngineError(words)

    def _submit(self, body: Any) -> EngineSequence:
        params, ids = body["sampling_params"], body["input_ids"]
        version = self._version(body)
        self._check_length(ids, params)
        if params.get("ebnf"):
            raise EngineError("Failed to compile ebnf grammar: no")
        stops = (
            set()
            if params["ignore_eos"]
            else {*(params["stop_token_ids"] or ()), self.eos} - {None}
        )
        sampling = Sampling(
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=max(params["top_k"], 0),
            min_p=params["min_p"],
            presence_penalty=params["presence_penalty"],
            frequency_penalty=params["frequency_penalty"],
            logit_bias={int(i): b for i, b in params.get("logit_bias", {}).items()},
            seed=params.get("sampling_seed"),
            max_tokens=min(params["max_new_tokens"], self._max_req_len - len(ids) - 1),
        )
        prompt = np.array(ids, dtype=np.int32)
        seq = self.core.generate(
            None, version, prompt, sampling, tuple(stops), body["top_logprobs_num"]
        )
        self._busy.set()
        return seq

    async def _score(
        self, body: Any, prompt: list[int], response: list[int], temperature: float
    ) -> list[float]:
        ids = np.array(prompt, dtype=np.int32), np.array(response, dtype=np.int32)
        seq = self.core.score(None, self._version(body), *ids, temperature)
        self._busy.set()
        found = await self._queues[seq].get()
        self._queues.pop(seq)
        assert isinstance(found, SequenceScored)
        return [float(lp) for lp in found.logprobs]


def _aborted(words: str, status: int) -> dict[str, Any]:
    return {"type": "abort", "message": words, "status_code": status, "err_type": "BadRequestError"}


def _known(body: Any, fields: set[str]) -> None:
    assert body.keys() <= fields, f"{body.keys() - fields} are no fields of SGLang"
