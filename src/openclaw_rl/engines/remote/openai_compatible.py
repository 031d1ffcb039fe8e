"""Any OpenAI-compatible endpoint as the policy's engine, if it gives what training needs; refused with the reason else.

Needed are token ids in, and the sampled ids with their log-probabilities out, as vLLM's `/v1/completions` has them
(`return_token_ids`). A probe finds out at every connection: a few greedy tokens, and their continuation by ids.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from openclaw_rl.engines.base import Info, OnConnect
from openclaw_rl.engines.remote import completions_api, server_process
from openclaw_rl.engines.remote.http_client import ANSWER, Http
from openclaw_rl.engines.remote.loaded_versions import owner_of
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Sampling

log = logging.getLogger(__name__)

Decode = Callable[[Sequence[int], bool], str]
"""(ids, whether special tokens are left out) -> text"""

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)  # ids that every vocabulary has, and that hardly a tokenizer would choose
_TOKENS = 6  # of the probe
_NEAR = 0.05  # nats by which the same token may differ between two calls
_INSTEAD = (
    "Without the sampled tokens as ids and with their log-probabilities there is nothing exact to train on. Use this "
    "endpoint as a judge (judge.base_url) or as a teacher (teacher.base_url), and serve the policy with vLLM, SGLang "
    "or the embedded engine (engine.backend)"
)


class Endpoint(Http):
    """`Http` for servers that have no `/health`."""

    async def alive(self, path: str = "/v1/models") -> None:
        """A sign of life. Raises `EngineGone`."""
        await super().alive(path)


def connect(config: Config, *, on_connect: OnConnect | None = None) -> OpenAiEngine:
    """The client of the endpoint at `engine.url`."""
    return OpenAiEngine(config, on_connect=on_connect)


def check(config: Config, *, wait: float = ANSWER) -> None:
    """Raises `EngineError` when the endpoint cannot be the policy's engine.

    One that is down, or does not answer within `wait` seconds, is not judged.
    """

    async def ask() -> None:
        engine = connect(config)
        try:
            await asyncio.wait_for(engine.info(), wait)
        except (EngineGone, TimeoutError) as error:
            why = str(error) or f"{engine.http.where} gives no answer within {wait:g} s"
            log.warning("%s: whether it can serve the policy is seen when it answers", why)
        finally:
            await engine.close()

    asyncio.run(ask())


class OpenAiEngine(VllmEngine):
    """See `VllmEngine`. It holds the base, and adapters where the endpoint has vLLM's routes for them."""

    kind = "the endpoint"
    convention_advice = "Change that there. "

    def __init__(self, config: Config, *, on_connect: OnConnect | None = None) -> None:
        assert config.engine.url is not None, "the settings are checked"
        http, home = Endpoint(config.engine.url, api_key=config.engine.api_key), config.home_dir
        folder, owner = home / "identity", owner_of(home)
        super().__init__(http, config.engine, folder=folder, owner=owner, on_connect=on_connect)
        self._model = config.model.path
        self._base_path = server_process.location(config.model.path)
        self._decode = _decoder(config.model.path)

    async def _hello(self) -> Info:
        self._added.clear()
        card = _card(await self._models(), self._model, self.http.where)
        context = self.config.max_context or card.get("max_model_len")
        if not isinstance(context, int):
            raise EngineError(
                f"{self.http.where} does not say how long its context is. Set engine.max_context (tokens)"
            )
        self._base, self._context = str(card["id"]), context
        await self._probe()
        if not await self._takes_adapters():
            log.warning(
                "%s has no route to load adapters: it answers with the base only, and what is learned is not served. "
                "Serve the model with vLLM, SGLang or the embedded engine to see it learn",
                self.http.where,
            )
        return Info(
            model=self._base,
            context_length=context,
            vocab_size=0,
            versions=(0,),
            device="openai",
            dtype="",
            running=0,
            waiting=0,
        )

    async def _models(self) -> Any:
        try:
            return await self.http.call("GET", "/v1/models", limit=ANSWER)
        except EngineGone:
            raise
        except EngineError as error:
            raise EngineError(f"{self.http.where} is no OpenAI-compatible endpoint: {error}") from None

    async def _probe(self) -> None:
        """Raises `EngineError` with the reason and what to do when exact training is not possible here."""
        first = await self._asked(PROMPT, _TOKENS)
        if (why := fault(first, PROMPT, self._decode)) is not None:
            raise self._unfit(why)
        ids, logprobs = sampled(first)
        half = len(ids) // 2
        if half == 0:
            return
        again = await self._asked((*PROMPT, *ids[:half]), len(ids) - half)
        if fault(again, (*PROMPT, *ids[:half]), self._decode) or _differ((ids[half:], logprobs[half:]), sampled(again)):
            raise self._unfit("its ids are not what its model read: continued by them, its reply becomes another one")

    async def _asked(self, prompt: Sequence[int], limit: int) -> Any:
        greedy = Sampling(temperature=0.0, seed=0)
        body = completions_api.body(model=self._base, prompt=prompt, sampling=greedy, limit=limit, stop=(), top=1)
        try:
            return await self.http.call("POST", "/v1/completions", body)
        except EngineGone:
            raise
        except EngineError as error:
            raise self._unfit(f"it refuses /v1/completions with token ids as the prompt ({error})") from None

    def _unfit(self, why: str) -> EngineError:
        return EngineError(f"{self.http.where} cannot be the policy's engine: {why}. {_INSTEAD}.")

    async def _takes_adapters(self) -> bool:
        try:
            await self.http.call("POST", "/v1/load_lora_adapter", {})
        except EngineGone:
            raise
        except EngineError as error:
            return not any(f": {status} " in f"{error} " for status in (404, 405, 501))
        return True


def fault(answer: Any, prompt: Sequence[int], decode: Decode | None) -> str | None:
    """Why this answer to `prompt` is none to train on, in words; None: it is sound."""
    try:
        choice = completions_api.choice_of(answer)
        ids = completions_api.ids_of(choice)
    except EngineError as error:
        return "it returns no token ids" if "token ids" in str(error) else str(error)
    if not ids:
        return "it returns no token ids"
    logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else []
    if len(logprobs) != len(ids) or any(lp is None or not math.isfinite(lp) or lp > 1e-3 for lp in logprobs):
        return f"it returns {len(logprobs)} usable log-probabilities for {len(ids)} tokens"
    if (why := _prompt_fault(answer, prompt)) is not None:
        return why
    if decode is not None and choice.text and not _spells(ids, choice.text, decode):
        return "its ids do not spell its text in the tokenizer of model.path: another model, or it re-tokenises"
    return None


def sampled(answer: Any) -> tuple[list[int], list[float]]:
    """The ids and log-probabilities of an answer without `fault`."""
    choice = completions_api.choice_of(answer)
    assert choice.logprobs is not None
    return completions_api.ids_of(choice), [float(lp or 0.0) for lp in choice.logprobs.token_logprobs]


def _prompt_fault(answer: Mapping[str, Any], prompt: Sequence[int]) -> str | None:
    choice = answer["choices"][0]
    read = choice.get("prompt_token_ids", answer.get("prompt_token_ids"))
    if read is not None:
        return None if list(read) == list(prompt) else "it re-tokenises the prompt: it read other ids than were sent"
    count = (answer.get("usage") or {}).get("prompt_tokens")
    if count != len(prompt):
        return f"it does not say which ids it read, and counts {count} prompt tokens where {len(prompt)} were sent"
    return None


def _spells(ids: Sequence[int], text: str, decode: Decode) -> bool:
    return any(_letters(decode(ids, skip)) == _letters(text) for skip in (False, True))


def _letters(text: str) -> str:
    """What is left when characters that were cut, and the space at the edge that some tokenizers drop, do not count."""
    return text.replace("�", "").strip()


def _differ(one: tuple[Sequence[int], Sequence[float]], two: tuple[Sequence[int], Sequence[float]]) -> bool:
    """Whether two greedy replies part; between equally likely tokens they may."""
    for a, b, p, q in zip(*one[:1], *two[:1], *one[1:], *two[1:], strict=False):
        if abs(p - q) > _NEAR:
            return True
        if a != b:
            return False
    return len(one[0]) != len(two[0])


def _card(listed: Any, model: str, where: str) -> dict[str, Any]:
    """The entry of the model that is meant: of the name in the settings, or the only one that is no adapter."""
    found = listed.get("data") if isinstance(listed, dict) else None
    cards = [c for c in found or () if isinstance(c, dict) and isinstance(c.get("id"), str) and not c.get("parent")]
    named = [c for c in cards if c["id"] in (model, Path(model).name)]
    if len(chosen := named or cards) == 1:
        return chosen[0]
    there = ", ".join(sorted(c["id"] for c in cards)[:10]) or "none"
    raise EngineError(f"{where} serves these models: {there}. Name one of them: model.path, or its folder's last part")


def _decoder(model: str) -> Decode | None:
    """The tokenizer beside the model's files; None where they are not on this machine."""
    file = Path(server_process.location(model)) / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer: Any = Tokenizer.from_file(str(file))
    return lambda ids, skip: str(tokenizer.decode(list(ids), skip_special_tokens=skip))
