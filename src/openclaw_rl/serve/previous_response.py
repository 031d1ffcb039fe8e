"""Resolve `previous_response_id` and item references from stored exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from openclaw_rl.serve.chat_request import ChatRequest, field_error
from openclaw_rl.serve.dialects.openai_responses_input import INSTRUCTIONS_KEY, has_instructions
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Capture, Exchange, ExchangeStatus, Message

_PREVIOUS_FIELD = "previous_response_id"


async def resolve_previous_response(request: ChatRequest, scope: str, store: Store) -> ChatRequest:
    """Return the request with the whole conversation as messages.

    Its own instructions come first; earlier ones are left out.

    Raises `RequestError` if a stored reply is unknown under this key, is incomplete, or was stored without its text.
    """
    named = dict.fromkeys(request.references.values(), "input")
    if request.previous_id is not None:
        named[request.previous_id] = _PREVIOUS_FIELD
    if not named:
        return request
    stored = await asyncio.to_thread(_load_exchanges, store, list(named))
    for name, param in named.items():
        _check_continuable(stored.get(name), name, param, scope)
    new = [
        _reply_message(stored[request.references[n]]) if n in request.references else m
        for n, m in enumerate(request.messages)
    ]
    before = (
        [] if request.previous_id is None else _stored_conversation(stored[request.previous_id])
    )
    instruction_count = 1 if request.has_instructions else 0
    messages = [*new[:instruction_count], *before, *new[instruction_count:]]
    raw = [to_json(m) for m in messages]
    return replace(
        request, messages=messages, references={}, raw=raw, size=request.size + sum(map(len, raw))
    )


def _load_exchanges(store: Store, ids: Sequence[str]) -> Mapping[str, Exchange]:
    with store.read() as conn:
        # Our ids are ASCII.
        return exchanges.get_readable(conn, [i for i in ids if i.isascii()])


def _check_continuable(exchange: Exchange | None, name: str, param: str, scope: str) -> None:
    """Raise `RequestError` if the exchange cannot be continued. Another key's exchange is reported as unknown."""
    shown = name[:80]
    if exchange is None or exchange.request.scope != scope:
        raise field_error(
            param,
            f"there is no reply {shown!r} under this API key. Send the conversation as input instead.",
            code="previous_response_not_found",
        )
    if exchange.request.capture is Capture.REDACTED:
        raise field_error(
            param, f"{shown!r} was stored without its text. Send the conversation as input instead."
        )
    if exchange.reply is None or exchange.reply.status is not ExchangeStatus.DONE:
        state = (
            "is not complete yet"
            if exchange.reply is None
            else f"has no complete reply ({exchange.reply.status.value})"
        )
        raise field_error(param, f"{shown!r} {state}.")


def _stored_conversation(exchange: Exchange) -> Iterable[Message]:
    """Return the messages to carry over. A client's own `INSTRUCTIONS` key is removed: it must not act as our mark."""
    sent_messages = (
        exchange.request.messages[1:]
        if has_instructions(exchange.request)
        else exchange.request.messages
    )
    unmarked = (
        {k: v for k, v in m.items() if k != INSTRUCTIONS_KEY} if INSTRUCTIONS_KEY in m else m
        for m in sent_messages
    )
    return [*unmarked, _reply_message(exchange)]


def _reply_message(exchange: Exchange) -> Message:
    assert exchange.reply is not None, "checked"
    return exchange.reply.message
