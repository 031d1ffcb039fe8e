"""Engine client for vLLM: `/v1/completions` with token ids in and out (docs/decisions/0005-vllm.md).

Conversations with images go to `/v1/chat/completions` (`chat_api.py`), with token ids out.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from openclaw_rl.common.images.image_prompt import ImageGeneration, ImagePrompt
from openclaw_rl.common.large_requests import call_in
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.adapter_file import AdapterFile
from openclaw_rl.engines.remote import chat_api, completions_api
from openclaw_rl.engines.remote.engine import BASE_WEIGHTS, RemoteEngine
from openclaw_rl.engines.remote.http_client import HEALTH_TIMEOUT, HttpClient, RequestRefused
from openclaw_rl.engines.remote.loaded_versions import (
    LoadedVersion,
    adapter_name,
    full_weights_name,
    owner_of,
)
from openclaw_rl.engines.remote.server_process import version_numbers
from openclaw_rl.errors import EngineError, EngineFull
from openclaw_rl.protocols import EngineInfo, OnConnect
from openclaw_rl.settings.load import Config, EngineConfig
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef, Sampling

# Earlier versions ignored rank_pattern and alpha_pattern.
_PATTERNS_MIN_VERSION = (0, 32)
# Of images, from which encoding them would delay other replies.
_ENCODE_IN_THREAD_CHARS = 2**18
_PROBE_GRAMMAR = '%llguidance {}\nstart: "1"'
# Bounds white space between JSON tokens, because a small model may emit nothing else.
_WHITESPACE_PATTERN = re.compile(r'"x-guidance": \{"whitespace_pattern": "[^"]*"\}')
_SEPARATOR_PATTERNS = '"x-guidance": ' + json.dumps(
    {"whitespace_flexible": False, "item_separator": r",( |\n[ ]{0,16})?", "key_separator": ":[ ]?"}
)
_DEV_MODE_ADVICE = (
    "Start it with VLLM_SERVER_DEV_MODE=1 on an address that only this machine reaches"
)


def connect_engine(config: Config, *, on_connect: OnConnect | None = None) -> VllmEngine:
    """Return a client for the server at `engine.url`, or for the one that the engine process started."""
    engine = config.engine
    http = HttpClient("http://vllm", socket=config.engine_socket)
    if engine.url is not None:
        http = HttpClient(engine.url, api_key=engine.api_key)
    home = config.home_dir
    return VllmEngine(
        http, engine, folder=home / "identity", owner=owner_of(home), on_connect=on_connect
    )


class VllmEngine(RemoteEngine):
    """See `RemoteEngine`. `folder`: where the identity adapter for the base is written (see `_prepare_version`)."""

    kind = "vLLM"
    convention_advice = "Start it with --logprobs-mode processed_logprobs. "
    lora_advice = (
        "Start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or let `openclaw-rl` start it "
        "(no engine.url)"
    )
    adapter_routes = "/v1"
    _base_name = ""  # the base model's name on the server
    _context_length = 0
    _device = ""
    _supports_patterns = False  # whether it supports per-module ranks and alphas

    def __init__(
        self,
        http: HttpClient,
        config: EngineConfig,
        *,
        folder: Path,
        owner: str = "",
        on_connect: OnConnect | None = None,
    ) -> None:
        super().__init__(http, config, owner=owner, on_connect=on_connect)
        self._identity_folder = folder
        self._identity_adapter: PolicyRef | None = None
        self._encoded_messages: WeakKeyDictionary[ImagePrompt, msgspec.Raw] = WeakKeyDictionary()
        # Over this connection; unloaded ones may still occupy slots.
        self._loaded_adapters: set[str] = set()

    async def _fetch_info(self) -> EngineInfo:
        self._loaded_adapters.clear()
        cards = model_cards(await self.http.call_json("GET", "/v1/models", limit=HEALTH_TIMEOUT))
        if not cards:
            raise EngineError(
                f"the engine at {self.http.address} lists no models; expected a vLLM server"
            )
        card = next((c for c in cards if not c.get("parent")), cards[0])
        context = card.get("max_model_len")
        if not isinstance(context, int):
            raise EngineError(
                f"the engine at {self.http.address} does not report max_model_len; expected a vLLM server"
            )
        self._context_length = context
        self._base_name = str(card["id"])
        self._base_path = str(card.get("root") or card["id"])
        answer = await self.http.call_json("GET", "/version")
        version = str(answer.get("version", "")) if isinstance(answer, dict) else ""
        self._supports_patterns = version_numbers(version) >= _PATTERNS_MIN_VERSION
        self._device, dtype = await self._device_and_dtype()
        return EngineInfo(
            model=self._base_path,
            context_length=context,
            device=self._device,
            dtype=dtype,
            grammar=await self._supports_grammars(),
            images=await self._reads_images(),
        )

    async def _device_and_dtype(self) -> tuple[str, str]:
        """Return device and dtype; empty outside of the server's development mode, which reports them."""
        try:
            answer = await self.http.call_json(
                "GET", "/server_info", params={"config_format": "json"}
            )
            config = answer["vllm_config"]
            device = config["device_config"]["device"]
            dtype = config["model_config"]["dtype"]
        except (RequestRefused, KeyError, TypeError):
            return "", ""
        return str(device), str(dtype).removeprefix("torch.")

    async def _supports_grammars(self) -> bool:
        """Return whether the server constrains replies by an llguidance grammar; older ones ignore the field."""
        asked = completions_api.request_body(
            self._base_name, [1], Sampling(seed=0)
        ) | _grammar_fields(_PROBE_GRAMMAR)
        try:
            return (await self._request_choice(asked)).text == "1"
        except RequestRefused:
            return False

    async def _reads_images(self) -> bool:
        """Return whether the server renders a conversation with an image; one with a text model refuses it."""
        try:
            return bool(await self._render_chat(chat_api.probe_prompt()))
        except RequestRefused as error:
            if error.blames_request:
                return False
            raise

    async def render_images(self, prompt: ImagePrompt) -> Ids:
        """See `protocols.ImageEngine`. Adapters do not change what is rendered, so the base is asked."""
        await self._ensure_connected()
        return np.array(await self._render_chat(prompt), dtype=np.int32)

    async def _render_chat(self, prompt: ImagePrompt) -> list[int]:
        body = await self._encode_chat(prompt, chat_api.tokenize_fields(self._base_name, prompt))
        return chat_api.rendered_ids(
            await self.http.call_json("POST", chat_api.TOKENIZE_PATH, body)
        )

    async def _encode_chat(self, prompt: ImagePrompt, fields: dict[str, Any]) -> bytes:
        """Return a request with a conversation as JSON. Its messages are encoded once for all replies to it."""
        large = sum(map(len, prompt.images.values())) > _ENCODE_IN_THREAD_CHARS
        messages = self._encoded_messages.get(prompt)
        if messages is None:
            messages = await call_in(chat_api.encode_messages, prompt, in_thread=large)
            self._encoded_messages[prompt] = messages
        return await call_in(chat_api.encode_body, fields, messages, in_thread=large)

    async def _request_choice(self, asked: dict[str, Any]) -> completions_api.CompletionChoice:
        """Return the choice of an answer that is not streamed."""
        return completions_api.single_choice(
            await self.http.call_json("POST", "/v1/completions", asked)
        )

    def _model_name(self, loaded: LoadedVersion) -> str:
        return loaded.adapter or self._base_name

    async def _stream_chunks(
        self, generation: Generation, loaded: LoadedVersion, limit: int
    ) -> AsyncGenerator[Chunk]:
        path, asked, decode = _stream_request(generation, self._model_name(loaded), limit)
        if generation.sampling.grammar is not None:
            asked |= _grammar_fields(generation.sampling.grammar)
        body: dict[str, Any] | bytes = asked
        if isinstance(generation, ImageGeneration):
            body = await self._encode_chat(generation.prompt, asked)
        end = None
        cached = 0
        async with aclosing(self.http.stream_events(path, body)) as raw_events:
            async for together in raw_events:
                events = [decode(raw) for raw in together]
                chunk = completions_api.chunk_from_events(events, generation.top_logprobs)
                if chunk is not None and chunk.finish is None:
                    yield chunk
                end = chunk or end
                if end is not None and end.finish is not None:
                    cached = completions_api.cached_prompt_tokens(events[-1])
        if end is not None and end.finish is not None:
            # The cached token count follows the finish event.
            yield replace(end, cached=cached)

    # Scoring

    async def _score_prompt(
        self, loaded: LoadedVersion, prompt_ids: Ids, response_ids: Ids
    ) -> Logprobs:
        whole = np.concatenate([prompt_ids, response_ids])
        # No space for the one token that a request must sample.
        if len(whole) == self._context_length:
            last = np.array(
                [await self._score_next_token(loaded, whole[:-1], int(whole[-1]), 1.0)],
                dtype=np.float32,
            )
            if len(response_ids) == 1:
                return last
            return np.concatenate(
                [await self._score_prompt(loaded, prompt_ids, response_ids[:-1]), last]
            )
        asked = completions_api.request_body(self._model_name(loaded), whole, Sampling(seed=0)) | {
            "prompt_logprobs": 0
        }
        logprobs = completions_api.prompt_logprobs(
            await self._request_choice(asked), whole, len(prompt_ids)
        )
        return np.array(logprobs, dtype=np.float32)

    async def _score_next_token(
        self, loaded: LoadedVersion, prompt: Ids, token: int, temperature: float
    ) -> float:
        sampling = Sampling(temperature=temperature, seed=0)
        asked = completions_api.request_body(self._model_name(loaded), prompt, sampling)
        choice = await self._request_choice(asked | {"logprob_token_ids": [token]})
        tops = choice.logprobs.top_logprobs if choice.logprobs is not None else []
        logprobs = dict(completions_api.top_alternatives(tops[0] or {})) if tops else {}
        if token not in logprobs:
            raise EngineError(
                f"the vLLM server at {self.http.address} does not score given ids (logprob_token_ids); "
                "it needs a newer version"
            )
        return logprobs[token]

    # Versions

    async def _prepare_version(
        self, loaded: LoadedVersion, beside: Sequence[LoadedVersion]
    ) -> LoadedVersion:
        """Serve the base as an identity adapter if there are other adapters.

        Without a GPU, vLLM applies the adapter of its last slot to rows without one if other rows have an adapter.
        """
        if not loaded.is_plain_base:
            return loaded
        if self._identity_adapter is None:
            first = next((h for h in beside if h.adapter is not None), None)
            if first is None:
                return loaded
            file = await asyncio.to_thread(adapter_file.read_adapter, first.adapter_files)
            self._identity_adapter = await asyncio.to_thread(
                adapter_file.write_identity_adapter, file, self._identity_folder
            )
        return LoadedVersion(
            ref=loaded.ref,
            adapter=adapter_name(self._identity_adapter, self.owner),
            source=self._identity_adapter,
        )

    def _prepare_adapter(self, name: str, file: AdapterFile) -> None:
        patterns = [key for key in ("rank_pattern", "alpha_pattern") if file.config.get(key)]
        ref = file.ref
        if patterns and not self._supports_patterns:
            raise EngineError(
                f"version {ref.version}: this version of vLLM ignores {' and '.join(patterns)} of {ref.path}; "
                f"expected {'.'.join(map(str, _PATTERNS_MIN_VERSION))} or newer"
            )
        takes_last_slot = len(self._loaded_adapters) >= self.config.max_loaded_versions - 1
        if (
            takes_last_slot
            and self._version_table.plain_base_replies
            and self._device in ("cpu", "")
        ):
            raise EngineFull(
                f"version {ref.version} needs the last adapter slot while a reply on the base without an adapter is "
                "still running. Try again when it has ended"
            )
        self._loaded_adapters.add(name)

    async def _loaded_weights_name(self) -> str:
        """Return the tag that `_load_full_weights` set. Without the route we cannot have loaded other weights."""
        try:
            answer = await self.http.call_json("GET", "/weight_info")
        except RequestRefused:
            return BASE_WEIGHTS
        return full_weights_name(answer)

    async def _load_full_weights(self, name: str, ref: PolicyRef | None) -> None:
        path = adapter_file.absolute_path(ref) if ref is not None else self._base_path
        if (
            self._device == "cpu"
            and ref is not None
            and await asyncio.to_thread(_has_tied_head, Path(path))
        ):
            raise EngineError(
                f"version {ref.version}: the output head of {path} is tied to its embeddings, and vLLM without a GPU "
                "does not update such a head. Serve it with a GPU, untie the head, or train LoRA adapters"
            )
        try:
            await self._pause_and_reload(name, path)
        except RequestRefused as error:
            advice = f" {_DEV_MODE_ADVICE}" if "404" in str(error) else ""
            raise EngineError(f"vLLM cannot load the weights in {path}: {error}{advice}") from None

    async def _pause_and_reload(self, name: str, path: str) -> None:
        await self.http.call_json("POST", "/pause", params={"mode": "keep"})
        try:
            # The base needs its path too: without a path, vLLM reloads the last weights.
            asked = {"method": "reload_weights", "kwargs": {"weights_path": path}}
            await self.http.call_json("POST", "/collective_rpc", asked)
            await self.http.call_json("POST", "/reset_prefix_cache")
            await self.http.call_json(
                "POST", "/update_weight_version", {"new_version": name or "base"}
            )
        finally:
            await self.http.call_json("POST", "/resume")


def _stream_request(
    generation: Generation, model: str, limit: int
) -> tuple[str, dict[str, Any], Callable[[bytes], completions_api.CompletionResponse]]:
    """Return path and body of the request for a reply, and the function that decodes its events.

    A chat's body is without its messages.
    """
    if isinstance(generation, ImageGeneration):
        asked = chat_api.streaming_fields(generation, model=model, limit=limit)
        return chat_api.CHAT_PATH, asked, chat_api.ChatEventDecoder(generation.prompt_ids)
    asked = completions_api.streaming_body(generation, model=model, limit=limit)
    return "/v1/completions", asked, completions_api.decode_event


def _has_tied_head(folder: Path) -> bool:
    """Return whether config.json ties the output head to the embeddings."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(config.get("tie_word_embeddings"))


def _grammar_fields(grammar: str) -> dict[str, Any]:
    """Return the request field for a grammar. llguidance 1.7 (vLLM 0.32) repeats `whitespace_pattern` without limit, so
    the separators limit it instead; they allow no white space after an opening or before a closing bracket.
    """
    return {
        "structured_outputs": {
            "grammar": _WHITESPACE_PATTERN.sub(lambda _: _SEPARATOR_PATTERNS, grammar)
        }
    }


def model_cards(listed: Any) -> list[dict[str, Any]]:
    """Return the models in an answer to `/v1/models`, adapters included; empty if it has another shape."""
    cards = listed.get("data") if isinstance(listed, dict) else None
    return [c for c in cards or () if isinstance(c, dict) and isinstance(c.get("id"), str)]
