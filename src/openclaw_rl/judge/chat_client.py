"""Chat client for OpenAI-compatible endpoints, shared by the llm judge and the teacher."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.common.retries.backoff import backoff_delay, retry_after_seconds
from openclaw_rl.errors import JudgeError
from openclaw_rl.judge.answer_schemas import AnswerSchema
from openclaw_rl.judge.vote_parser import check_answer, describe_size
from openclaw_rl.settings.load import EndpointConfig

log = logging.getLogger("openclaw_rl.judge")

_MAX_BODY_BYTES = 1 << 20
_FIRST_RETRY_SECONDS = 0.5
_RETRY_STATUS = (408, 409, 425, 429)
# Newer models reject fields that older servers need. A field is dropped after the first rejection.
_OPTIONAL_FIELDS = ("max_tokens", "temperature")
_FORMAT_WORDS = ("response_format", "json_schema")


def log_excerpt(what: str, answer: str) -> None:
    """Log the start of an answer, for debugging only: it may quote the conversation."""
    log.debug("%s: %r", what, answer[:200])


class _EndpointRefusal(Exception):
    """The endpoint returned an error.

    `wait`: requested delay before a retry, in seconds. `unstructured`: the same request without `response_format` may
    be accepted.
    """

    def __init__(
        self, message: str, *, again: bool, wait: float | None = None, unstructured: bool = False
    ) -> None:
        super().__init__(message)
        self.retryable = again
        self.wait = wait
        self.unstructured = unstructured


class ChatClient:
    """Client for `<section>.model` at `<section>.base_url` with at most `connections` concurrent connections.

    `answer`: the form of the answers (`response_format`), until the endpoint refuses it.
    """

    def __init__(
        self,
        section: str,
        config: EndpointConfig,
        *,
        connections: int,
        answer: AnswerSchema | None = None,
    ) -> None:
        self.url = f"{str(config.base_url).rstrip('/')}/chat/completions"
        self._section = section
        self._config = config
        self._connections = connections
        self._options: dict[str, Any] = {
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
        }
        self._answer = answer
        # Whether the endpoint has accepted `response_format`.
        self._is_structured = False
        self._session: aiohttp.ClientSession | None = None

    async def complete_chat(self, messages: list[dict[str, str]]) -> str:
        """Return the answer's text, never empty. Raises `JudgeError` with the last failure after all attempts."""
        failures = 0
        longest = self._config.timeout
        answer = self._answer
        while True:
            try:
                text = await self._send_request(messages, answer)
                self._record_format(answer)
                return text
            except _EndpointRefusal as refusal:
                if refusal.unstructured:
                    answer = None
                    continue
                error = str(refusal)
                again = refusal.retryable
                asked = refusal.wait
            except TimeoutError:
                # No retry: several timeouts in a row would block a worker for minutes on one slow endpoint.
                error = f"no answer within {longest:g} s ({self._section}.timeout)"
                again = False
                asked = None
            except (aiohttp.ClientConnectionError, OSError) as failure:
                error = f"connection failed: {failure or type(failure).__name__}"
                again = True
                asked = None
            except aiohttp.ClientError as failure:
                # Its message may quote the answer.
                error = f"connection failed: {type(failure).__name__}"
                again = True
                asked = None
            failures += 1
            if not again or failures > self._config.retries or (asked or 0.0) > longest:
                raise JudgeError(error)
            delay = backoff_delay(failures, first=_FIRST_RETRY_SECONDS, longest=longest)
            await asyncio.sleep(delay if asked is None else asked + delay * 0.1)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _record_format(self, answer: AnswerSchema | None) -> None:
        """Record whether an answer came with or without the schema; say once that the endpoint does without."""
        if answer is not None:
            self._is_structured = True
        elif self._answer is not None:
            self._answer = None
            log.warning(
                "%s.base_url refuses response_format with a JSON schema: its answers are not constrained, and those "
                "that hold no valid JSON are not used. Nothing needs to be done unless many are unusable.",
                self._section,
            )

    async def _send_request(
        self, messages: list[dict[str, str]], answer: AnswerSchema | None
    ) -> str:
        body = {"model": self._config.model, "messages": messages, "stream": False, **self._options}
        if answer is not None:
            body["response_format"] = answer
        async with asyncio.timeout(self._config.timeout):
            # No redirects: conversations are sent only to the endpoint that the owner configured.
            async with self._get_session().post(
                self.url, json=body, allow_redirects=False
            ) as response:
                raw = await response.content.read(_MAX_BODY_BYTES)
                while len(raw) < _MAX_BODY_BYTES and not response.content.at_eof():
                    raw += await response.content.read(_MAX_BODY_BYTES - len(raw))
        text = raw.decode("utf-8", "replace")
        if response.status != 200:
            raise self._make_error(response.status, response.headers, text, body)
        return self._extract_content(text, response.content_type)

    def _make_error(
        self, status: int, headers: Mapping[str, str], text: str, sent: Mapping[str, Any]
    ) -> _EndpointRefusal:
        if status in (400, 422):
            refusal = self._refused_field(status, text, sent)
            if refusal is not None:
                return refusal
        log_excerpt(f"HTTP {status}", text)
        key = f"{self._section}.api_key"
        place = f"{self._section}.base_url and {self._section}.model"
        todo = {401: f" Set {key}.", 403: f" Check {key}.", 404: f" Check {place}."}
        return _EndpointRefusal(
            f"HTTP {status} with {describe_size(text)}.{todo.get(status, '')}",
            again=status >= 500 or status in _RETRY_STATUS,
            wait=retry_after_seconds(headers.get("Retry-After")),
        )

    def _refused_field(
        self, status: int, text: str, sent: Mapping[str, Any]
    ) -> _EndpointRefusal | None:
        """Return the refusal of a field of the request, which is left out from now on; None if it is another error."""
        named = [name for name in _OPTIONAL_FIELDS if name in sent and name in text]
        if "response_format" in sent and self._is_format_refused(text, is_named=bool(named)):
            message = f"HTTP {status}: no response_format"
            return _EndpointRefusal(message, again=True, unstructured=True)
        if not named:
            return None
        refused = named[0]
        # None: a concurrent call has already removed it.
        value = self._options.pop(refused, None)
        if refused == "max_tokens" and value is not None:
            self._options["max_completion_tokens"] = value
        message = f"HTTP {status}: the model does not accept {refused}"
        return _EndpointRefusal(message, again=True, wait=0.0)

    def _is_format_refused(self, text: str, *, is_named: bool) -> bool:
        """Whether an error is about the format. Some servers refuse it without naming any field (`is_named`)."""
        is_unnamed = not is_named and not self._is_structured
        return is_unnamed or any(word in text for word in _FORMAT_WORDS)

    def _extract_content(self, text: str, content_type: str) -> str:
        """Return the content of a completion; a reasoning model's `reasoning_content` is ignored."""
        try:
            choice = json.loads(text)["choices"][0]
            content = choice["message"].get("content")
            finish = choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            log_excerpt("No chat completion", text)
            got = f"{describe_size(text)} of {content_type[:40]}"
            raise JudgeError(f"expected a chat completion (JSON), got {got}") from None
        return check_answer(content, finish, self._section)

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The endpoint may be our own gateway, which trains on main traffic; these calls must not be trained on.
            headers = {"X-Turn-Type": "side"}
            if self._config.api_key:
                headers["Authorization"] = f"Bearer {self._config.api_key}"
            self._session = open_http_session(headers=headers, connections=self._connections)
        return self._session
