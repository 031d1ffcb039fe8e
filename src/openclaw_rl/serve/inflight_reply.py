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
from enum import StrEnum
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
from openclaw_rl.render.reply_parser import ReplyDecoder
from openclaw_rl.serve.background_tasks import BackgroundTasks, RequestLoad
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
CLIENT_LEFT = "the client closed the connection"


class ReplyStage(StrEnum):
    """Where a reply is in its life. A `StrEnum`, as Python computes the hash of other members in Python code."""

    ADMITTED = "admitted"
    """Its request is recorded or will be, and nobody has asked for a part of it."""
    RUNNING = "running"
    """The engine generates."""
    COMPLETE = "complete"
    """It is whole, and is being written to the store."""
    DELIVERED = "delivered"
    """It is in the store and counted."""
    STOPPED = "stopped"
    """It ended early: its end is recorded or being recorded, or the store refused its request."""


_MOVES = {
    ReplyStage.ADMITTED: {ReplyStage.RUNNING, ReplyStage.STOPPED},
    ReplyStage.RUNNING: {ReplyStage.COMPLETE, ReplyStage.STOPPED},
    # Back: the disk was full. The end is recorded once there is space.
    ReplyStage.COMPLETE: {ReplyStage.DELIVERED, ReplyStage.RUNNING, ReplyStage.STOPPED},
    ReplyStage.DELIVERED: set(),
    ReplyStage.STOPPED: set(),
}
_SETTLED = {ReplyStage.COMPLETE, ReplyStage.DELIVERED, ReplyStage.STOPPED}
"""Stages in which there is no end left to record."""


class ReplyContext(Protocol):
    """Shared state of a gateway's replies."""

    config: Config
    engine: Engine
    metrics: GatewayMetrics
    writer: GroupCommitWriter
    versions: VersionManager
    episodes: OpenEpisodes
    prompt_builder: PromptBuilder
    load: RequestLoad
    background: BackgroundTasks

    @property
    def renderer(self) -> Renderer: ...


class InflightReply:
    """One exchange in flight."""

    def __init__(
        self,
        context: ReplyContext,
        request: ChatRequest,
        record: Request,
        prompt: BuiltPrompt,
        header: ReplyHeader,
        *,
        is_pinned: bool,
    ) -> None:
        """`record`: the request as it is stored. `is_pinned`: the client named the version."""
        self._context = context
        self._request = request
        self._record = record
        self._prompt = prompt
        self.header = header
        self._is_pinned = is_pinned
        self._version = record.version
        self.accumulator = ReplyAccumulator(
            record,
            self._new_decoder(),
            context.renderer,
            logprobs=request.logprobs,
            ids=request.return_token_ids,
            one_call=bool(request.tools) and not request.parallel_calls,
        )
        # A response that is not streamed is sent after the end is durable, so admission and end may share a transaction
        self._admitted = context.writer.put(
            record, max_delay=0.0 if request.stream else MAX_COMMIT_DELAY
        )
        self._stage = ReplyStage.ADMITTED
        self.is_in_engine = False
        """Whether the engine was given the prompt and has not refused it."""
        # The episode whose limit counts the reply; None: of none, or it was returned.
        self._reserved_in = record.episode
        # Why the request failed as a whole, so that nobody gets the reply.
        self._withdrawal: str | None = None

    def _new_decoder(self) -> ReplyDecoder:
        sampling = self._record.sampling
        renderer = self._context.renderer
        if self._request.completion_prompt is not None:
            return renderer.new_text_decoder(sampling.stop)
        return renderer.new_reply_decoder(
            thinking=self._prompt.rendered.thinking,
            tools=self._request.tools,
            stops=sampling.stop,
            min_tokens=sampling.min_tokens,
        )

    def _move(self, stage: ReplyStage) -> None:
        assert stage in _MOVES[self._stage], f"{self._stage.value} -> {stage.value}"
        self._stage = stage

    @property
    def _is_settled(self) -> bool:
        return self._stage in _SETTLED

    @property
    def current_message(self) -> dict[str, Any]:
        """The assistant message delivered so far."""
        return self.accumulator.reply_text.parser.to_message()

    @property
    def stored_message(self) -> dict[str, Any]:
        """The assistant message delivered so far, behind the text of the client's message that it continues."""
        message = self.current_message
        prefix = self._request.prefix
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
        # The first part comes with the first token, even if its text is held back: so a client sees that work began.
        has_spoken = False
        self._move(ReplyStage.RUNNING)
        context.load.running_replies += 1
        try:
            async with aclosing(self._stream_chunks()) as chunks:
                async for chunk in chunks:
                    part = self.accumulator.add_chunk(chunk)
                    if self.accumulator.finish_reason is not None:
                        break
                    if part.delta or part.tokens or part.token_ids or not has_spoken:
                        has_spoken = True
                        yield part
            yield await self._finish_reply(part)
        except (asyncio.CancelledError, GeneratorExit):
            finish = self.accumulator.finish_reason
            if self._stage is not ReplyStage.DELIVERED:
                self._count_outcome(finish.value if self._is_settled and finish else "cancelled")
            if self.accumulator.first_token_at is None:
                self._return_reply()
            if self._withdrawal is None:
                self._end_in_background(ExchangeStatus.CANCELLED, CLIENT_LEFT)
            else:
                self._end_in_background(ExchangeStatus.FAILED, self._withdrawal)
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
            context.load.running_replies -= 1
            context.versions.release(self._version)

    def _return_reply(self) -> None:
        """Do not count a reply that nobody got towards the limit of its episode. Idempotent."""
        if self._reserved_in is not None:
            self._context.episodes.return_reply(self._reserved_in)
            self._reserved_in = None

    def withdraw(self, reason: str) -> None:
        """Set why the reply is about to be cancelled: its request failed as a whole, so that nobody gets the reply.

        One that was streamed to its end did arrive, and stays counted.
        """
        if not (self._is_settled and self._request.stream):
            self._withdrawal = reason
            self._return_reply()

    def cancel_unstarted(self) -> None:
        """Cancel the reply if `stream_parts` was never iterated."""
        if self._stage is ReplyStage.ADMITTED:
            self._count_outcome("cancelled")
            self._return_reply()
            self._end_in_background(ExchangeStatus.CANCELLED, self._withdrawal or CLIENT_LEFT)
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
                    self._version, deadline, pinned=self._is_pinned
                )
                self.header = replace(self.header, version=self._version)
            self.is_in_engine = True
            try:
                async with aclosing(self._generate()) as chunks:
                    async for chunk in chunks:
                        # Without streaming, nothing is sent before `_finish_reply`.
                        if self._request.stream and self.accumulator.first_token_at is None:
                            await self._wait_durable(self._admitted)
                        yield chunk
                return
            except EngineError as error:
                self.is_in_engine = False
                refusals += not isinstance(error, EngineGone)
                self._check_retry(error, refusals)
                context.versions.mark_lost(str(error))

    def _check_retry(self, error: EngineError, refusals: int) -> None:
        """Raise unless the generation may be restarted: `RequestError` for what the client asked for, `ReplyFailed`."""
        if isinstance(error, GrammarError):
            assert self._request.constraint is not None, "there is no grammar otherwise"
            raise grammar_error(str(error), self._request.constraint) from None
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
        record = self._record
        parameters: dict[str, Any] = {
            "id": record.id,
            "version": self._version,
            "prompt_ids": record.prompt_ids,
            "sampling": record.sampling,
            "stop_token_ids": self._context.renderer.stop_token_ids,
            "top_logprobs": self._request.top_logprobs,
        }
        conversation = self._prompt.with_images
        if conversation is None:
            return self._context.engine.generate(Generation(**parameters))
        return self._context.engine.generate(ImageGeneration(**parameters, prompt=conversation))

    @property
    def is_recorded(self) -> bool:
        """Whether the request is on disk, so that bytes of the response may be sent."""
        done = self._admitted.done() and not self._admitted.cancelled()
        return done and self._admitted.exception() is None

    async def _wait_durable(self, write: asyncio.Future[None]) -> None:
        """Wait until the request or its reply is durable. Raises `ReplyFailed` if the store refused it."""
        try:
            await asyncio.shield(write)
        except DiskFull as error:
            self._move(ReplyStage.STOPPED if write is self._admitted else ReplyStage.RUNNING)
            raise ReplyFailed(
                f"the reply could not be recorded: {error}", status=503, code=DISK_FULL
            ) from error
        except Exception as error:
            # Of the store or the disk: report it to the client.
            # There is no row to finish.
            self._move(ReplyStage.STOPPED)
            message = f"the exchange could not be made durable, so it does not count: {error}"
            raise ReplyFailed(message, status=500, code="not_durable") from error

    async def _finish_reply(self, part: StreamPart) -> StreamPart:
        """Record the complete exchange, and return the last part once it is on disk."""
        context = self._context
        record = self._record
        sampled = self.accumulator
        if sampled.finish_reason is None:
            raise ReplyFailed(
                "the engine ended the reply without a finish reason",
                status=500,
                code="engine_error",
            )
        message = self.stored_message
        mark = context.prompt_builder.mark_reply(
            self._prompt.history, message, len(record.messages)
        )
        reply = sampled.build_reply(
            ExchangeStatus.DONE, message, self._version, mark=mark, error=None
        )
        if not np.isfinite(reply.logprobs).all():
            problem = "the engine returned log-probabilities that are not finite numbers; the reply does not count"
            raise ReplyFailed(problem, status=500, code="engine_error")
        self._move(ReplyStage.COMPLETE)
        written = context.writer.put(reply)
        await self._wait_durable(self._admitted)
        await self._wait_durable(written)
        if sampled.can_bridge and self._is_plain_chat:
            context.prompt_builder.cache_finished_reply(self._prompt.history, mark, record, reply)
        self._move(ReplyStage.DELIVERED)
        self._count_outcome(sampled.finish_reason.value)
        self._observe_metrics(reply.finished_at)
        end = ReplyEnd(
            finish_reason=sampled.finish_reason,
            usage=sampled.token_usage(),
            stop_string=sampled.stop_string(),
        )
        return replace(part, end=end)

    @property
    def _is_plain_chat(self) -> bool:
        """Whether the next request may continue the tokens: no text completion, and no images."""
        return self._request.completion_prompt is None and self._prompt.with_images is None

    def _count_outcome(self, outcome: str) -> None:
        """Count a finished or cancelled exchange. The HTTP handlers count failed ones."""
        self._context.metrics.replies.labels(route=self._request.dialect, outcome=outcome).inc()

    def _observe_metrics(self, finished_at: float) -> None:
        metrics = self._context.metrics
        sampled = self.accumulator
        admitted_at = self._record.admitted_at
        seconds = finished_at - admitted_at
        tokens = len(sampled.token_ids)
        log.debug(
            "%s: done (%s), %d tokens in %.2f s",
            self.header.id,
            sampled.finish_reason,
            tokens,
            seconds,
        )
        metrics.response_tokens.inc(tokens)
        metrics.cached_tokens.inc(sampled.cached_tokens)
        metrics.duration.observe(seconds)
        if sampled.first_token_at is not None:
            metrics.first_token.observe(sampled.first_token_at - admitted_at)

    def _end_in_background(self, status: ExchangeStatus, error: str) -> asyncio.Task[None] | None:
        """Begin to record an end with a status other than DONE; None if the end is settled."""
        if self._is_settled:
            return None
        self._move(ReplyStage.STOPPED)
        return self._context.background.spawn(self._record_end(status, error))

    async def _record_failure(self, error: str) -> None:
        recording = self._end_in_background(ExchangeStatus.FAILED, error)
        if recording is not None:
            # On a full disk it is recorded later.
            await asyncio.wait({recording}, timeout=MAX_RECORD_WAIT)

    async def _record_end(self, status: ExchangeStatus, error: str) -> None:
        record = self._record
        # It may quote the request.
        shown = "" if record.capture is Capture.REDACTED else f": {error}"
        log.debug("%s: %s%s", record.id, status.value, shown)
        message = self.stored_message
        mark = self._context.prompt_builder.mark_reply(
            self._prompt.history, message, len(record.messages)
        )
        try:
            await self._admitted
            await self._context.writer.put(
                self.accumulator.build_reply(status, message, self._version, mark=mark, error=error)
            )
        except DiskFull as failure:
            log.warning("exchange %s is not recorded as %s: %s", record.id, status.value, failure)
        except Exception as failure:
            # No client is waiting any more; the next start marks the exchange FAILED.
            log.exception(
                "exchange %s could not be recorded as %s: %s", record.id, status.value, failure
            )
