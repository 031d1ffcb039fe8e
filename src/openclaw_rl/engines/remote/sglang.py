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
from openclaw_rl.engines.base import EngineInfo, OnConnect
from openclaw_rl.engines.remote import sglang_api
from openclaw_rl.engines.remote.engine import RemoteEngine
from openclaw_rl.engines.remote.http_client import HEALTH_TIMEOUT, HttpClient
from openclaw_rl.engines.remote.loaded_versions import LoadedVersion
from openclaw_rl.engines.remote.positional_scoring import score_positions
from openclaw_rl.errors import EngineError, EngineGone, GrammarError
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef

MIN_VERSION = (0, 5, 9)
"""Oldest supported version: earlier ones have no `/server_info` and `/model_info`."""
FALLBACK_ADVICE = "Install a newer one (`pip install -U sglang`), or fall back to vLLM: --backend vllm"
_WEIGHT_TAG = re.compile(r"^openclaw-\d+-[0-9a-f]+$")
_IGNORED_KEYS = ("use_rslora", "rank_pattern", "alpha_pattern")
_BASE_TAG = "default"  # SGLang's `weight_version` for the weights that it was started with
_LORA_ADVICE = (
    "Start it with --enable-lora, --max-lora-rank and --lora-target-modules all, or let `openclaw-rl` start it"
)


class SglangHttpClient(HttpClient):
    """`HttpClient` with a cheap health check: SGLang's `/health` generates a token and takes at least a second.

    `locate` returns the present address; it is called before each connection, because a restart may change the port.
    """

    def __init__(self, url: str, *, api_key: str | None = None, locate: Callable[[], str] | None = None) -> None:
        super().__init__(url, api_key=api_key)
        self._locate = locate

    def update_address(self) -> None:
        """Read the present address of the server. Raises `EngineError`."""
        if self._locate is not None:
            self.url = self._locate()

    async def check_alive(self, path: str = "/model_info") -> None:
        """Check the health of the server. Raises `EngineGone`."""
        await super().check_alive(path)


class SglangEngine(RemoteEngine):
    """See `RemoteEngine`. `base`: folder of the base weights, to load them again after full-weight versions."""

    kind = "SGLang"
    convention_advice = "Start it without SGLANG_RETURN_ORIGINAL_LOGPROB. "

    def __init__(
        self,
        server: SglangHttpClient,
        config: EngineConfig,
        base: str,
        *,
        owner: str = "",
        on_connect: OnConnect | None = None,
    ) -> None:
        super().__init__(server, config, owner=owner, on_connect=on_connect)
        self._http_client, self._base_path = server, base

    async def _fetch_info(self) -> EngineInfo:
        self._http_client.update_address()
        told = await self._server_info()
        check_version(str(told.get("version", "")), f"the SGLang server at {self.http.address}")
        longest = told.get("max_req_input_len")
        if not isinstance(longest, int):
            raise EngineError(
                f"the SGLang server at {self.http.address} does not report max_req_input_len. {FALLBACK_ADVICE}"
            )
        if told.get("allow_auto_truncate"):
            raise EngineError(
                f"the SGLang server at {self.http.address} truncates long prompts silently, so the stored prompt would "
                "not be the one that was read. Start it without --allow-auto-truncate"
            )
        if await self._loaded_weights_name() == "":  # else the reported path may be that of weights we loaded
            self._base_path = str(told.get("model_path") or self._base_path)
        return EngineInfo(
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
            found = await self.http.call_json("GET", "/server_info", limit=HEALTH_TIMEOUT)
        except EngineGone:
            raise
        except EngineError as error:
            raise EngineError(
                f"{self.http.address} is not an SGLang server, or one that is too old ({error}); "
                f"expected SGLang {_format_version(MIN_VERSION)} or newer. {FALLBACK_ADVICE}"
            ) from None
        if not isinstance(found, dict):
            raise EngineError(f"{self.http.address} is not an SGLang server: its /server_info is not a JSON object")
        return found

    async def _stream_chunks(self, generation: Generation, held: LoadedVersion, limit: int) -> AsyncGenerator[Chunk]:
        rid = f"openclaw-{uuid.uuid4().hex}"
        body = sglang_api.streaming_body(generation, adapter=held.adapter, limit=limit, rid=rid)
        reply, ended = sglang_api.SglangReplyReader(generation.top_logprobs), False
        events = self.http.stream_events("/generate", body)
        try:
            async for together in events:
                chunk = reply.read_events(together)
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
                self._spawn_task(self._abort_request(rid))

    async def _abort_request(self, rid: str) -> None:
        """Abort a request. SGLang notices a closed connection only at the next token, so a queued one would stay."""
        with contextlib.suppress(EngineError):  # if the server is gone, so is the request
            await self.http.call_json("POST", "/abort_request", {"rid": rid}, limit=5.0)

    # Scoring

    async def _score_response(
        self, held: LoadedVersion, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> Logprobs:
        """Score with one request at temperature 1, at which SGLang scores prompts, else with one per position."""
        if temperature != 1.0:
            return (await self._score_positions(held, prompt_ids, response_ids, response_ids[:, None], temperature))[
                :, 0
            ]
        whole = np.concatenate([prompt_ids, response_ids])
        body = sglang_api.scoring_body(whole, len(prompt_ids), adapter=held.adapter)
        answer = sglang_api.parse_answer(await self.http.call_json("POST", "/generate", body))
        found = sglang_api.prompt_logprobs(answer, response_ids.tolist(), self.http.address)
        return np.array(found, dtype=np.float32)

    async def _score_given_ids(self, held: LoadedVersion, prompt_ids: Ids, response_ids: Ids, ids: Ids) -> Logprobs:
        return await self._score_positions(held, prompt_ids, response_ids, ids, 1.0)

    async def _score_positions(
        self, held: LoadedVersion, prompt_ids: Ids, response_ids: Ids, ids: Ids, temperature: float
    ) -> Logprobs:
        if self.config.effective_convention == "raw" and temperature != 1.0:
            raise EngineError(
                f"the engine returns raw log-probabilities, so it scores at temperature 1, not {temperature:g}. "
                + self.convention_advice
            )

        async def score_at(prompt: Ids, wanted: Sequence[int]) -> list[float]:
            body = sglang_api.next_token_body(prompt, wanted, temperature, adapter=held.adapter)
            answer = sglang_api.parse_answer(await self.http.call_json("POST", "/generate", body))
            return sglang_api.given_id_logprobs(answer, wanted, self.http.address)

        return await score_positions(score_at, prompt_ids, response_ids, ids)

    # Versions

    async def _load_adapter(self, name: str, ref: PolicyRef) -> None:
        await self._check_scaling(ref)
        body = {"lora_name": name, "lora_path": _absolute_path(ref)}
        try:
            await self._post_checked("/load_lora_adapter", body)
        except EngineGone:
            raise
        except EngineError as error:
            if "already loaded" in str(error):
                return  # over an earlier connection; the name identifies the content
            advice = f" {_LORA_ADVICE}" if "not enabled" in str(error) or "404" in str(error) else ""
            raise EngineError(f"version {ref.version}: SGLang cannot load {ref.path}: {error}{advice}") from None

    async def _check_scaling(self, ref: PolicyRef) -> None:
        """Raise `EngineError` if the adapter does not fit the base, or has keys that SGLang ignores.

        SGLang scales every module by lora_alpha / r.
        """
        file = await asyncio.to_thread(adapter_file.read_adapter, ref)
        await asyncio.to_thread(adapter_file.check_fits_base, file, self._base_path)
        config = file.config
        found = [key for key in _IGNORED_KEYS if config.get(key)]
        if found:
            raise EngineError(
                f"version {ref.version}: SGLang ignores {' and '.join(found)} of {ref.path} and would serve other "
                "weights than were trained. Train plain LoRA, or serve it with vLLM or the embedded engine"
            )

    async def _unload_adapter(self, name: str) -> None:
        await self._post_checked("/unload_lora_adapter", {"lora_name": name})

    async def _loaded_weights_name(self) -> str | None:
        found = await self.http.call_json("GET", "/model_info")
        tag = str(found.get("weight_version", "")) if isinstance(found, dict) else ""
        return tag if _WEIGHT_TAG.match(tag) else ""

    async def _load_full_weights(self, name: str, ref: PolicyRef | None) -> None:
        """See `RemoteEngine`. Flushes the cache too, which SGLang refuses while replies run; none of ours does."""
        path = _absolute_path(ref) if ref is not None else self._base_path
        body = {"model_path": path, "weight_version": name or _BASE_TAG, "flush_cache": True}
        try:
            await self._post_checked("/update_weights_from_disk", body)
        except EngineGone:
            raise
        except EngineError as error:
            raise EngineError(f"SGLang cannot load the weights in {path}: {error}") from None

    async def _post_checked(self, path: str, body: dict[str, Any]) -> None:
        """Send a request whose answer has `success`. Raises `EngineError` with the server's message if it is false."""
        found = await self.http.call_json("POST", path, body)
        if isinstance(found, dict) and found.get("success") is False:
            raise EngineError(str(found.get("error_message") or found.get("message")))


def _absolute_path(ref: PolicyRef) -> str:
    assert ref.path is not None
    return str(Path(ref.path).resolve())


def check_version(found: str, where: str) -> None:
    """Raise `EngineError` if the version is too old."""
    if version_numbers(found) < MIN_VERSION:
        raise EngineError(
            f"{where} is {found or 'of unknown version'}; expected {_format_version(MIN_VERSION)} or newer. "
            f"{FALLBACK_ADVICE}"
        )


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers: (0, 5, 14) for `0.5.14.post1+cu130`."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
