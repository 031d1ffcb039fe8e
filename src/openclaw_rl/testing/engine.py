"""An engine with scripted replies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from openclaw_rl.common.images.image_prompt import ImagePrompt, image_digest
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.policy_digest import (
    digest_of_folder,
)
from openclaw_rl.errors import EngineError, EngineFull, EngineGone, GrammarError
from openclaw_rl.types import Chunk, Generation, Ids, Logprobs, PolicyRef, StateRequest, States

ReplyScript = Callable[[Sequence[int], int], Sequence[int]]
"""Maps (prompt ids, version) to the token ids of the reply, including the stop token."""


def always_reply(*token_ids: int) -> ReplyScript:
    """Return a script that gives the same reply to every prompt."""
    return lambda prompt, version: token_ids


class ScriptedEngine:
    """`protocols.Engine` without a model.

    `reply`: script of the reply, at least one token; it repeats when it ends. `delay`: seconds before each token.
    `gone_at`: index of the token (0: the first) from which every stream raises `EngineGone` until `revive()`.
    `refuse`: text of the `EngineError` that every generation raises. `load_delay`: seconds that a load takes.
    `grammar`: whether calls with a grammar are accepted; nothing is enforced, so the script must conform.
    `loads` and `calls` record the arguments of each call.
    """

    def __init__(
        self,
        reply: ReplyScript,
        *,
        delay: float = 0.0,
        load_delay: float = 0.0,
        gone_at: int | None = None,
        refuse: str | EngineError | None = None,
        versions: int = 4,
        context_length: int = 4096,
        grammar: bool = True,
    ) -> None:
        self.grammar = grammar
        self.reply = reply
        self.delay = delay
        self.load_delay = load_delay
        self.gone_at = gone_at
        self.refuse = refuse
        self.versions = versions
        self.context_length = context_length
        self.held: set[int] = {0}
        self.running: Counter[int] = Counter()
        self.calls: list[Generation] = []
        self.loads: list[tuple[PolicyRef, ...]] = []

    @staticmethod
    def token_logprob(token: int, version: int, temperature: float = 1.0) -> float:
        """Return the log-probability of a token: a fixed function, so that a test can recognise the value elsewhere."""
        return -(1 + token % 7 + version % 3) / (8 * max(temperature, 0.1))

    def revive(self) -> None:
        """Restart after `gone_at`, with only the base loaded."""
        self.gone_at = None
        self.held = {0}

    def _check_call(self, version: int, length: int) -> None:
        if self.refuse is not None:
            raise self.refuse if isinstance(self.refuse, EngineError) else EngineError(self.refuse)
        if version not in self.held:
            raise EngineError(
                f"version {version} is not loaded; loaded versions: {sorted(self.held)}"
            )
        if length >= self.context_length:
            raise EngineError(
                f"the prompt has {length} tokens; with the reply at most {self.context_length} fit into the context"
            )

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`."""
        self.calls.append(generation)
        version = generation.version
        length = len(generation.prompt_ids)
        self._check_call(version, length)
        if generation.sampling.grammar is not None and not self.grammar:
            raise GrammarError("this engine does not support grammars")
        capacity = self.context_length - length
        limit = min(generation.sampling.max_tokens or capacity, capacity)
        script = list(self.reply(generation.prompt_ids.tolist(), version))
        self.running[version] += 1
        try:
            for n in range(limit):
                await asyncio.sleep(self.delay)
                if self.gone_at is not None and n >= self.gone_at:
                    raise EngineGone("the scripted engine is gone")
                chunk = self._make_chunk(generation, script[n % len(script)], last=n + 1 == limit)
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            self.running[version] -= 1

    def _make_chunk(self, generation: Generation, token: int, *, last: bool) -> Chunk:
        def id_and_logprob(i: int) -> tuple[int, float]:
            return i, self.token_logprob(i, generation.version, generation.sampling.temperature)

        finish: str | None = "length" if last else None
        if token in generation.stop_token_ids:
            finish = "stop"
        top = (
            (tuple(id_and_logprob(token + i) for i in range(generation.top_logprobs)),)
            if generation.top_logprobs
            else ()
        )
        return Chunk(
            token_ids=(token,), logprobs=(id_and_logprob(token)[1],), top=top, finish=finish
        )

    async def score(
        self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> Logprobs:
        """See `protocols.Engine.score`."""
        self._check_call(version, len(prompt_ids) + len(response_ids) - 1)
        return np.array(
            [self.token_logprob(int(i), version, temperature) for i in response_ids],
            dtype=np.float32,
        )

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """See `protocols.Engine.load`."""
        named = {p.version for p in policies}
        draining = {v for v, n in self.running.items() if n} - named
        if len(named | draining) > self.versions:
            raise EngineFull(
                f"{len(named)} versions named and {len(draining)} still answering; at most {self.versions} fit"
            )
        for policy in policies:
            _check_folder(policy)
        await asyncio.sleep(self.load_delay)
        self.loads.append(tuple(policies))
        self.held = named


class ScriptedStateEngine(ScriptedEngine):
    """`protocols.StateEngine` without a model. `read` records the requests.

    The state of a token is a fixed vector of its own in every layer, so the mean over a span says which tokens it has.
    """

    WIDTH: ClassVar = 32

    def __init__(self, reply: ReplyScript, **options: Any) -> None:
        super().__init__(reply, **options)
        self.read: list[StateRequest] = []

    async def read_states(self, request: StateRequest) -> States:
        """See `protocols.StateEngine`."""
        if self.gone_at is not None:
            raise EngineGone("the scripted engine is gone")
        if len(request.ids) > self.context_length:
            raise EngineError(f"the text has {len(request.ids)} tokens")
        self.read.append(request)
        vectors = np.stack(
            [np.random.default_rng(int(token)).normal(size=self.WIDTH) for token in request.ids]
        )
        pooled = np.stack([vectors[start:end].mean(axis=0) for start, end in request.spans])
        return np.repeat(pooled[None], len(request.depths), axis=0).astype(np.float32)


class ScriptedImageEngine(ScriptedEngine):
    """`protocols.ImageEngine` without a model. `rendered` records the conversations.

    A prompt has one token for each character, and `IMAGE_TOKENS` for each image.
    """

    IMAGE_TOKENS: ClassVar = (7, 7, 7, 7)

    def __init__(self, reply: ReplyScript, **options: Any) -> None:
        super().__init__(reply, **options)
        self.rendered: list[ImagePrompt] = []

    async def render_images(self, prompt: ImagePrompt) -> Ids:
        """See `protocols.ImageEngine`."""
        if self.refuse is not None:
            raise self.refuse if isinstance(self.refuse, EngineError) else EngineError(self.refuse)
        self.rendered.append(prompt)
        ids: list[int] = []
        for message in prompt.messages:
            content = message.get("content")
            for part in content if isinstance(content, list) else [content or ""]:
                is_image = image_digest(part) is not None
                ids += (
                    self.IMAGE_TOKENS
                    if is_image
                    else (8 + ord(c) % 64 for c in message_text({"content": [part]}))
                )
        return np.array(ids, dtype=np.int32)


def _check_folder(policy: PolicyRef) -> None:
    if policy.path is None:
        return
    try:
        found = digest_of_folder(policy.path)
    except FileNotFoundError as error:
        raise EngineError(f"version {policy.version}: {error.filename} is missing") from None
    if found != policy.digest:
        raise EngineError(
            f"version {policy.version}: digest of {policy.path} is {found}, expected {policy.digest}"
        )
