"""Ask a version questions with known answers, with lessons in the prompt. The replies are not stored."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from openclaw_rl.examination.probe_set import Probe
from openclaw_rl.protocols import Engine
from openclaw_rl.render.hint import lessons_hint, with_hint
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.versions.version_manager import VersionManager
from openclaw_rl.types import Convention, Generation, Ids, Message, Sampling

ANSWER_TOKENS = 32
"""Limit of an answer. A right one ends where it has said what was asked."""
LOAD_WAIT = 60.0
"""Seconds that a version may take to be loaded."""
_THINKING = "enable_thinking"


class ProbeAsker:
    """Asks questions greedily, a few at once."""

    def __init__(
        self,
        engine: Engine,
        versions: VersionManager,
        renderer: Renderer,
        *,
        convention: Convention,
        at_once: int,
    ) -> None:
        """`at_once`: questions in one call of `request`."""
        self._engine = engine
        self._versions = versions
        self._renderer = renderer
        self._convention: Convention = convention
        self.at_once = at_once
        # Reasoning would take all tokens of an answer.
        self._variables: dict[str, Any] = (
            {_THINKING: False} if _THINKING in renderer.template.names else {}
        )

    async def ask(
        self,
        version: int,
        probes: Sequence[Probe],
        texts: Sequence[str],
        is_stopped: Callable[[], bool],
    ) -> list[str] | None:
        """Return the answers in order; None if `is_stopped` became true meanwhile.

        `texts`: of the lessons in the prompt. Raises `EngineError`, and `RequestError` or `ReplyFailed` for a version
        that cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        acquired = await self._versions.acquire_version(version, for_gate=True)
        try:
            await self._versions.wait_loaded(acquired, loop.time() + LOAD_WAIT, pinned=True)
            return await _run_all(
                [self._answer(version, probe, texts, is_stopped) for probe in probes]
            )
        except _Stopped:
            return None
        finally:
            self._versions.release(acquired)

    async def _answer(
        self, version: int, probe: Probe, texts: Sequence[str], is_stopped: Callable[[], bool]
    ) -> str:
        """Return the answer to one question, up to the token after it is right."""
        generation = Generation(
            id=f"lesson-{secrets.token_hex(8)}",
            version=version,
            prompt_ids=self._render(probe, texts),
            sampling=Sampling(
                temperature=0.0, max_tokens=ANSWER_TOKENS, seed=0, convention=self._convention
            ),
            stop_token_ids=self._renderer.stop_token_ids,
            background=True,
        )
        ids: list[int] = []
        answer = ""
        was_correct = False
        async with aclosing(self._engine.generate(generation)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                if is_stopped():
                    raise _Stopped
                ids += chunk.token_ids
                answer = self._renderer.tokenizer.backend.decode(ids, skip_special_tokens=True)
                is_correct = probe.is_correct(answer)
                # The next token may continue the word, as in "50".
                if is_correct and was_correct:
                    break
                was_correct = is_correct
        return answer.strip()

    def _render(self, probe: Probe, texts: Sequence[str]) -> Ids:
        messages: list[Message] = [{"role": "user", "content": probe.question}]
        if texts:
            messages = with_hint(
                messages, lessons_hint(texts), lambda message: False, self._renderer.hint_format
            )
        return self._renderer.render(messages, variables=self._variables).prompt_ids


async def _run_all(answers: Sequence[Coroutine[Any, Any, str]]) -> list[str]:
    """Return the answers in order. If one fails, the others are cancelled."""
    tasks = [asyncio.create_task(answer) for answer in answers]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        # Re-raised: also a cancellation has to cancel the other answers.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class _Stopped(Exception):
    """A person waits for a reply, and this question may wait."""
