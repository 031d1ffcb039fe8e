"""One exchange in flight: stream its reply, and record how it ends.

Guarantees: the request is on disk before the first byte of the response is sent, and the complete exchange before the
finish is sent. In every case (client disconnect, engine failure, full disk), the exchange ends in the store as DONE,
CANCELLED or FAILED, with the tokens that were sampled until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from openclaw_rl.common.images.image_prompt import ImageGeneration
from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.errors import (
    DiskFull,
    EngineError,
    EngineGone,
    GrammarError,
    RequestError,
    SamplingUnsupported,
)
from openclaw_rl.protocols import Engine
from openclaw_rl.render.chat_template import content_text
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.chat_request import (
    DISK_FULL,
    ChatRequest,
    ReplyEnd,
    ReplyFailed,
    ReplyHeader,
    StreamPart,
)
from openclaw_rl.serve.episodes.open_episodes import OpenEpisodes
from openclaw_rl.serve.group_commit import GroupCommitWriter
from openclaw_rl.serve.prompt_builder import BuiltPrompt, PromptBuilder
from openclaw_rl.serve.reply_accumulator import ReplyAccumulator
from openclaw_rl.serve.structured_output import grammar_error
from openclaw_rl.serve.versions.version_manager import VersionManager
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Capture, Chunk, ExchangeStatus, Generation, Request

log = logging.getLogger(__name__)

# Seconds that the error of a failed reply waits until its end is recorded.
MAX_RECORD_WAIT = 2.0
# Seconds that an admission may wait to share a transaction.
MAX_COMMIT_DELAY = 0.002


class ReplyContext(Protocol):
    """Shared state of a gateway's replies."""

    config: Config
    engine: Engine
    renderer: Renderer
    metrics: GatewayMetrics
    writer: GroupCommitWriter
    versions: VersionManager
    episodes: OpenEpisodes
    prompt_builder: PromptBuilder
    running_replies: int

    def spawn_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start background work that may outlive its request."""


class InflightReply:
    """One exchange in flight."""

    def __init__(
        self,
        context: ReplyContext,
        ask: ChatRequest,
        request: Request,
        prompt: BuiltPrompt,
        header: ReplyHeader,
    ) -> None:
        self._context = context
        self._ask = ask
        self._request = request
        self._prompt = prompt
        self.header = header
        self._version = request.version
        self._pinned = header.model.startswith(context.config.model.name + "@")
        text = (
            context.renderer.new_reply_decoder(
                thinking=prompt.rendered.thinking,
                tools=ask.tools,
                stops=request.sampling.stop,
                min_tokens=request.sampling.min_tokens,
            )
            if ask.completion_prompt is None
            else context.renderer.new_text_decoder(request.sampling.stop)
        )
        self.accumulator = ReplyAccumulator(
            request,
            text,
            context.renderer,
            logprobs=ask.logprobs,
            ids=ask.return_token_ids,
            one_call=bool(ask.tools) and not ask.parallel_calls,
        )
        # A response that is not streamed is sent after the end is durable, so admission and end may share a transaction
        self._admitted = context.writer.put(
            request, max_delay=0.0 if ask.stream else MAX_COMMIT_DELAY
        )
        self._settled = self._counted = self._started = self._withdrawn = self._is_returned = False
        # the reason to record if the reply is cancelled.
        self._cancel_reason = "the client closed the connection"

    @property
    def current_message(self) -> dict[str, Any]:
        """The assistant message delivered so far."""
        return self.accumulator.reply_text.parser.to_message()

    @property
    def stored_message(self) -> dict[str, Any]:
        """The assistant message delivered so far, behind the text of the client's message that it continues."""
        message = self.current_message
        prefix = self._ask.prefix
        if prefix is None:
            return message
        return message | {
            "content": content_text(prefix.get("content")) + (message["content"] or "")
        }

    async def stream_parts(self) -> AsyncGenerator[StreamPart]:
        """Yield the parts for the client. The last part has `end` and comes when the exchange is durable.

        Raises `ReplyFailed`, and `RequestError` if the engine refuses the grammar. Closing the iterator cancels the
        generation.
        """
        context = self._context
        part = StreamPart()
        self._started = True
        context.running_replies += 1
        try:
            async with aclosing(self._stream_chunks()) as chunks:
                async for chunk in chunks:
                    part = self.accumulator.add_chunk(chunk)
                    if self.accumulator.finish_reason is not None:
                        break
                    if part.delta or part.tokens or part.token_ids:
                        yield part
            yield await self._finish_reply(part)
        except (asyncio.CancelledError, GeneratorExit):
            # If settled, the reply is complete and queued for writing.
            finish = self.accumulator.finish_reason
            self._count_outcome(finish.value if self._settled and finish else "cancelled")
            if self.accumulator.first_token_at is None:
                self._return_reply()
            status = ExchangeStatus.FAILED if self._withdrawn else ExchangeStatus.CANCELLED
            self._end_in_background(status, self._cancel_reason)
            raise
        except (ReplyFailed, RequestError) as error:
            self._return_reply()
            await self._record_failure(str(error))
            raise
        except Exception as error:
            # Any error: the exchange must not stay RUNNING.
            self._return_reply()
            self._end_in_background(ExchangeStatus.FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            context.running_replies -= 1
            context.versions.release(self._version)

    def _return_reply(self) -> None:
        """Do not count a reply that nobody got towards the limit of its episode. Idempotent."""
        if self._request.episode is not None and not self._is_returned:
            self._is_returned = True
            self._context.episodes.return_reply(self._request.episode)

    def withdraw(self, reason: str) -> None:
        """Set why the reply is about to be cancelled: its request failed as a whole, so that nobody gets the reply.

        One that was streamed to its end did arrive, and stays counted.
        """
        if not (self._settled and self._ask.stream):
            self._cancel_reason = reason
            self._withdrawn = True
            self._return_reply()

    def cancel_unstarted(self) -> None:
        """Cancel the reply if `stream_parts` was never iterated."""
        if not self._started:
            self._started = True
            self._count_outcome("cancelled")
            self._return_reply()
            self._end_in_background(ExchangeStatus.CANCELLED, self._cancel_reason)
            self._context.versions.release(self._version)

    async def _stream_chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the engine's chunks. Before the first token, retry a failure for up to `serve.engine_wait` seconds."""
        loop = asyncio.get_running_loop()
        context = self._context
        deadline = loop.time() + context.config.serve.engine_wait
        refusals = 0
        while True:
            if not context.versions.is_loaded(self._version):
                await self._wait_durable(self._admitted)
                self._version = await context.versions.wait_loaded(
                    self._version, deadline, pinned=self._pinned
                )
                self.header = replace(self.header, version=self._version)
            try:
                async with aclosing(self._generate()) as chunks:
                    async for chunk in chunks:
                        # Without streaming, nothing is sent before `_finish_reply`.
                        if self._ask.stream and self.accumulator.first_token_at is None:
                            await self._wait_durable(self._admitted)
                        yield chunk
                return
            except EngineError as error:
                refusals += not isinstance(error, EngineGone)
                self._check_retry(error, refusals)
                context.versions.mark_lost(str(error))

    def _check_retry(self, error: EngineError, refusals: int) -> None:
        """Raise unless the generation may be restarted: `RequestError` for what the client asked for, `ReplyFailed`."""
        if isinstance(error, GrammarError):
            assert self._ask.constraint is not None, "there is no grammar otherwise"
            raise grammar_error(str(error), self._ask.constraint) from None
        if isinstance(error, SamplingUnsupported):
            raise RequestError(str(error), code="unsupported_parameter") from None
        if self.accumulator.token_ids and isinstance(error, EngineGone):
            message = f"the engine disconnected during the reply ({error})"
            raise ReplyFailed(message, status=503, code="engine_gone") from error
        if self.accumulator.token_ids or refusals > 1:
            raise ReplyFailed(
                f"the engine refused: {error}", status=500, code="engine_error"
            ) from error

    def _generate(self) -> Any:
        request = self._request
        conversation = self._prompt.with_images
        generation = Generation(
            id=request.id,
            version=self._version,
            prompt_ids=request.prompt_ids,
            sampling=request.sampling,
            stop_token_ids=self._context.renderer.stop_token_ids,
            top_logprobs=self._ask.top_logprobs,
        )
        if conversation is not None:
            known = {field.name: getattr(generation, field.name) for field in fields(generation)}
            generation = ImageGeneration(**known, prompt=conversation)
        return self._context.engine.generate(generation)

    async def _wait_durable(self, write: asyncio.Future[None]) -> None:
        """Wait until the request or its reply is durable. Raises `ReplyFailed` if the store refused it."""
        try:
            await asyncio.shield(write)
        except DiskFull as error:
            # Else the row exists and is ended once there is space.
            self._settled = write is self._admitted
            raise ReplyFailed(
                f"the reply could not be recorded: {error}", status=503, code=DISK_FULL
            ) from error
        except Exception as error:
            # Of the store or the disk: report it to the client.
            # There is no row to finish.
            self._settled = True
            message = f"the exchange could not be made durable, so it does not count: {error}"
            raise ReplyFailed(message, status=500, code="not_durable") from error

    async def _finish_reply(self, part: StreamPart) -> StreamPart:
        """Record the complete exchange, and return the last part once it is on disk."""
        context = self._context
        request = self._request
        record = self.accumulator
        if record.finish_reason is None:
            raise ReplyFailed(
                "the engine ended the reply without a finish reason",
                status=500,
                code="engine_error",
            )
        whole = self.stored_message
        mark = context.prompt_builder.mark_reply(self._prompt.history, whole, len(request.messages))
        reply = record.build_reply(ExchangeStatus.DONE, whole, self._version, mark=mark, error=None)
        if not np.isfinite(reply.logprobs).all():
            message = "the engine returned log-probabilities that are not finite numbers; the reply does not count"
            raise ReplyFailed(message, status=500, code="engine_error")
        self._settled = True
        done = context.writer.put(reply)
        await self._wait_durable(self._admitted)
        await self._wait_durable(done)
        if (
            record.can_bridge
            and self._ask.completion_prompt is None
            and self._prompt.with_images is None
        ):
            context.prompt_builder.cache_finished_reply(self._prompt.history, mark, request, reply)
        self._count_outcome(record.finish_reason.value)
        self._observe_metrics(reply.finished_at)
        end = ReplyEnd(
            finish_reason=record.finish_reason,
            usage=record.token_usage(),
            stop_string=record.stop_string(),
        )
        return replace(part, end=end)

    def _count_outcome(self, outcome: str) -> None:
        """Count a finished or cancelled exchange once. The HTTP handlers count failed ones."""
        if not self._counted:
            self._counted = True
            self._context.metrics.replies.labels(route=self._ask.dialect, outcome=outcome).inc()

    def _observe_metrics(self, finished_at: float) -> None:
        metrics = self._context.metrics
        record = self.accumulator
        seconds = finished_at - self._request.admitted_at
        tokens = len(record.token_ids)
        log.debug(
            "%s: done (%s), %d tokens in %.2f s",
            self.header.id,
            record.finish_reason,
            tokens,
            seconds,
        )
        metrics.response_tokens.inc(tokens)
        metrics.cached_tokens.inc(record.cached_tokens)
        metrics.duration.observe(seconds)
        if record.first_token_at is not None:
            metrics.first_token.observe(record.first_token_at - self._request.admitted_at)

    def _end_in_background(self, status: ExchangeStatus, error: str) -> None:
        if not self._settled:
            self._context.spawn_background(self._record_end(status, error))

    async def _record_failure(self, error: str) -> None:
        if not self._settled:
            recorded = self._context.spawn_background(
                self._record_end(ExchangeStatus.FAILED, error)
            )
            # On a full disk it is recorded later.
            await asyncio.wait({recorded}, timeout=MAX_RECORD_WAIT)

    async def _record_end(self, status: ExchangeStatus, error: str) -> None:
        """Record an end with a status other than DONE."""
        self._settled = True
        # It may quote the request.
        shown = "" if self._request.capture is Capture.REDACTED else f": {error}"
        log.debug("%s: %s%s", self._request.id, status.value, shown)
        message = self.stored_message
        mark = self._context.prompt_builder.mark_reply(
            self._prompt.history, message, len(self._request.messages)
        )
        try:
            await self._admitted
            await self._context.writer.put(
                self.accumulator.build_reply(status, message, self._version, mark=mark, error=error)
            )
        except DiskFull as failure:
            log.warning(
                "exchange %s is not recorded as %s: %s", self._request.id, status.value, failure
            )
        except Exception as failure:
            # No client is waiting any more; the next start marks the exchange FAILED.
            log.exception(
                "exchange %s could not be recorded as %s: %s",
                self._request.id,
                status.value,
                failure,
            )
