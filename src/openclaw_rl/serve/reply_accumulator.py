"""Accumulate a reply while it is sampled: ids and logprobs as sampled, and the text that the client has seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from openclaw_rl.render.renderer import Renderer
from openclaw_rl.render.reply_parser import Delta, ReplyText
from openclaw_rl.serve.chat_request import Part, TokenInfo, Usage
from openclaw_rl.types import Chunk, Exchange, ExchangeStatus, FinishReason, Mark, Reply, Request, Span


class Record:
    """Turns chunks into parts. The last chunk, a stop string, or (`one_call`) the first call sets `finish_reason`."""

    def __init__(
        self, request: Request, text: ReplyText, renderer: Renderer, *, logprobs: bool, one_call: bool = False
    ) -> None:
        self._request, self._renderer, self._wants_logprobs, self._one_call = request, renderer, logprobs, one_call
        self.text = text
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._waiting: list[TokenInfo] = []  # tokens whose text is held back
        self.tokens: list[TokenInfo] = []
        self._reasoning = 0
        self._call_end: int | None = None  # number of tokens up to the end of the only call (`one_call`)
        self.cached = 0  # prompt tokens that were in the engine's prefix cache
        self.first_token_at: float | None = None
        self.finish: FinishReason | None = None

    def take(self, chunk: Chunk) -> Part:
        """Add a chunk and return the output that is now certain. The last chunk releases all text that was held."""
        if self.first_token_at is None:
            self.first_token_at = time.time()
        self.cached += chunk.cached
        self.ids += chunk.token_ids
        self._logprobs += chunk.logprobs
        delta = self._up_to_a_call(chunk.token_ids) if self._one_call else self.text.push(chunk.token_ids)
        if self._wants_logprobs:
            self._inform(chunk)
        if self.text.parser.in_reasoning:
            self._reasoning += len(chunk.token_ids)
        if self._cut is not None or chunk.finish is not None:
            delta = delta.then(self.text.finish())
            self.finish = self._reason(chunk)
        if not self._waiting or not (delta or self.finish):
            return Part(delta=delta)
        return Part(delta=delta, tokens=self._certain())

    def _up_to_a_call(self, ids: Sequence[int]) -> Delta:
        delta = Delta()
        for n, i in enumerate(ids):
            delta = delta.then(self.text.push((i,)))
            if calls := self.text.parser.calls:
                self._call_end = len(self.ids) - len(ids) + n + 1
                if len(calls) > 1:  # one list of calls: the tokens of the first are unknown, so no token is trained on
                    self._call_end = 0
                    del calls[1:]
                    delta = delta._replace(calls=delta.calls[:1])
                break
        return delta

    @property
    def _cut(self) -> int | None:
        """Number of tokens that may be trained on if a stop string or the only call ended the reply, else None."""
        return self.text.kept if self.text.kept is not None else self._call_end

    def _certain(self) -> list[TokenInfo]:
        """Return the waiting tokens whose text was sent to the client. Tokens of a stop string are never returned."""
        ready = self.text.shown - len(self.tokens)
        tokens, self._waiting = self._waiting[:ready], self._waiting[ready:]
        self.tokens += tokens
        return tokens

    def _reason(self, chunk: Chunk) -> FinishReason:
        if self._cut is None and chunk.finish == "length":
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if self.text.parser.calls else FinishReason.STOP

    def _inform(self, chunk: Chunk) -> None:
        describe, stops = self._renderer.detokenizer.token, self._renderer.stop_token_ids
        for n, (token, logprob) in enumerate(zip(chunk.token_ids, chunk.logprobs, strict=True)):
            if token in stops:
                break
            top = [(*describe(i), lp) for i, lp in (chunk.top[n] if n < len(chunk.top) else ())]
            text, raw = describe(token)
            self._waiting.append(TokenInfo(text=text, raw=raw, logprob=logprob, top=top))

    @property
    def bridgeable(self) -> bool:
        """Whether the next prompt may continue these tokens: the client has seen all of their text."""
        return self.finish is not None and not self.text.stopped and self._call_end in (None, len(self.ids))

    def usage(self) -> Usage:
        prompt = len(self._request.prompt_ids)
        return Usage(prompt=prompt, completion=len(self.ids), reasoning=self._reasoning, cached=self.cached)

    def stop(self) -> str | None:
        """Return the stop string that ended the reply; if one token completed several, the one that starts first."""
        if not self.text.stopped:
            return None
        text = self._renderer.detokenizer.stream().push(self.ids[: self.text.kept])
        found = [(text.find(s), s) for s in self._request.sampling.stop if s in text]
        return min(found)[1] if found else None

    def reply(
        self, status: ExchangeStatus, message: dict[str, Any], version: int, *, mark: Mark, error: str | None
    ) -> Reply:
        """Return the reply for the store: ids and logprobs as sampled; tokens after `_trainable_end` masked."""
        r = len(self.ids)
        mask = np.ones(r, dtype=np.bool_)
        if self._cut is not None:
            mask[self._cut :] = False
        return Reply(
            id=self._request.id,
            status=status,
            message=message,
            response_ids=np.array(self.ids, dtype=np.int32),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            mask=mask,
            spans=(Span(start=0, end=r, version=version),) if r else (),
            finish_reason=self.finish if status is ExchangeStatus.DONE else None,
            mark=mark,
            error=error,
            first_token_at=self.first_token_at,
            finished_at=time.time(),
        )


def reasoning_tokens(exchange: Exchange, renderer: Renderer) -> int:
    """Count the reasoning tokens of a stored reply, token by token as `ReplyAccumulator` does for chunks."""
    request, reply = exchange.request, exchange.reply
    if reply is None or not reply.message.get("reasoning_content"):
        return 0
    thinking = renderer.opens_thinking(request.prompt_ids)
    text = renderer.reply_text(thinking=thinking, tools=request.tools, stops=request.sampling.stop)
    count = 0
    for token in reply.response_ids.tolist():
        text.push((token,))
        count += text.parser.in_reasoning
    return count
