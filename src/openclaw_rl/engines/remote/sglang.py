"""Engine client for SGLang: `/generate` with token ids in and out (docs/decisions/0008-sglang.md)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.base import Info, OnConnect
from openclaw_rl.engines.remote import sglang_api
from openclaw_rl.engines.remote.engine import RemoteEngine
from openclaw_rl.engines.remote.http_client import ANSWER, Http
from openclaw_rl.engines.remote.loaded_versions import Held
from openclaw_rl.engines.remote.positional_scoring import each_position
from openclaw_rl.errors import EngineError, EngineGone, GrammarError
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef

OLDEST = (0, 5, 9)
"""Oldest supported version: earlier ones have no `/server_info` and `/model_info`."""
FALL_BACK = "Install a newer one (`pip install -U sglang`), or fall back to vLLM: --backend vllm"
_TAGS = re.compile(r"^openclaw-\d+-[0-9a-f]+$")
_PASSED_OVER = ("use_rslora", "rank_pattern", "alpha_pattern")
_BASE_TAG = "default"  # SGLang's `weight_version` for the weights that it was started with
_LORA = "Start it with --enable-lora, --max-lora-rank and --lora-target-modules all, or let `openclaw-rl` start it"


class Server(Http):
    """`HttpClient` with a cheap health check: SGLang's `/health` generates a token and takes at least a second.

    `locate` returns the present address; it is called before each connection, because a restart may change the port.
    """

    def __init__(self, url: str, *, api_key: str | None = None, locate: Callable[[], str] | None = None) -> None:
        super().__init__(url, api_key=api_key)
        self._locate = locate

    def look(self) -> None:
        """Read the present address of the server. Raises `EngineError`."""
        if self._locate is not None:
            self.url = self._locate()

    async def alive(self, path: str = "/model_info") -> None:
        """Check the health of the server. Raises `EngineGone`."""
        await super().alive(path)


class SglangEngine(RemoteEngine):
    """See `RemoteEngine`. `base`: folder of the base weights, to load them again after full-weight versions."""

    kind = "SGLang"
    convention_advice = "Start it without SGLANG_RETURN_ORIGINAL_LOGPROB. "

    def __init__(
        self,
        server: Server,
        config: EngineConfig,
        base: str,
        *,
        owner: str = "",
        on_connect: OnConnect | None = None,
    ) -> None:
        super().__init__(server, config, owner=owner, on_connect=on_connect)
        self._server, self._base_path = server, base

    async def _hello(self) -> Info:
        self._server.look()
        told = await self._server_info()
        check_version(str(told.get("version", "")), f"the SGLang server at {self.http.where}")
        longest = told.get("max_req_input_len")
        if not isinstance(longest, int):
            raise EngineError(f"the SGLang server at {self.http.where} does not report max_req_input_len. {FALL_BACK}")
        if told.get("allow_auto_truncate"):
            raise EngineError(
                f"the SGLang server at {self.http.where} truncates long prompts silently, so the stored prompt would "
                "not be the one that was read. Start it without --allow-auto-truncate"
            )
        if await self._weights_now() == "":  # else the reported path may be that of weights we loaded
            self._base_path = str(told.get("model_path") or self._base_path)
        return Info(
            model=self._base_path,
            # Prompts and scored sequences must be shorter than max_req_input_len.
            context_length=longest - 1,
            vocab_size=0,
            versions=(0,),
            device=str(told.get("device") or "sglang"),
            dtype=str(told.get("dtype") or ""),
            running=0,
            waiting=0,
            grammar=told.get("grammar_backend") == "llguidance",
        )

    async def _server_info(self) -> dict[str, Any]:
        try:
            found = await self.http.call("GET", "/server_info", limit=ANSWER)
        except EngineGone:
            raise
        except EngineError as error:
            raise EngineError(
                f"{self.http.where} is not an SGLang server, or one that is too old ({error}); "
                f"expected SGLang {_words(OLDEST)} or newer. {FALL_BACK}"
            ) from None
        if not isinstance(found, dict):
            raise EngineError(f"{self.http.where} is not an SGLang server: its /server_info is not a JSON object")
        return found

    async def _chunks(self, generation: Generation, held: Held, limit: int) -> AsyncGenerator[Chunk]:
        rid = f"openclaw-{uuid.uuid4().hex}"
        body = sglang_api.streamed(generation, adapter=held.adapter, limit=limit, rid=rid)
        reply, ended = sglang_api.Reply(generation.top_logprobs), False
        events = self.http.events("/generate", body)
        try:
            async for together in events:
                chunk = reply.read(together)
                if chunk is not None:
                    ended = chunk.finish is not None
                    yield chunk
        except EngineError as error:
            if generation.sampling.grammar is not None and "grammar" in str(error).lower():
                raise GrammarError(str(error)) from None
            raise
        finally:
            await events.aclose()
            if not ended and not self._closed:
                self._spawn(self._abort(rid))

    async def _abort(self, rid: str) -> None:
        """Abort a request. SGLang notices a closed connection only at the next token, so a queued one would stay."""
        with contextlib.suppress(EngineError):  # if the server is gone, so is the request
            await self.http.call("POST", "/abort_request", {"rid": rid}, limit=5.0)

    # Scoring

    async def _score(self, held: Held, prompt_ids: Ids, response_ids: Ids, temperature: float) -> Logprobs:
        """Score with one request at temperature 1, at which SGLang scores prompts, else with one per position."""
        if temperature != 1.0:
            return (await self._each(held, prompt_ids, response_ids, response_ids[:, None], temperature))[:, 0]
        whole = np.concatenate([prompt_ids, response_ids])
        body = sglang_api.scoring(whole, len(prompt_ids), adapter=held.adapter)
        answer = sglang_api.answer_of(await self.http.call("POST", "/generate", body))
        found = sglang_api.prompt_logprobs(answer, response_ids.tolist(), self.http.where)
        return np.array(found, dtype=np.float32)

    async def _score_ids(self, held: Held, prompt_ids: Ids, response_ids: Ids, ids: Ids) -> Logprobs:
        return await self._each(held, prompt_ids, response_ids, ids, 1.0)

    async def _each(self, held: Held, prompt_ids: Ids, response_ids: Ids, ids: Ids, temperature: float) -> Logprobs:
        if self.config.convention == "raw" and temperature != 1.0:
            raise EngineError(
                f"the engine returns raw log-probabilities, so it scores at temperature 1, not {temperature:g}. "
                + self.convention_advice
            )

        async def at(prompt: Ids, wanted: Sequence[int]) -> list[float]:
            body = sglang_api.next_token(prompt, wanted, temperature, adapter=held.adapter)
            answer = sglang_api.answer_of(await self.http.call("POST", "/generate", body))
            return sglang_api.alternatives(answer, wanted, self.http.where)

        return await each_position(at, prompt_ids, response_ids, ids)

    # Versions

    async def _add(self, name: str, ref: PolicyRef) -> None:
        await self._check_scaling(ref)
        body = {"lora_name": name, "lora_path": _folder(ref)}
        try:
            await self._told("/load_lora_adapter", body)
        except EngineGone:
            raise
        except EngineError as error:
            if "already loaded" in str(error):
                return  # over an earlier connection; the name identifies the content
            advice = f" {_LORA}" if "not enabled" in str(error) or "404" in str(error) else ""
            raise EngineError(f"version {ref.version}: SGLang cannot load {ref.path}: {error}{advice}") from None

    async def _check_scaling(self, ref: PolicyRef) -> None:
        """Raise `EngineError` if the adapter does not fit the base, or has keys that SGLang ignores.

        SGLang scales every module by lora_alpha / r.
        """
        file = await asyncio.to_thread(adapter_file.read, ref)
        await asyncio.to_thread(adapter_file.check_fits, file, self._base_path)
        config = file.config
        found = [key for key in _PASSED_OVER if config.get(key)]
        if found:
            raise EngineError(
                f"version {ref.version}: SGLang ignores {' and '.join(found)} of {ref.path} and would serve other "
                "weights than were trained. Train plain LoRA, or serve it with vLLM or the embedded engine"
            )

    async def _remove(self, name: str) -> None:
        await self._told("/unload_lora_adapter", {"lora_name": name})

    async def _weights_now(self) -> str | None:
        found = await self.http.call("GET", "/model_info")
        tag = str(found.get("weight_version", "")) if isinstance(found, dict) else ""
        return tag if _TAGS.match(tag) else ""

    async def _reweigh(self, name: str, ref: PolicyRef | None) -> None:
        """See `RemoteEngine`. Flushes the cache too, which SGLang refuses while replies run; none of ours does."""
        path = _folder(ref) if ref is not None else self._base_path
        body = {"model_path": path, "weight_version": name or _BASE_TAG, "flush_cache": True}
        try:
            await self._told("/update_weights_from_disk", body)
        except EngineGone:
            raise
        except EngineError as error:
            raise EngineError(f"SGLang cannot load the weights in {path}: {error}") from None

    async def _told(self, path: str, body: dict[str, Any]) -> None:
        """Send a request whose answer has `success`. Raises `EngineError` with the server's message if it is false."""
        found = await self.http.call("POST", path, body)
        if isinstance(found, dict) and found.get("success") is False:
            raise EngineError(str(found.get("error_message") or found.get("message")))


def _folder(ref: PolicyRef) -> str:
    assert ref.path is not None
    return str(Path(ref.path).resolve())


def check_version(found: str, where: str) -> None:
    """Raise `EngineError` if the version is too old."""
    if numbers(found) < OLDEST:
        raise EngineError(
            f"{where} is {found or 'of unknown version'}; expected {_words(OLDEST)} or newer. {FALL_BACK}"
        )


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers: (0, 5, 14) for `0.5.14.post1+cu130`."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])


def _words(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
