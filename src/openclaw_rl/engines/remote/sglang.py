"""Engine client for SGLang: `/generate` with token ids in and out (docs/decisions/0008-sglang.md)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, ClassVar

import numpy as np

from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.adapter_file import AdapterFile
from openclaw_rl.engines.remote import sglang_api
from openclaw_rl.engines.remote.engine import BASE_WEIGHTS, RemoteEngine
from openclaw_rl.engines.remote.http_client import HEALTH_TIMEOUT, HttpClient, RequestRefused
from openclaw_rl.engines.remote.loaded_versions import LoadedVersion, full_weights_name
from openclaw_rl.engines.remote.server_process import version_numbers
from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import EngineInfo, OnConnect
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef

MIN_VERSION = (0, 5, 9)
"""Oldest supported version: earlier ones have no `/server_info` and `/model_info`."""
FALLBACK_ADVICE = (
    "Install a newer one (`pip install -U sglang`), or fall back to vLLM: --backend vllm"
)
# SGLang scales every module by lora_alpha / r.
_IGNORED_KEYS = ("use_rslora", "rank_pattern", "alpha_pattern")
# SGLang's `weight_version` for the weights that it was started with.
_BASE_TAG = "default"


class SglangEngine(RemoteEngine):
    """See `RemoteEngine`. `base`: folder of the base weights, to load them again after full-weight versions.

    `locate` returns the present address; it is called before each connection, because a restart may change the port.
    """

    kind = "SGLang"
    loads_weights: ClassVar[bool] = True  # full weights are loaded by this client
    convention_advice = "Start it without SGLANG_RETURN_ORIGINAL_LOGPROB. "
    lora_advice = (
        "Start it with --enable-lora, --max-lora-rank and --lora-target-modules all, or let "
        "`openclaw-rl` start it"
    )

    def __init__(
        self,
        http: HttpClient,
        config: EngineConfig,
        base: str,
        *,
        locate: Callable[[], str] | None = None,
        owner: str = "",
        on_connect: OnConnect | None = None,
    ) -> None:
        super().__init__(http, config, owner=owner, on_connect=on_connect)
        self._locate = locate
        self._base_path = base

    async def _fetch_info(self) -> EngineInfo:
        if self._locate is not None:
            self.http.url = self._locate()
        server = await self._server_info()
        check_version(str(server.get("version", "")), f"the SGLang server at {self.http.address}")
        longest = server.get("max_req_input_len")
        if not isinstance(longest, int):
            raise EngineError(
                f"the SGLang server at {self.http.address} does not report max_req_input_len. {FALLBACK_ADVICE}"
            )
        if server.get("allow_auto_truncate"):
            raise EngineError(
                f"the SGLang server at {self.http.address} truncates long prompts silently, so the stored prompt would "
                "not be the one that was read. Start it without --allow-auto-truncate"
            )
        # Else the reported path may be that of weights we loaded.
        if self.loads_weights and await self._loaded_weights_name() == BASE_WEIGHTS:
            self._base_path = str(server.get("model_path") or self._base_path)
        return EngineInfo(
            model=self._base_path,
            # Prompts and scored sequences must be shorter than max_req_input_len.
            context_length=longest - 1,
            device=str(server.get("device") or "sglang"),
            dtype=str(server.get("dtype") or ""),
            grammar=server.get("grammar_backend") == "llguidance",
        )

    async def _server_info(self) -> dict[str, Any]:
        try:
            server_info = await self.http.call_json("GET", "/server_info", limit=HEALTH_TIMEOUT)
        except RequestRefused as error:
            raise EngineError(
                f"{self.http.address} is not an SGLang server, or one that is too old ({error}); "
                f"expected SGLang {_format_version(MIN_VERSION)} or newer. {FALLBACK_ADVICE}"
            ) from None
        if not isinstance(server_info, dict):
            raise EngineError(
                f"{self.http.address} is not an SGLang server: its /server_info is not a JSON object"
            )
        return server_info

    async def _stream_chunks(
        self, generation: Generation, loaded: LoadedVersion, limit: int
    ) -> AsyncGenerator[Chunk]:
        rid = f"openclaw-{uuid.uuid4().hex}"
        body = sglang_api.streaming_body(generation, adapter=loaded.adapter, limit=limit, rid=rid)
        reply = sglang_api.SglangReplyReader(generation.top_logprobs)
        ended = False
        checked = 0
        events = self.http.stream_events("/generate", body)
        try:
            async for together in events:
                chunk = reply.read_events(together)
                if chunk is not None:
                    ended = chunk.finish is not None
                # Again at the end: a tag may then mean other weights.
                if ended or len(reply.weight_tags) > checked:
                    self._check_weights(loaded, reply.weight_tags)
                    checked = len(reply.weight_tags)
                if chunk is not None:
                    yield chunk
        finally:
            await events.aclose()
            if not ended and not self._closed:
                self._spawn_task(self._abort_request(rid))

    def _check_weights(self, loaded: LoadedVersion, tags: Collection[str | None]) -> None:
        """Raise `EngineError` if other weights, which have these tags, gave the tokens of a reply on `loaded`."""

    async def _abort_request(self, rid: str) -> None:
        """Abort a request. SGLang notices a closed connection only at the next token, so a queued one would stay."""
        # If the server is gone, so is the request.
        with contextlib.suppress(EngineError):
            await self.http.call_json("POST", "/abort_request", {"rid": rid}, limit=5.0)

    # Scoring

    async def _score_prompt(
        self, loaded: LoadedVersion, prompt_ids: Ids, response_ids: Ids
    ) -> Logprobs:
        whole = np.concatenate([prompt_ids, response_ids])
        answer = await self._request_scores(
            sglang_api.scoring_body(whole, len(prompt_ids), adapter=loaded.adapter)
        )
        self._check_weights(loaded, {answer.meta_info.weight_version})
        logprobs = sglang_api.prompt_logprobs(answer, response_ids.tolist(), self.http.address)
        return np.array(logprobs, dtype=np.float32)

    async def _score_next_token(
        self, loaded: LoadedVersion, prompt: Ids, token: int, temperature: float
    ) -> float:
        body = sglang_api.next_token_body(prompt, token, temperature, adapter=loaded.adapter)
        answer = await self._request_scores(body)
        self._check_weights(loaded, {answer.meta_info.weight_version})
        return sglang_api.given_token_logprob(answer, token, self.http.address)

    async def _request_scores(self, body: dict[str, Any]) -> sglang_api.SglangAnswer:
        return sglang_api.parse_answer(await self.http.call_json("POST", "/generate", body))

    # Versions

    def _prepare_adapter(self, name: str, file: AdapterFile) -> None:
        ignored = [key for key in _IGNORED_KEYS if file.config.get(key)]
        if ignored:
            raise EngineError(
                f"version {file.ref.version}: SGLang ignores {' and '.join(ignored)} of {file.ref.path} and would "
                "serve other weights than were trained. Train plain LoRA, or serve it with vLLM or the embedded engine"
            )

    async def _loaded_weights_name(self) -> str:
        return full_weights_name(await self.http.call_json("GET", "/model_info"))

    async def _load_full_weights(self, name: str, ref: PolicyRef | None) -> None:
        """See `RemoteEngine`. Flushes the cache too, which SGLang refuses while replies run; none of ours does."""
        path = adapter_file.absolute_path(ref) if ref is not None else self._base_path
        body = {"model_path": path, "weight_version": name or _BASE_TAG, "flush_cache": True}
        try:
            await self.http.post_checked("/update_weights_from_disk", body)
        except RequestRefused as error:
            raise EngineError(f"SGLang cannot load the weights in {path}: {error}") from None


def check_version(version: str, where: str) -> None:
    """Raise `EngineError` if the version is too old."""
    if version_numbers(version) < MIN_VERSION:
        raise EngineError(
            f"{where} is {version or 'of unknown version'}; expected {_format_version(MIN_VERSION)} or newer. "
            f"{FALLBACK_ADVICE}"
        )


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
