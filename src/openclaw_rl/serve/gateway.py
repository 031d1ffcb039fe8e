"""State that all requests share (renderer, engine, versions, writer), and the start of an exchange."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine, Mapping
from dataclasses import fields, replace
from typing import Any

from openclaw_rl.common import message_hash
from openclaw_rl.common.logging_metrics import Metrics
from openclaw_rl.errors import ConfigError, RequestError
from openclaw_rl.protocols import Engine
from openclaw_rl.render.renderer import Rendered, Renderer
from openclaw_rl.serve.chat_request import COLDEST, Ask, Forced, Opening, choice_id
from openclaw_rl.serve.group_commit import Writer
from openclaw_rl.serve.inflight_reply import Serving
from openclaw_rl.serve.previous_response import continued
from openclaw_rl.serve.prompt_builder import Prompts, Recall
from openclaw_rl.serve.structured_output import grammar, no_grammar
from openclaw_rl.serve.version_manager import Versions
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store
from openclaw_rl.types import Capture, Request, Sampling

log = logging.getLogger(__name__)

_ids = random.Random(random.SystemRandom().getrandbits(256))  # ids need to be unique and cheap, not secret

DEFAULT_CONTEXT = 4096  # tokens, if neither the settings nor the model define the context length
_WHOLE_NUMBERS = frozenset({"top_k", "seed", "max_tokens"})


class Gateway:
    """Shared state of all requests."""

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        engine: Engine,
        renderer: Renderer,
        identity: str,
        recall: Recall | None = None,
    ) -> None:
        self.config, self.store, self.engine, self.renderer, self.identity = config, store, engine, renderer, identity
        self.metrics = Metrics()
        self.metrics.running.set_function(self._running)
        self.writer = Writer(store, self.metrics)
        self.versions = Versions(store, engine, cap=config.engine.versions, metrics=self.metrics)
        self.prompts = Prompts(
            renderer,
            secret=store.secret,
            transient=message_hash.Transience(config.serve.transient_patterns),
            recall=recall,
        )
        self.grammar = True  # whether the engine supports grammars; True until the engine has reported it
        self.context_length = config.engine.max_context or renderer.context_length or DEFAULT_CONTEXT
        self._override = check_override(config.serve.sampling_override)
        self.keeper: asyncio.Task[None] | None = None
        self.running = 0  # replies in flight
        self._background: set[asyncio.Task[None]] = set()

    async def begin(self, ask: Ask, scope: str) -> Serving:
        """Render the prompt, choose the version and queue the admission. Raises `RequestError`."""
        return (await self.begin_all(replace(ask, n=1) if ask.n != 1 else ask, scope))[0]

    async def begin_all(self, ask: Ask, scope: str) -> list[Serving]:
        """Begin the request's `n` replies: one prompt and one version for all, and one exchange for each.

        For each reply, the caller iterates `stream_parts` or calls `cancel_unstarted`.
        """
        ask = await continued(ask, scope, self.store)
        version, name = await self._version(ask.model)
        try:
            prompt = await self.prompts.prompt(ask, scope)
            sampling = self._sampling(ask, prompt.rendered)
        except RecursionError:
            self.versions.release(version)
            raise RequestError("messages: nested too deeply.", param="messages") from None
        except BaseException:  # also for a cancellation: the acquired version must be released
            self.versions.release(version)
            raise
        now = time.time()
        session, agent = prompt.history.origin or (None, "")
        request = Request(
            id=f"{ask.id_prefix}{_ids.getrandbits(112):028x}",
            scope=scope,
            agent=ask.agent or agent,
            user=ask.user,
            session=ask.session or session,
            kind=ask.kind,
            capture=Capture(self.config.serve.capture),
            session_done=ask.session_done,
            dialect=ask.dialect,
            messages=ask.messages,
            tools=ask.tools,
            template=ask.template,
            previous=ask.previous,
            marks=prompt.history.marks,
            sampling=sampling,
            prompt_ids=prompt.rendered.prompt_ids,
            version=version,
            identity=self.identity,
            admitted_at=now,
        )
        self.metrics.prompt_tokens.inc(len(request.prompt_ids))
        self.metrics.reused_tokens.inc(prompt.reused)
        prompt_tokens = len(request.prompt_ids)
        opening = Opening(id=request.id, created=int(now), model=name, version=version, prompt=prompt_tokens)
        out = [Serving(self, ask, request, prompt, opening)]
        for number in range(1, ask.n):
            self.versions.take_again(version)
            other = _another(request, number)
            out.append(Serving(self, ask, other, prompt, replace(opening, id=other.id)))
        return out

    async def count(self, ask: Ask, scope: str) -> int:
        """Return the number of tokens of the prompt that `begin_reply` would render. Raises `RequestError`."""
        ask = await continued(ask, scope, self.store)
        version, _ = await self._version(ask.model)
        try:
            return len((await self.prompts.prompt(ask, scope)).rendered.prompt_ids)
        except RecursionError:
            raise RequestError("messages: nested too deeply.", param="messages") from None
        finally:
            self.versions.release(version)

    async def _version(self, model: str) -> tuple[int, str]:
        """Return (a version that the caller releases, the model name for the response). Raises `RequestError` (404)."""
        name = self.config.model.name
        if model in (name, ""):
            return self.versions.take(), name
        base, _, pin = model.partition("@")
        if base == name and pin.isascii() and pin.isdigit() and len(pin) < 10:
            return await self.versions.take_pinned(int(pin)), model
        if self.config.serve.any_model:
            return self.versions.take(), model
        raise RequestError(
            f"the model {model[:80]!r} is not here. Use {name!r} (the newest version, {self.versions.head}) "
            f"or {name}@<version> for an older version; GET /v1/models lists them.",
            param="model",
            code="model_not_found",
            status=404,
        )

    def _sampling(self, ask: Ask, rendered: Rendered) -> Sampling:
        """Return the request's sampling with `max_tokens` limited to the context, and `serve.sampling_override`."""
        prompt = len(rendered.prompt_ids)
        remains = self.context_length - prompt
        if remains < 1:
            raise RequestError(
                f"the prompt is too long: {prompt} tokens > {self.context_length} maximum, including the reply. "
                "Shorten the conversation or start a new one.",
                param="messages",
                code="context_length_exceeded",
            )
        sampling = ask.sampling
        top = self.renderer.vocabulary
        if (unknown := next((i for i in sampling.logit_bias if i >= top), None)) is not None:
            raise RequestError(f"logit_bias: token {unknown} is outside the vocabulary of {top}.", param="logit_bias")
        limit: dict[str, Any] = {"max_tokens": min(sampling.max_tokens or remains, remains)}
        limit["convention"] = self.config.engine.convention
        if ask.forced is not None:
            limit["grammar"] = self._grammar(ask, ask.forced, rendered)
        return replace(sampling, **(limit | self._override))

    def _grammar(self, ask: Ask, forced: Forced, rendered: Rendered) -> str:
        if not self.grammar:
            raise no_grammar("this engine does not support grammars", forced)
        return grammar(forced, ask.tools, self.renderer, thinking=rendered.thinking)

    def _running(self) -> float:
        return self.running

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start background work that may outlive its request."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Wait for the background work, then close the writer."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.to_thread(self.writer.close)


def _another(request: Request, number: int) -> Request:
    """Copy the request as an exchange of its own. A given seed is incremented, or all replies would be the same."""
    sampling = request.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + number + 2**63) % 2**64 - 2**63)
    return replace(request, id=choice_id(request.id, number), sampling=sampling)


def check_override(given: Mapping[str, float]) -> dict[str, Any]:
    """Convert `serve.sampling_override` to `Sampling` fields. A temperature below `MIN_TEMPERATURE` becomes 0.

    Raises `ConfigError` for an unknown field.
    """
    known = {f.name for f in fields(Sampling)} - {"convention", "stop", "logit_bias", "grammar"}
    for name in given:
        if name not in known:
            raise ConfigError(f"serve.sampling_override: {name!r} is not a sampling value; expected {sorted(known)}")
    values: dict[str, Any] = {k: int(v) if k in _WHOLE_NUMBERS else float(v) for k, v in given.items()}
    if values.get("temperature", COLDEST) < COLDEST:
        values["temperature"] = 0.0
    return values
