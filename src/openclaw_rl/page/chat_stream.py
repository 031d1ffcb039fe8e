"""Replies for the chat of the page: asked of the gateway, and relayed to the browser as lines of JSON while they grow.

The model as it is answers in a conversation that is learned from. The base model answers beside it for comparison, as a
side call of another agent, so that its replies are neither learned from nor linked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import aiohttp
import msgspec
from aiohttp import web

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.errors import OpenClawError
from openclaw_rl.page.gateway_client import gateway_headers, gateway_url
from openclaw_rl.page.security import SIGNED_IN_HEADER
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store

log = logging.getLogger("openclaw_rl.page")

PATH = "/ui/chat/stream"
_BASE_VERSION = 0
_BASE_HEADERS = {"X-Agent-Id": "page-base", "X-Turn-Type": "side"}
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)
_DATA = b"data: "
_END = b"[DONE]"


class ChatColumn(StrEnum):
    """Who answers: the base model, or the model as it is now."""

    BASE = "base"
    HEAD = "head"


class _ChatMessage(msgspec.Struct):
    role: str
    content: str


class _ChatQuestion(msgspec.Struct):
    column: ChatColumn
    conversation: Annotated[str, msgspec.Meta(pattern="^[0-9A-Za-z-]{1,64}$")]
    messages: list[_ChatMessage]


_decoder = msgspec.json.Decoder(_ChatQuestion)


async def stream_reply(config: Config, store: Store, request: web.Request) -> web.StreamResponse:
    """Relay a reply as lines of JSON: its id and version, pieces of text, and at the end the reason or the error."""
    try:
        question = _decoder.decode(await request.read())
    except web.HTTPRequestEntityTooLarge:
        raise OpenClawError(
            "this conversation is too long for the chat. Begin a new conversation"
        ) from None
    except msgspec.MsgspecError as error:
        raise OpenClawError(f"the chat sent a question that cannot be read: {error}") from None
    response = web.StreamResponse(
        headers={"Content-Type": "application/x-ndjson", SIGNED_IN_HEADER: "1"}
    )
    await response.prepare(request)
    pieces = _reply_pieces(config, store, question)
    try:
        async for piece in pieces:
            await response.write(json.dumps(piece).encode() + b"\n")
    except (aiohttp.ClientError, TimeoutError, OpenClawError) as error:
        message = str(error) or "the gateway does not answer"
        await response.write(json.dumps({"error": message}).encode() + b"\n")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        # The response has begun: only its last line can say that it failed.
        log.warning("the gateway's stream cannot be read: %s: %s", type(error).__name__, error)
        message = "the gateway sent something that cannot be read; page.log says more"
        await response.write(json.dumps({"error": message}).encode() + b"\n")
    finally:
        # The gateway ends a reply that nobody reads.
        await pieces.aclose()
    await response.write_eof()
    return response


def _headers_of(question: _ChatQuestion) -> Mapping[str, str]:
    if question.column is ChatColumn.BASE:
        return {**_BASE_HEADERS, "X-Session-Id": f"{question.conversation}-base"}
    # Without an agent, as the chat in the terminal: what is said here holds wherever no agent is named.
    return {"X-Session-Id": question.conversation}


async def _reply_pieces(config: Config, store: Store, question: _ChatQuestion) -> Any:
    """Yield the pieces of a reply. Raises `OpenClawError` with the gateway's words."""
    url = await asyncio.to_thread(gateway_url, config)
    name = config.model.name
    body = {
        "model": f"{name}@{_BASE_VERSION}" if question.column is ChatColumn.BASE else name,
        "messages": msgspec.to_builtins(question.messages),
        "stream": True,
    }
    headers = {**gateway_headers(store), **_headers_of(question)}
    async with (
        open_http_session(headers=headers, timeout=_TIMEOUT) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        if answer.status != 200:
            raise OpenClawError(await _error_text(answer))
        is_named = False
        async for chunk in _chunks(answer):
            if not is_named:
                is_named = True
                yield {"id": chunk["id"], "version": chunk.get("system_fingerprint")}
            for choice in chunk["choices"]:
                text = choice["delta"].get("content")
                if text:
                    yield {"text": text}
                if choice.get("finish_reason"):
                    yield {"end": choice["finish_reason"]}


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        data = line.strip()
        if not data.startswith(_DATA) or data == _DATA + _END:
            continue
        chunk = json.loads(data[len(_DATA) :])
        if "error" in chunk:
            raise OpenClawError(str(chunk["error"]["message"]))
        yield chunk


async def _error_text(answer: aiohttp.ClientResponse) -> str:
    try:
        return str((await answer.json())["error"]["message"])
    except (aiohttp.ClientError, ValueError, KeyError, TypeError):
        return f"the gateway answered {answer.status}"
