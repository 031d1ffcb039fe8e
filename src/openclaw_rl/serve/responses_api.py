"""Handlers below /v1/responses/{id}: stored replies, for the API key that created them."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.auth import ApiKeys
from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.openai_responses_stored import input_items, stored_response
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import json_response
from openclaw_rl.serve.reply_accumulator import count_reasoning_tokens
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Capture, Exchange

MAX_PAGE_ITEMS = 100


class StoredResponseHandler:
    """HTTP handlers for stored responses."""

    def __init__(self, gateway: Gateway, keys: ApiKeys) -> None:
        self._gateway = gateway
        self._keys = keys

    async def get_response(self, request: web.Request) -> web.Response:
        """Return the Response object. It cannot be streamed, because its events are not stored."""
        if request.query.get("stream", "").lower() == "true":
            raise field_error("stream", "a stored reply cannot be streamed; leave stream out.")
        exchange = await self._find_exchange(request)
        reasoning = await asyncio.to_thread(self._count_reasoning, exchange)
        return json_response(
            to_json(stored_response(exchange, self._gateway.config.model.name, reasoning=reasoning))
        )

    def _count_reasoning(self, exchange: Exchange) -> int:
        """Count the reasoning tokens. 0 for a reply of another model, whose tokens have another meaning."""
        same = exchange.request.identity == self._gateway.identity
        return count_reasoning_tokens(exchange, self._gateway.renderer) if same else 0

    async def list_input_items(self, request: web.Request) -> web.Response:
        """Return a page of the input items, newest first unless `order` is asc. Parameters: `limit`, `after`."""
        limit = request.query.get("limit", "20")
        order = request.query.get("order", "desc")
        if not (
            limit.isascii()
            and limit.isdigit()
            and len(limit) < 6
            and 1 <= int(limit) <= MAX_PAGE_ITEMS
        ):
            raise field_error("limit", f"expected 1 to {MAX_PAGE_ITEMS}, got {limit[:40]!r}.")
        if order not in ("asc", "desc"):
            raise field_error("order", f"expected asc or desc, got {order[:40]!r}.")
        items = input_items(await self._find_exchange(request))
        items = items if order == "asc" else items[::-1]
        page, more = _select_page(items, request.query.get("after"), int(limit))
        first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
        body = {
            "object": "list",
            "data": page,
            "first_id": first,
            "last_id": last,
            "has_more": more,
        }
        return json_response(to_json(body))

    async def refuse_delete(self, request: web.Request) -> web.Response:
        """Refuse: deleting a reply would not undo the training on it. Raises `RequestError`."""
        await self._keys.authenticate(request)
        raise RequestError(
            "stored replies cannot be deleted over the API; training on them would not be undone."
        )

    async def refuse_compact(self, request: web.Request) -> web.Response:
        """Refuse: only OpenAI's servers can read a compacted conversation. Raises `RequestError` (404)."""
        await self._keys.authenticate(request)
        raise RequestError(
            "compaction is not supported; request a summary in a normal request, and continue from that.",
            code="not_found",
            status=404,
        )

    async def _find_exchange(self, request: web.Request) -> Exchange:
        scope = await self._keys.authenticate(request)
        name = request.match_info["id"]
        exchange = await asyncio.to_thread(_load_exchange, self._gateway.store, name)
        if exchange is None or exchange.request.scope != scope:
            raise RequestError(
                f"there is no reply {name[:80]!r} under this API key.",
                param="response_id",
                code="not_found",
                status=404,
            )
        if exchange.request.capture is Capture.REDACTED:
            raise RequestError(f"{name[:80]!r} was stored without its text.", param="response_id")
        return exchange


def _load_exchange(store: Store, name: str) -> Exchange | None:
    with store.read() as conn:
        return exchanges.get_readable(conn, [name]).get(name) if name.isascii() else None


def _select_page(
    items: list[dict[str, Any]], after: str | None, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return (at most `limit` items after the item with the id `after`, whether there are more)."""
    if after:
        at = next((n for n, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise field_error("after", f"there is no item {after[:80]!r}.")
        items = items[at + 1 :]
    return items[:limit], len(items) > limit
