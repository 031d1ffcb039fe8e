"""A judge behind any OpenAI-compatible endpoint: m votes in parallel, one verdict or none."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from openclaw_rl.canon import Transience
from openclaw_rl.config import Config
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge import prompts
from openclaw_rl.judge.answer import parse, size
from openclaw_rl.judge.endpoint import check_endpoint
from openclaw_rl.judge.retry import Backoff, seconds_asked
from openclaw_rl.judge.votes import agreeing, majority
from openclaw_rl.types import JudgeInput, Verdict, Vote

log = logging.getLogger("openclaw_rl.judge")

_BODY_BYTES = 1 << 20
_EXCERPT_CHARS = 200  # of an answer, in the debug log only: it may quote the conversation
_FINISHES = ("stop", "length", "tool_calls", "content_filter")
_RETRY_STATUS = (408, 409, 425, 429)
# Newer models refuse what older servers need; one refusal teaches the judge.
_REFUSABLE = ("max_tokens", "temperature")


class _Refused(Exception):
    """The endpoint answered with an error; `wait` is what it asked for, in seconds."""

    def __init__(self, message: str, *, again: bool, wait: float | None = None) -> None:
        super().__init__(message)
        self.again = again
        self.wait = wait


class LlmJudge:
    """Asks `judge.model` at `judge.base_url`. Never the live policy: see `check_endpoint`."""

    def __init__(self, config: Config) -> None:
        """Raises `ConfigError` when the endpoint is missing, no URL, or the policy that is being trained."""
        check_endpoint(config)
        self._config = config.judge
        self._url = f"{str(config.judge.base_url).rstrip('/')}/chat/completions"
        self._transient = Transience(config.serve.transient_patterns)
        self._options: dict[str, Any] = {
            "temperature": config.judge.temperature,
            "max_tokens": config.judge.max_tokens,
        }
        self._session: aiohttp.ClientSession | None = None
        self.name = f"llm:{config.judge.model}@{prompts.VERSION}"

    async def judge(self, item: JudgeInput) -> Verdict:
        """Raises `JudgeError` when not one vote is usable; the reason says what came instead."""
        messages = prompts.build(item, self._transient)
        votes = tuple(await asyncio.gather(*(self._vote(messages) for _ in range(self._config.num_judges))))
        if all(vote.score is None for vote in votes):
            raise JudgeError(f"judge {self._config.model} at {self._url}: no usable vote: {votes[0].error}")
        score, reason = majority(votes, self._config.consensus_threshold)
        return Verdict(
            turn=item.turn,
            revision=item.reaction.revision,
            judge=self.name,
            score=score,
            votes=votes,
            hints=agreeing(votes, score),
            reason=reason,
            at=time.time(),
        )

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _vote(self, messages: list[dict[str, str]]) -> Vote:
        backoff = Backoff(self._config.retries, longest=self._config.timeout)
        while True:
            try:
                return _vote_of(await self._ask(messages))
            except _Refused as refusal:
                error, again, asked = str(refusal), refusal.again, refusal.wait
            except TimeoutError:
                # Not asked again: a vote may take `timeout` once, or one slow endpoint holds a worker for minutes.
                error, again, asked = f"no answer within {self._config.timeout:g} s (judge.timeout)", False, None
            except (aiohttp.ClientConnectionError, OSError) as failure:
                error, again, asked = f"connection failed: {failure or type(failure).__name__}", True, None
            except aiohttp.ClientError as failure:  # its words may be the answer's
                error, again, asked = f"connection failed: {type(failure).__name__}", True, None
            wait = backoff.next(asked) if again else None
            if wait is None:
                return Vote(score=None, error=error)
            await asyncio.sleep(wait)

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        body = {"model": self._config.model, "messages": messages, "stream": False, **self._options}
        async with asyncio.timeout(self._config.timeout):
            # Redirects are not followed: conversations go to the endpoint that the owner named, and nowhere else.
            async with self._open().post(self._url, json=body, allow_redirects=False) as response:
                raw = await response.content.read(_BODY_BYTES)
                while len(raw) < _BODY_BYTES and not response.content.at_eof():
                    raw += await response.content.read(_BODY_BYTES - len(raw))
        text = raw.decode("utf-8", "replace")
        if response.status != 200:
            raise self._refusal(response.status, response.headers, text, body)
        return _content(text, response.content_type)

    def _refusal(self, status: int, headers: Mapping[str, str], text: str, sent: Mapping[str, Any]) -> _Refused:
        if status == 400 and (option := next((o for o in _REFUSABLE if o in sent and o in text), None)):
            value = self._options.pop(option, None)  # None: another vote has learnt it meanwhile
            if option == "max_tokens" and value is not None:
                self._options["max_completion_tokens"] = value
            return _Refused(f"HTTP 400: the model does not take {option}", again=True, wait=0.0)
        log.debug("HTTP %d: %r", status, text[:_EXCERPT_CHARS])
        todo = {401: " Set judge.api_key.", 403: " Check judge.api_key.", 404: " Check judge.base_url and judge.model."}
        return _Refused(
            f"HTTP {status} with {size(text)}.{todo.get(status, '')}",
            again=status >= 500 or status in _RETRY_STATUS,
            wait=seconds_asked(headers.get("Retry-After")),
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Main traffic trains. Were the endpoint a gateway of ours, the judge's own calls must not.
            headers = {"X-Turn-Type": "side"}
            if self._config.api_key:
                headers["Authorization"] = f"Bearer {self._config.api_key}"
            connector = aiohttp.TCPConnector(limit=self._config.workers * self._config.num_judges)
            self._session = aiohttp.ClientSession(headers=headers, connector=connector)
        return self._session


def _vote_of(content: str) -> Vote:
    vote = parse(content)
    if vote.error:
        log.debug("No vote: %s: %r", vote.error, content[:_EXCERPT_CHARS])
    return vote


def _content(text: str, content_type: str) -> str:
    """The words of a completion. Anything else is a refusal that says what came instead."""
    try:
        choice = json.loads(text)["choices"][0]
        content = choice["message"].get("content")
        finish = choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        log.debug("No chat completion: %r", text[:_EXCERPT_CHARS])
        got = f"{size(text)} of {content_type[:40]}"
        raise _Refused(f"expected a chat completion (JSON), got {got}", again=False) from None
    if isinstance(content, str) and content.strip():
        return content
    more = " Raise judge.max_tokens." if finish == "length" else ""
    ended = finish if finish in _FINISHES else "unknown"
    raise _Refused(f"expected an answer, got an empty one (finish_reason {ended}).{more}", again=False)
