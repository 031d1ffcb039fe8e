"""Accumulate a reply while it is sampled: ids and logprobs as sampled, and the text that the client has seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openclaw_rl.common.steady_clock import recorded_time
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.render.reply_parser import Delta, ReplyDecoder
from openclaw_rl.serve.chat_request import StreamPart, TokenInfo, TokenUsage
from openclaw_rl.types import (
    Chunk,
    Exchange,
    ExchangeStatus,
    FinishReason,
    Mark,
    Reply,
    Request,
    Span,
)


class ReplyAccumulator:
    """Turns chunks into parts. The last chunk, a stop string, or (`one_call`) the first call sets `finish_reason`."""

    def __init__(
        self,
        request: Request,
        text: ReplyDecoder,
        renderer: Renderer,
        *,
        logprobs: bool,
        ids: bool,
        one_call: bool = False,
    ) -> None:
        self._request = request
        self._renderer = renderer
        self._wants_logprobs = logprobs
        self._one_call = one_call
        self.reply_text = text
        self._wants_ids = ids
        self.token_ids: list[int] = []
        self._logprobs: list[float] = []
        # Tokens whose text is held back.
        self._held_tokens: list[TokenInfo] = []
        self.token_infos: list[TokenInfo] = []
        self._reasoning_count = 0
        # Number of tokens up to the end of the only call (`one_call`).
        self._call_end: int | None = None
        # Prompt tokens that were in the engine's prefix cache.
        self.cached_tokens = 0
        self.first_token_at: float | None = None
        self.finish_reason: FinishReason | None = None

    def add_chunk(self, chunk: Chunk) -> StreamPart:
        """Add a chunk and return the output that is now certain. The last chunk releases all text that was held."""
        if self.first_token_at is None:
            self.first_token_at = recorded_time()
        self.cached_tokens += chunk.cached
        self.token_ids += chunk.token_ids
        self._logprobs += chunk.logprobs
        delta = self._push_tokens(chunk.token_ids)
        if self._wants_logprobs:
            self._hold_token_infos(chunk)
        if self._trainable_end is not None or chunk.finish is not None:
            delta = delta.merge_with(self.reply_text.finish(is_cut=chunk.finish == "length"))
            self.finish_reason = self._choose_finish_reason(chunk)
        ids = chunk.token_ids if self._wants_ids else ()
        if not self._held_tokens or not (delta or self.finish_reason):
            return StreamPart(delta=delta, token_ids=ids)
        return StreamPart(delta=delta, tokens=self._release_tokens(), token_ids=ids)

    def _push_tokens(self, ids: Sequence[int]) -> Delta:
        """Push token by token, so that counts do not depend on the chunks; at most until the only call."""
        delta = Delta()
        for n, i in enumerate(ids):
            delta = delta.merge_with(self.reply_text.push((i,)))
            if self.reply_text.is_stopped:
                break
            self._reasoning_count += self.reply_text.parser.in_reasoning
            if not self._one_call:
                continue
            if calls := self.reply_text.parser.calls:
                self._call_end = len(self.token_ids) - len(ids) + n + 1
                # One list of calls: the tokens of the first are unknown, so no token is trained on.
                if len(calls) > 1:
                    self._call_end = 0
                    del calls[1:]
                    delta = delta._replace(calls=delta.calls[:1])
                break
        return delta

    @property
    def _trainable_end(self) -> int | None:
        """Number of tokens that may be trained on if a stop string or the only call ended the reply, else None."""
        return (
            self.reply_text.tokens_to_keep
            if self.reply_text.tokens_to_keep is not None
            else self._call_end
        )

    def _release_tokens(self) -> list[TokenInfo]:
        """Return the waiting tokens whose text was sent to the client. Tokens of a stop string are never returned."""
        ready = self.reply_text.shown_tokens - len(self.token_infos)
        tokens = self._held_tokens[:ready]
        self._held_tokens = self._held_tokens[ready:]
        self.token_infos += tokens
        return tokens

    def _choose_finish_reason(self, chunk: Chunk) -> FinishReason:
        if self._trainable_end is None and chunk.finish == "length":
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self.reply_text.parser.calls else FinishReason.STOP

    def _hold_token_infos(self, chunk: Chunk) -> None:
        describe = self._renderer.detokenizer.decode_token
        stops = self._renderer.stop_token_ids
        for n, (token, logprob) in enumerate(zip(chunk.token_ids, chunk.logprobs, strict=True)):
            if token in stops:
                break
            top = [(*describe(i), lp) for i, lp in (chunk.top[n] if n < len(chunk.top) else ())]
            text, raw = describe(token)
            self._held_tokens.append(
                TokenInfo(text=text, utf8_bytes=raw, logprob=logprob, top_logprobs=top)
            )

    @property
    def can_bridge(self) -> bool:
        """Whether the next prompt may continue these tokens: the client has seen all of their text."""
        is_whole = not self.reply_text.is_stopped and self._call_end in (None, len(self.token_ids))
        return self.finish_reason is not None and is_whole

    def token_usage(self) -> TokenUsage:
        return TokenUsage(
            prompt_tokens=len(self._request.prompt_ids),
            completion_tokens=len(self.token_ids),
            reasoning_tokens=self._reasoning_count,
            cached_tokens=self.cached_tokens,
        )

    def stop_string(self) -> str | None:
        """Return the stop string that ended the reply; if one token completed several, the one that starts first."""
        if not self.reply_text.is_stopped:
            return None
        stream = self._renderer.detokenizer.new_stream()
        least = self._request.sampling.min_tokens
        stream.push(self.token_ids[:least])
        text = stream.push(self.token_ids[least : self.reply_text.tokens_to_keep])
        matches = [(text.find(s), s) for s in self._request.sampling.stop if s in text]
        return min(matches)[1] if matches else None

    def build_reply(
        self,
        status: ExchangeStatus,
        message: dict[str, Any],
        version: int,
        *,
        mark: Mark,
        error: str | None,
    ) -> Reply:
        """Return the reply for the store: ids and logprobs as sampled; tokens after `_trainable_end` masked."""
        r = len(self.token_ids)
        mask = np.ones(r, dtype=np.bool_)
        if self._trainable_end is not None:
            mask[self._trainable_end :] = False
        return Reply(
            id=self._request.id,
            status=status,
            message=message,
            response_ids=np.array(self.token_ids, dtype=np.int32),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            mask=mask,
            spans=(Span(start=0, end=r, version=version),) if r else (),
            finish_reason=self.finish_reason if status is ExchangeStatus.DONE else None,
            mark=mark,
            error=error,
            first_token_at=self.first_token_at,
            finished_at=recorded_time(),
        )


def count_reasoning_tokens(exchange: Exchange, renderer: Renderer) -> int:
    """Count the reasoning tokens of a stored reply, token by token as `ReplyAccumulator` does for chunks."""
    request = exchange.request
    reply = exchange.reply
    if reply is None or not reply.message.get("reasoning_content"):
        return 0
    thinking = renderer.opens_thinking(request.prompt_ids)
    stops = request.sampling.stop
    least = request.sampling.min_tokens
    text = renderer.new_reply_decoder(
        thinking=thinking, tools=request.tools, stops=stops, min_tokens=least
    )
    count = 0
    for token in reply.response_ids.tolist():
        text.push((token,))
        count += text.parser.in_reasoning
    return count
