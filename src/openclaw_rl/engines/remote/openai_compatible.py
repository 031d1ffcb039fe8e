"""Engine client for OpenAI-compatible endpoints. It refuses those that training cannot use.

Training needs token ids in, and the sampled ids with their log-probabilities out, as in vLLM's `/v1/completions`
(`return_token_ids`). Each new connection is probed: a few greedy tokens, then half of them as prompt for the rest.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from openclaw_rl.engines.remote import completions_api, server_process
from openclaw_rl.engines.remote.http_client import (
    HEALTH_TIMEOUT,
    OPENAI_HEALTH,
    HttpClient,
    RequestRefused,
)
from openclaw_rl.engines.remote.loaded_versions import owner_of
from openclaw_rl.engines.remote.vllm import VllmEngine, model_cards
from openclaw_rl.errors import EngineError, EngineGone, NoTokenIds
from openclaw_rl.protocols import EngineInfo, OnConnect
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Sampling

log = logging.getLogger(__name__)

DecodeFunction = Callable[[Sequence[int], bool], str]
"""(ids, skip_special_tokens) -> text"""

# In every vocabulary, and unlikely as the tokenization of a text.
PROBE_PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)
# Tokens that the probe samples.
_PROBE_TOKENS = 6
# Nats by which the log-probability of a token may differ between two calls.
_MAX_LOGPROB_DIFFERENCE = 0.05
_ALTERNATIVES_ADVICE = (
    "Training needs the sampled token ids and their exact log-probabilities. Use this "
    "endpoint as a judge (judge.base_url) or as a teacher (teacher.base_url), and serve the policy with vLLM, SGLang "
    "or the embedded engine (engine.backend)"
)


def check_endpoint(
    config: Config, connect: Callable[[Config], OpenAiEngine], *, wait: float = HEALTH_TIMEOUT
) -> None:
    """Raise `EngineError` if the endpoint to which `connect` returns a client cannot be the policy's engine.

    If it does not answer within `wait` seconds, only log a warning.
    """

    async def ask_info() -> None:
        engine = connect(config)
        try:
            await asyncio.wait_for(engine.info(), wait)
        except (EngineGone, TimeoutError) as error:
            reason = str(error) or f"{engine.http.address} did not answer within {wait:g} s"
            log.warning("%s: whether it can serve the policy is checked once it answers", reason)
        finally:
            await engine.close()

    asyncio.run(ask_info())


class OpenAiEngine(VllmEngine):
    """See `VllmEngine`. Serves the base, and adapters if the endpoint has vLLM's routes for them."""

    kind = "the endpoint"
    convention_advice = "Change it at the endpoint. "

    def __init__(
        self, config: Config, *, on_connect: OnConnect | None = None, http: HttpClient | None = None
    ) -> None:
        if http is None:
            assert config.engine.url is not None, "the settings are validated"
            http = HttpClient(config.engine.url, OPENAI_HEALTH, api_key=config.engine.api_key)
        home = config.home_dir
        folder = home / "identity"
        owner = owner_of(home)
        super().__init__(http, config.engine, folder=folder, owner=owner, on_connect=on_connect)
        self._model_path = config.model.path
        self._base_path = server_process.model_location(config.model.path)
        self._decode_ids = _load_decoder(config.model.path)

    async def _fetch_info(self) -> EngineInfo:
        self._loaded_adapters.clear()
        card = _find_model_card(await self._list_models(), self._model_path, self.http.address)
        context = self.config.max_context or card.get("max_model_len")
        if not isinstance(context, int):
            raise EngineError(
                f"{self.http.address} does not report its context length. Set engine.max_context (tokens)"
            )
        self._base_name = str(card["id"])
        self._context_length = context
        await self._probe_endpoint()
        if not await self._supports_adapters():
            log.warning(
                "%s has no route to load adapters: it serves the base only, and no trained version is served. "
                "Serve the model with vLLM, SGLang or the embedded engine to serve trained versions",
                self.http.address,
            )
        return EngineInfo(model=self._base_name, context_length=context, device="openai", dtype="")

    async def _list_models(self) -> Any:
        try:
            return await self.http.call_json("GET", "/v1/models", limit=HEALTH_TIMEOUT)
        except RequestRefused as error:
            raise EngineError(
                f"{self.http.address} is not an OpenAI-compatible endpoint: {error}"
            ) from None

    async def _probe_endpoint(self) -> None:
        """Raise `EngineError` with reason and advice if the endpoint's replies cannot be trained on exactly."""
        first = await self._probe_completion(PROBE_PROMPT, _PROBE_TOKENS)
        reason = unfit_reason(first, PROBE_PROMPT, self._decode_ids)
        if reason is not None:
            raise self._unfit_error(reason)
        ids, logprobs = sampled_tokens(first)
        half = len(ids) // 2
        if half == 0:
            return
        longer_prompt = (*PROBE_PROMPT, *ids[:half])
        again = await self._probe_completion(longer_prompt, len(ids) - half)
        if unfit_reason(again, longer_prompt, self._decode_ids) or _replies_differ(
            (ids[half:], logprobs[half:]), sampled_tokens(again)
        ):
            raise self._unfit_error(
                "its ids are not what its model read: as a prompt, they continue differently"
            )

    async def _probe_completion(self, prompt: Sequence[int], limit: int) -> Any:
        greedy = Sampling(temperature=0.0, seed=0)
        body = completions_api.request_body(self._base_name, prompt, greedy, limit=limit, top=1)
        try:
            return await self.http.call_json("POST", "/v1/completions", body)
        except RequestRefused as error:
            raise self._unfit_error(
                f"it refuses /v1/completions with a prompt of token ids ({error})"
            ) from None

    def _unfit_error(self, reason: str) -> EngineError:
        return EngineError(
            f"{self.http.address} cannot be the policy's engine: {reason}. {_ALTERNATIVES_ADVICE}."
        )

    async def _supports_adapters(self) -> bool:
        try:
            await self.http.call_json("POST", "/v1/load_lora_adapter", {})
        except RequestRefused as error:
            return not any(f": {status} " in f"{error} " for status in (404, 405, 501))
        return True


def unfit_reason(answer: Any, prompt: Sequence[int], decode: DecodeFunction | None) -> str | None:
    """Return why this answer to `prompt` cannot be trained on, or None."""
    try:
        choice = completions_api.single_choice(answer)
        ids = completions_api.token_ids_of(choice)
    except NoTokenIds:
        ids = []
    except EngineError as error:
        return str(error)
    if not ids:
        return "it returns no token ids"
    logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else []
    if len(logprobs) != len(ids) or not all(map(_is_logprob, logprobs)):
        return f"it returns {len(logprobs)} usable log-probabilities for {len(ids)} tokens"
    return _prompt_mismatch_reason(answer, prompt) or _text_mismatch_reason(
        ids, choice.text, decode
    )


def _is_logprob(value: float | None) -> bool:
    """Return whether a value is finite and, but for rounding, at most 0."""
    return value is not None and math.isfinite(value) and value <= 1e-3


def sampled_tokens(answer: Any) -> tuple[list[int], list[float]]:
    """Return the ids and log-probabilities of an answer that `unfit_reason` accepts."""
    choice = completions_api.single_choice(answer)
    assert choice.logprobs is not None
    return completions_api.token_ids_of(choice), [
        float(lp or 0.0) for lp in choice.logprobs.token_logprobs
    ]


def _text_mismatch_reason(
    ids: Sequence[int], text: str, decode: DecodeFunction | None
) -> str | None:
    if decode is None or not text or _matches_text(ids, text, decode):
        return None
    return "its ids do not decode to its text with the tokenizer of model.path: another model, or it re-tokenises"


def _prompt_mismatch_reason(answer: Mapping[str, Any], prompt: Sequence[int]) -> str | None:
    choice = answer["choices"][0]
    read = choice.get("prompt_token_ids", answer.get("prompt_token_ids"))
    if read is not None:
        if list(read) == list(prompt):
            return None
        return "it re-tokenises the prompt: it read other ids than were sent"
    count = (answer.get("usage") or {}).get("prompt_tokens")
    if count != len(prompt):
        return f"it does not report which ids it read, and counts {count} prompt tokens where {len(prompt)} were sent"
    return None


def _matches_text(ids: Sequence[int], text: str, decode: DecodeFunction) -> bool:
    return any(
        _normalize_text(decode(ids, skip)) == _normalize_text(text) for skip in (False, True)
    )


def _normalize_text(text: str) -> str:
    """Remove cut characters, and white space at the ends, which some tokenizers drop."""
    return text.replace("�", "").strip()


def _replies_differ(
    one: tuple[Sequence[int], Sequence[float]], two: tuple[Sequence[int], Sequence[float]]
) -> bool:
    """Return whether two greedy replies differ, other than by a choice between equally likely tokens."""
    for a, b, p, q in zip(*one[:1], *two[:1], *one[1:], *two[1:], strict=False):
        if abs(p - q) > _MAX_LOGPROB_DIFFERENCE:
            return True
        if a != b:
            return False
    return len(one[0]) != len(two[0])


def _find_model_card(listed: Any, model: str, where: str) -> dict[str, Any]:
    """Return the entry of the model named in the settings, or the only entry that is not an adapter."""
    cards = [card for card in model_cards(listed) if not card.get("parent")]
    matches = [card for card in cards if card["id"] in (model, Path(model).name)]
    candidates = matches or cards
    if len(candidates) == 1:
        return candidates[0]
    served = ", ".join(sorted(card["id"] for card in cards)[:10]) or "none"
    raise EngineError(
        f"{where} serves these models: {served}. Set model.path, or its last part, to one of them"
    )


def _load_decoder(model: str) -> DecodeFunction | None:
    """Return a decode function for the model's tokenizer, or None if the files are not on this machine."""
    file = Path(server_process.model_location(model)) / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer: Any = Tokenizer.from_file(str(file))
    return lambda ids, skip: str(tokenizer.decode(list(ids), skip_special_tokens=skip))
