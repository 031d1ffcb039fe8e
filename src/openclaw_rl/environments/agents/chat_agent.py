"""A small agent that talks to the gateway with the ticket of an episode: messages, tools, replies with their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.environments.types import EpisodeTicket
from openclaw_rl.errors import OpenClawError

# Seconds, doubled after each try.
_TRIES = 4
_PAUSE = 0.5
_GONE = 410
# And 5xx.
_REPEATED = frozenset({408, 409, 429})


class EpisodeOver(OpenClawError):
    """Raised if the gateway gives this episode no further reply: its steps are used up, or its prompt is too long."""


class AgentReplyFailed(OpenClawError):
    """Raised if the gateway or the engine failed, or refused the request. It says nothing about the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """A call as the model wrote it. `arguments`: JSON text, perhaps invalid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A reply. `turn`: its id at the gateway. `message`: as it was received, for the next request.

    `ignored`: what of the request had no effect, as the gateway says.
    """

    turn: str
    message: Mapping[str, Any]
    text: str
    calls: Sequence[AgentCall]
    ignored: str = ""


class ChatAgent:
    """Asks for replies in one episode. `request`: further fields of each request."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        ticket: EpisodeTicket,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        """`http`: a session without credentials, from `open_agent_session`."""
        self._http = http
        self.ticket = ticket
        self._request = request or {}
        self._has_reply = False

    def _has_filled_context(self, answer: Any) -> bool:
        """Return whether a prompt after the first one does not fit into the context."""
        return self._has_reply and _error_field(answer, "code") == "context_length_exceeded"

    async def ask_reply(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatReply:
        """Return the next reply. Raises `EpisodeOver` and `AgentReplyFailed`.

        A failure of the gateway is tried again, up to three times; a 410 is not. A first prompt that does not fit into
        the context is the task's fault, a later one the policy's.
        """
        body = {"model": self.ticket.model, "messages": list(messages), **self._request}
        if tools:
            body["tools"] = list(tools)
        problem = ""
        for number in range(_TRIES):
            if number > 0:
                await asyncio.sleep(_PAUSE * 2 ** (number - 1))
            try:
                status, answer, ignored = await self._post(body)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                self._has_reply = True
                return _parse_reply(answer, ignored)
            message = _error_field(answer, "message")
            problem = f"{status}: {message}"
            if status == _GONE or self._has_filled_context(answer):
                raise EpisodeOver(problem)
            if status < 500 and status not in _REPEATED:
                break
        raise AgentReplyFailed(f"no reply from the gateway: {problem}")

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, Any, str]:
        headers = {"Authorization": f"Bearer {self.ticket.api_key}"}
        url = f"{self.ticket.base_url}/chat/completions"
        async with self._http.post(url, json=body, headers=headers) as response:
            answer = await response.json(content_type=None)
            return response.status, answer, response.headers.get("X-OpenClaw-Ignored", "")


def open_agent_session() -> aiohttp.ClientSession:
    """Return an HTTP session for many agents. A reply may take as long as its episode."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    return open_http_session(timeout=timeout, connections=0)


def tool_message(call: AgentCall, text: str, images: Sequence[str] = ()) -> dict[str, Any]:
    """Return the message that answers a call. `images`: data URLs."""
    parts = [
        {"type": "text", "text": text},
        *({"type": "image_url", "image_url": {"url": url}} for url in images),
    ]
    return {"role": "tool", "tool_call_id": call.id, "content": parts if images else text}


def _parse_reply(answer: Any, ignored: str) -> ChatReply:
    try:
        message = answer["choices"][0]["message"]
        calls = tuple(
            AgentCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=call["function"]["arguments"],
            )
            for call in message.get("tool_calls") or ()
        )
        text = message.get("content") or ""
        return ChatReply(
            turn=answer["id"], message=message, text=text, calls=calls, ignored=ignored
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise AgentReplyFailed(
            f"the gateway's answer is no chat completion ({type(error).__name__}: {error})"
        ) from None


def _error_field(answer: Any, name: str) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get(name) if isinstance(error, dict) else answer)[:500]
