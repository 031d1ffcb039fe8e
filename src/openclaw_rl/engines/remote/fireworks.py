"""Engine client for the Fireworks service. It serves a base and the versions that were uploaded, and loads none itself.

Each new connection is probed like any OpenAI-compatible endpoint: an endpoint whose ids or log-probabilities are not
exact is refused. A version is the model that `openclaw-rl fireworks deploy` uploaded, found by version and digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import numpy as np

from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.remote import completions_api, fireworks_api
from openclaw_rl.engines.remote.engine import BASE_WEIGHTS
from openclaw_rl.engines.remote.http_client import OPENAI_HEALTH, HttpClient, RequestRefused
from openclaw_rl.engines.remote.loaded_versions import LoadedVersion, VersionTable, adapter_name
from openclaw_rl.engines.remote.openai_compatible import PROBE_PROMPT, OpenAiEngine
from openclaw_rl.errors import EngineError
from openclaw_rl.protocols import EngineInfo, OnConnect
from openclaw_rl.settings.load import Config, FireworksConfig
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef, Sampling

DEPLOY_COMMAND = "openclaw-rl fireworks deploy"


def http_client(config: Config) -> HttpClient:
    """Return a client for the inference API."""
    url = f"{config.fireworks.url.rstrip('/')}/inference"
    key = config.fireworks.api_key
    return HttpClient(
        url, OPENAI_HEALTH, api_key=key, key_setting="fireworks.api_key (FIREWORKS_API_KEY)"
    )


def served_name(fireworks: FireworksConfig, model: str) -> str:
    """Return the name of a model in requests: on the deployment of the settings, or serverless."""
    if fireworks.deployment is None:
        return model
    return f"{model}#accounts/{fireworks.account}/deployments/{fireworks.deployment}"


def version_model(fireworks: FireworksConfig, ref: PolicyRef) -> str:
    """Return the resource name of an uploaded version. It has version and digest, so its content never changes."""
    return f"accounts/{fireworks.account}/models/{adapter_name(ref)}"


class FireworksEngine(OpenAiEngine):
    """See `OpenAiEngine`. Log-probabilities are raw, so only replies at temperature 1 are trained on."""

    kind = "Fireworks"
    convention_advice = ""
    health_interval = 30.0

    def __init__(self, config: Config, *, on_connect: OnConnect | None = None) -> None:
        super().__init__(config, on_connect=on_connect, http=http_client(config))
        self._fireworks = config.fireworks

    async def _fetch_info(self) -> EngineInfo:
        assert self._fireworks.base_model is not None, "the settings are validated"
        assert self.config.max_context is not None, "the settings are validated"
        self._base_name = served_name(self._fireworks, self._fireworks.base_model)
        self._context_length = self.config.max_context
        await self._probe_endpoint()
        return EngineInfo(
            model=self._base_name,
            context_length=self._context_length,
            device="fireworks",
            dtype="",
            grammar=False,
        )

    async def _probe_completion(self, prompt: Sequence[int], limit: int) -> Any:
        greedy = Sampling(temperature=0.0, seed=0)
        body = fireworks_api.request_body(self._base_name, prompt, greedy, limit=limit, top=1)
        try:
            answer = await self.http.call_json(
                "POST", "/v1/completions", body | {"raw_output": True}
            )
        except RequestRefused as error:
            if not error.blames_request:
                raise
            raise self._unfit_error(
                f"it refuses a prompt of token ids for {self._base_name} ({error})"
            ) from None
        plain_answer = _plain_answer(answer)
        try:
            grammar = fireworks_api.forced_grammar(answer)
        except msgspec.ValidationError as error:
            raise self._unfit_error(
                f"its answer has another shape than documented ({error})"
            ) from None
        if grammar is not None:
            raise self._unfit_error(
                "it forces a grammar on replies, so that they are not sampled from the model"
            )
        return plain_answer

    def _model_name(self, loaded: LoadedVersion) -> str:
        if loaded.is_plain_base:
            return self._base_name
        return served_name(self._fireworks, version_model(self._fireworks, loaded.ref))

    async def _stream_chunks(
        self, generation: Generation, loaded: LoadedVersion, limit: int
    ) -> AsyncGenerator[Chunk]:
        fireworks_api.check_sampling(generation.sampling, generation.top_logprobs)
        asked = fireworks_api.request_body(
            self._model_name(loaded),
            generation.prompt_ids,
            generation.sampling,
            limit=limit,
            top=generation.top_logprobs,
        )
        async with aclosing(
            self.http.stream_events("/v1/completions", asked | {"stream": True})
        ) as raw_events:
            async for together in raw_events:
                events = [fireworks_api.decode_event(raw) for raw in together]
                chunk = completions_api.chunk_from_events(events, generation.top_logprobs)
                if chunk is None:
                    continue
                chunk = fireworks_api.stop_at_token(chunk, generation.stop_token_ids)
                yield chunk
                if chunk.finish is not None:
                    return

    async def _score_prompt(
        self, loaded: LoadedVersion, prompt_ids: Ids, response_ids: Ids
    ) -> Logprobs:
        whole = np.concatenate([prompt_ids, response_ids])
        if len(whole) >= self._context_length:
            raise EngineError(
                f"{len(whole)} tokens cannot be scored at Fireworks: the context is {self._context_length}, and a "
                "request samples at least one"
            )
        asked = fireworks_api.request_body(self._model_name(loaded), whole, Sampling(seed=0))
        answer = await self.http.call_json(
            "POST", "/v1/completions", asked | {"echo_last": len(response_ids)}
        )
        return np.array(
            fireworks_api.echoed_logprobs(_plain_answer(answer), response_ids), dtype=np.float32
        )

    async def _score_next_token(
        self, loaded: LoadedVersion, prompt: Ids, token: int, temperature: float
    ) -> float:
        raise EngineError(
            f"Fireworks returns raw log-probabilities, so it scores at temperature 1, not {temperature:g}"
        )

    # Versions

    async def _prepare_version(
        self, loaded: LoadedVersion, beside: Sequence[LoadedVersion]
    ) -> LoadedVersion:
        return loaded

    async def _load_adapter(self, name: str, ref: PolicyRef) -> None:
        """Check that the service serves the version. Raises `EngineError` if it was not uploaded and loaded there."""
        await asyncio.to_thread(adapter_file.read_adapter, ref)
        model = served_name(self._fireworks, version_model(self._fireworks, ref))
        asked = fireworks_api.request_body(model, PROBE_PROMPT, Sampling(temperature=0.0, seed=0))
        try:
            await self.http.call_json("POST", "/v1/completions", asked)
        except RequestRefused as error:
            if not error.blames_request:
                raise
            raise EngineError(
                f"version {ref.version}: Fireworks does not serve {model} ({error}). Upload it with `{DEPLOY_COMMAND} "
                f"--policy {ref.version}`; the version before answers until then"
            ) from None

    async def _discard_adapters(self, table: VersionTable, names: Sequence[str]) -> None:
        """Forget the versions; at the service they stay loaded until their owner unloads them."""
        table.adapters.difference_update(names)

    async def _load_full_weights(self, name: str, ref: PolicyRef | None) -> None:
        raise EngineError(
            "Fireworks serves LoRA adapters of this home, and no whole weights. Set train.finetune to lora"
        )

    async def _loaded_weights_name(self) -> str:
        return BASE_WEIGHTS


def _plain_answer(answer: Any) -> Any:
    """Return a whole answer in the shape of vLLM, with the prompt ids that the service read."""
    decoded = msgspec.to_builtins(fireworks_api.decode_event(msgspec.json.encode(answer)))
    for choice, raw_choice in zip(decoded["choices"], answer.get("choices", ()), strict=True):
        if raw_choice.get("prompt_token_ids") is not None:
            choice["prompt_token_ids"] = raw_choice["prompt_token_ids"]
    return decoded
