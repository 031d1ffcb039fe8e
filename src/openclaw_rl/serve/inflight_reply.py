"""One exchange in flight: stream its reply, and record how it ends.

Guarantees: the request is on disk before the first byte of the response is sent, and the complete exchange before the
finish is sent. In every case (client disconnect, engine failure, full disk), the exchange ends in the store as DONE,
CANCELLED or FAILED, with the tokens that were sampled until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from openclaw_rl.errors import EngineError, EngineGone, GrammarError, RequestError
from openclaw_rl.serve.chat_request import Ask, End, Opening, Part, ReplyFailed
from openclaw_rl.serve.prompt_builder import Prompt
from openclaw_rl.serve.reply_accumulator import Record
from openclaw_rl.serve.structured_output import no_grammar
from openclaw_rl.types import Chunk, ExchangeStatus, Generation, Request

if TYPE_CHECKING:
    from openclaw_rl.serve.gateway import Gateway

log = logging.getLogger(__name__)

PATIENCE = 0.002  # seconds that an admission may wait to share a transaction


class Serving:
    """One exchange in flight."""

    def __init__(self, gateway: Gateway, ask: Ask, request: Request, prompt: Prompt, opening: Opening) -> None:
        self._gateway, self._ask, self._request, self._prompt = gateway, ask, request, prompt
        self.opening = opening
        self._version, self._pinned = request.version, opening.model.startswith(gateway.config.model.name + "@")
        text = gateway.renderer.reply_text(
            thinking=prompt.rendered.thinking, tools=ask.tools, stops=request.sampling.stop
        )
        self.record = Record(
            request, text, gateway.renderer, logprobs=ask.logprobs, one_call=bool(ask.tools) and not ask.parallel_calls
        )
        # A response that is not streamed is sent after the end is durable, so admission and end may share a transaction
        self._admitted = gateway.writer.put(request, patience=0.0 if ask.stream else PATIENCE)
        self._settled = self._counted = self._begun = False
        self.leaving = "the client closed the connection"  # the reason to record if the reply is cancelled

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message delivered so far."""
        return self.record.text.parser.message()

    async def parts(self) -> AsyncGenerator[Part]:
        """Yield the parts for the client. The last part has `end` and comes when the exchange is durable.

        Raises `ReplyFailed`, and `RequestError` if the engine refuses the grammar. Closing the iterator cancels the
        generation.
        """
        gateway = self._gateway
        part, self._begun = Part(), True
        gateway.running += 1
        try:
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    part = self.record.take(chunk)
                    if self.record.finish is not None:
                        break
                    if part.delta or part.tokens:
                        yield part
            yield await self._finished(part)
        except (asyncio.CancelledError, GeneratorExit):
            # If settled, the reply is complete and queued for writing.
            self._count(self.record.finish.value if self._settled and self.record.finish else "cancelled")
            self._end_in_background(ExchangeStatus.CANCELLED, self.leaving)
            raise
        except (ReplyFailed, RequestError) as error:
            await self._failed(str(error))
            raise
        except Exception as error:  # any error: the exchange must not stay RUNNING
            self._end_in_background(ExchangeStatus.FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            gateway.running -= 1
            gateway.versions.release(self._version)

    def abandon(self) -> None:
        """Cancel the reply if `stream_parts` was never iterated."""
        if not self._begun:
            self._begun = True
            self._count("cancelled")
            self._end_in_background(ExchangeStatus.CANCELLED, self.leaving)
            self._gateway.versions.release(self._version)

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the engine's chunks. Before the first token, retry a failure for up to `serve.engine_wait` seconds."""
        loop, gateway = asyncio.get_running_loop(), self._gateway
        deadline = loop.time() + gateway.config.serve.engine_wait
        refusals = 0
        while True:
            if not gateway.versions.is_loaded(self._version):
                await self._durable()
                self._version = await gateway.versions.ready(self._version, deadline, pinned=self._pinned)
                self.opening = replace(self.opening, version=self._version)
            try:
                async with aclosing(self._generate()) as chunks:
                    async for chunk in chunks:
                        if self._ask.stream and self.record.first_token_at is None:
                            await self._durable()  # without streaming, nothing is sent before `_finish_reply`
                        yield chunk
                return
            except EngineError as error:
                refusals += not isinstance(error, EngineGone)
                self._check_retry(error, refusals)
                gateway.versions.lost(str(error))

    def _check_retry(self, error: EngineError, refusals: int) -> None:
        """Raise `ReplyFailed` (or `RequestError` for a grammar) unless the generation may be restarted."""
        if isinstance(error, GrammarError):
            assert self._ask.forced is not None, "there is no grammar otherwise"
            raise no_grammar(str(error), self._ask.forced) from None
        if self.record.ids and isinstance(error, EngineGone):
            message = f"the engine disconnected during the reply ({error})"
            raise ReplyFailed(message, status=503, code="engine_gone") from error
        if self.record.ids or refusals > 1:
            raise ReplyFailed(f"the engine refused: {error}", status=500, code="engine_error") from error

    def _generate(self) -> Any:
        request = self._request
        return self._gateway.engine.generate(
            Generation(
                id=request.id,
                version=self._version,
                prompt_ids=request.prompt_ids,
                sampling=request.sampling,
                stop_token_ids=self._gateway.renderer.stop_token_ids,
                top_logprobs=self._ask.top_logprobs,
            )
        )

    async def _durable(self) -> None:
        """Wait until the request is durable. Raises `ReplyFailed` if the store refused it."""
        if self._admitted.done() and self._admitted.exception() is None:
            return
        try:
            await asyncio.shield(self._admitted)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of the store or the disk: report it to the client
            self._settled = True  # there is no row to finish
            raise _not_recorded(error) from error

    async def _finished(self, part: Part) -> Part:
        """Record the complete exchange, and return the last part once it is on disk."""
        gateway, request, record = self._gateway, self._request, self.record
        if record.finish is None:
            raise ReplyFailed("the engine ended the reply without a finish reason", status=500, code="engine_error")
        mark = gateway.prompts.mark_reply(self._prompt.history, self.message, len(request.messages))
        reply = record.reply(ExchangeStatus.DONE, self.message, self._version, mark=mark, error=None)
        if not np.isfinite(reply.logprobs).all():
            message = "the engine returned log-probabilities that are not finite numbers; the reply does not count"
            raise ReplyFailed(message, status=500, code="engine_error")
        self._settled = True
        done = gateway.writer.put(reply)
        await self._durable()
        try:
            await done
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of the store or the disk: report it to the client
            raise _not_recorded(error) from error
        if record.bridgeable:
            gateway.prompts.remember(self._prompt.history, mark, request, reply)
        self._count(record.finish.value)
        self._measure(reply.finished_at)
        return replace(part, end=End(reason=record.finish, usage=record.usage(), stop=record.stop()))

    def _count(self, outcome: str) -> None:
        """Count a finished or cancelled exchange once. The HTTP handlers count failed ones."""
        if not self._counted:
            self._counted = True
            self._gateway.metrics.replies.labels(route=self._ask.dialect, outcome=outcome).inc()

    def _measure(self, finished_at: float) -> None:
        metrics, record = self._gateway.metrics, self.record
        metrics.response_tokens.inc(len(record.ids))
        metrics.cached_tokens.inc(record.cached)
        metrics.duration.observe(finished_at - self._request.admitted_at)
        if record.first_token_at is not None:
            metrics.first_token.observe(record.first_token_at - self._request.admitted_at)

    def _end_in_background(self, status: ExchangeStatus, error: str) -> None:
        if not self._settled:
            self._gateway.spawn(self._ended(status, error))

    async def _failed(self, error: str) -> None:
        if not self._settled:
            await asyncio.shield(self._ended(ExchangeStatus.FAILED, error))

    async def _ended(self, status: ExchangeStatus, error: str) -> None:
        """Record an end with a status other than DONE."""
        self._settled = True
        message = self.message
        mark = self._gateway.prompts.mark_reply(self._prompt.history, message, len(self._request.messages))
        try:
            await self._admitted
            await self._gateway.writer.put(self.record.reply(status, message, self._version, mark=mark, error=error))
        except Exception as failure:  # no client is waiting any more; the next start marks the exchange FAILED
            log.exception("exchange %s could not be recorded as %s: %s", self._request.id, status.value, failure)


def _not_recorded(error: Exception) -> ReplyFailed:
    return ReplyFailed(
        f"the exchange could not be made durable, so it does not count: {error}", status=500, code="not_durable"
    )
