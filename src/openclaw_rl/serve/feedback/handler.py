"""HTTP handlers of `/v1/feedback`: give feedback, list it, and take it back. They need the owner's key."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from openclaw_rl.common.printable import cut_text
from openclaw_rl.common.steady_clock import recorded_time
from openclaw_rl.errors import RequestError
from openclaw_rl.serve.auth import ApiKeys
from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.registry import error_body
from openclaw_rl.serve.feedback.body import FeedbackRequest, parse_feedback
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import json_response
from openclaw_rl.serve.request_body import read_small_body
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.feedback.matching import (
    COMPARED_REPLIES,
    FoundReply,
    MatchField,
    MatchResult,
    ReplyMatch,
    match_reply,
)
from openclaw_rl.store.feedback.records import FeedbackRecord
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Feedback, Retraction

IDEMPOTENCY_HEADER = "Idempotency-Key"
MAX_PAGE_ITEMS = 100
# Feedback that one retraction takes back.
MAX_RETRACTED = 100
# Replies that an error lists, and characters of what was looked for.
_SHOWN_CANDIDATES = 10
_SHOWN_CHARS = 80


def add_feedback_routes(app: web.Application, handler: FeedbackHandler) -> None:
    """Add the routes of the handler to the application."""
    app.router.add_post("/v1/feedback", handler.post_feedback)
    app.router.add_get("/v1/feedback", handler.list_feedback)
    app.router.add_get("/v1/feedback/{id}", handler.get_feedback)
    app.router.add_delete("/v1/feedback/{id}", handler.delete_feedback)


class FeedbackHandler:
    """Gives, lists and takes back feedback."""

    def __init__(self, gateway: Gateway, keys: ApiKeys) -> None:
        self._gateway = gateway
        self._keys = keys
        self._reply_counter = gateway.metrics.replies.labels

    async def post_feedback(self, request: web.Request) -> web.Response:
        """Record feedback, or take it back (`retract`). Raises `RequestError`."""
        scope = await self._keys.authenticate(request)
        raw = await read_small_body(request, self._gateway.config.serve)
        key = request.headers.get(IDEMPOTENCY_HEADER)
        parsed = parse_feedback(raw, key, self._gateway.store.secret)
        target: str | None = parsed.target
        if parsed.retract and target is None and parsed.match is None:
            return await self._retract(scope, parsed, target)
        known = await self._find_known(scope, parsed)
        if known is not None:
            return self._accepted(known)
        if parsed.match is not None:
            result = await asyncio.to_thread(_match, self._gateway.store, scope, parsed.match)
            if result.candidates:
                return self._ambiguous(result)
            if result.reply is None:
                raise _no_match(parsed.match, result)
            target = result.reply.id
        if parsed.retract:
            return await self._retract(scope, parsed, target)
        assert target is not None
        return await self._record(scope, parsed, target)

    async def _find_known(self, scope: str, parsed: FeedbackRequest) -> Feedback | None:
        """Return the feedback that the request's idempotency key has brought before, if any."""
        if parsed.idempotency_key is None or parsed.retract:
            return None
        known = await asyncio.to_thread(
            _find_by_key, self._gateway.store, scope, parsed.idempotency_key
        )
        if known is not None and known.body_digest != parsed.digest:
            raise field_error(
                "idempotency_key",
                f"this key has brought other feedback ({known.id}). Send the same body again, or use a new key.",
                code="idempotency_conflict",
                status=409,
            )
        return known

    async def _record(self, scope: str, parsed: FeedbackRequest, target: str) -> web.Response:
        if not parsed.says_something:
            # For example an emoji that says nothing of a reply's quality.
            self._reply_counter(route="feedback", outcome="no_opinion").inc()
            body = {"id": None, "object": "feedback", "target": target, "score": None}
            return json_response(to_json(body))
        # Whatever was captured when the reply was given.
        keeps_words = self._gateway.config.serve.capture != "redacted"
        item = Feedback(
            id="fb-" + secrets.token_hex(12),
            scope=scope,
            target=target,
            score=parsed.score,
            comment=parsed.comment if keeps_words else None,
            correction=parsed.correction if keeps_words else None,
            given_at=recorded_time(),
            given_by=parsed.given_by,
            idempotency_key=parsed.idempotency_key,
            body_digest=parsed.digest if parsed.idempotency_key is not None else None,
        )
        self._gateway.disk.check()
        try:
            await self._gateway.writer.put(item)
        except KeyError:
            raise _unknown_reply(target) from None
        # Another request with the same key may have been faster.
        return self._accepted(await self._find_known(scope, parsed) or item)

    def _accepted(self, item: Feedback) -> web.Response:
        self._reply_counter(route="feedback", outcome="ok").inc()
        body = {
            "id": item.id,
            "object": "feedback",
            "target": item.target,
            "score": item.score,
            "by": item.given_by,
        }
        return json_response(to_json(body))

    async def _retract(
        self, scope: str, parsed: FeedbackRequest, target: str | None
    ) -> web.Response:
        """Take back what `by` gave on the reply, or all of it; without a reply, what the idempotency key brought."""
        found = await asyncio.to_thread(_find_retracted, self._gateway.store, scope, parsed, target)
        if not found:
            what = f"on the reply {target!r}" if target is not None else "with this idempotency key"
            by = f" by {parsed.given_by[:_SHOWN_CHARS]!r}" if parsed.given_by else ""
            raise RequestError(
                f"there is no feedback {what}{by} under this API key to take back.",
                param="retract",
                code="not_found",
                status=404,
            )
        await self._take_back(scope, found)
        body = {"object": "list", "data": [_deleted_entry(record) for record in found]}
        return json_response(to_json(body))

    async def _take_back(self, scope: str, found: Sequence[FeedbackRecord]) -> None:
        self._gateway.disk.check()
        ids = tuple(record.feedback.id for record in found)
        await self._gateway.writer.put(Retraction(ids=ids, scope=scope, at=recorded_time()))
        self._reply_counter(route="feedback", outcome="retracted").inc()

    async def delete_feedback(self, request: web.Request) -> web.Response:
        """Take feedback back: its turn is judged again by what else is there. Idempotent. Raises `RequestError`."""
        scope = await self._keys.authenticate(request)
        record = await self._load(scope, request.match_info["id"])
        if record.feedback.retracted_at is None:
            await self._take_back(scope, [record])
        return json_response(to_json(_deleted_entry(record)))

    async def get_feedback(self, request: web.Request) -> web.Response:
        """Return one piece of feedback. Raises `RequestError`."""
        scope = await self._keys.authenticate(request)
        return json_response(to_json(_entry(await self._load(scope, request.match_info["id"]))))

    async def list_feedback(self, request: web.Request) -> web.Response:
        """Return a page of feedback, newest first.

        Parameters: `target`, `session`, `user`, `by`, `retracted=true` (with what was taken back), `limit`, `after`.
        """
        scope = await self._keys.authenticate(request)
        query = request.query
        limit = _read_limit(query.get("limit", "20"))
        found = await asyncio.to_thread(
            _list_feedback,
            self._gateway.store,
            scope,
            target=query.get("target"),
            session=query.get("session"),
            user=query.get("user"),
            given_by=query.get("by"),
            after=query.get("after"),
            with_retracted=query.get("retracted", "").lower() == "true",
            limit=limit + 1,
        )
        page = [_entry(record) for record in found[:limit]]
        body = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(found) > limit,
        }
        return json_response(to_json(body))

    async def _load(self, scope: str, id_: str) -> FeedbackRecord:
        record = await asyncio.to_thread(_get_feedback, self._gateway.store, scope, id_)
        if record is None:
            raise RequestError(
                f"there is no feedback {id_[:_SHOWN_CHARS]!r} under this API key.",
                param="id",
                code="not_found",
                status=404,
            )
        return record

    def _ambiguous(self, result: MatchResult) -> web.Response:
        """Return the error for several replies that fit, with the replies as data."""
        candidates = result.candidates[:_SHOWN_CANDIDATES]
        listed = ", ".join(reply.id for reply in candidates)
        more = len(result.candidates) - len(candidates)
        others = f" and {more} more" if more else ""
        message = (
            f"match: {len(result.candidates)} replies fit, newest first: {listed}{others}. "
            f"{_distinction_text(result.distinguished_by)}"
        )
        raw = error_body("/v1/feedback", 409, message, param="match", code="ambiguous_reply")
        body = msgspec.json.decode(raw)
        body["error"]["candidates"] = [_candidate_entry(reply) for reply in candidates]
        body["error"]["distinguished_by"] = [field.value for field in result.distinguished_by]
        self._reply_counter(route="error", outcome="409").inc()
        return json_response(to_json(body), status=409, headers={"X-Should-Retry": "false"})


def _distinction_text(fields: Sequence[MatchField]) -> str:
    names = [f"match.{field.value}" for field in fields if field is not MatchField.TARGET]
    ways = [*names, "the id as target"] if MatchField.TARGET in fields else names
    if MatchField.TARGET in fields and names:
        return f"{' and '.join(names)} would leave fewer of them; target, with one of the ids, is exact."
    return f"Send {' or '.join(ways)} to choose one."


def _no_match(wanted: ReplyMatch, result: MatchResult) -> RequestError:
    """Return the error that says what was looked for."""
    looked = []
    for name in ("text", "session", "user", "client_message_id"):
        value = getattr(wanted, name)
        if value is not None:
            looked.append(f"{name} {cut_text(value, _SHOWN_CHARS)!r}")
    problem = f"no reply under this API key fits {', '.join(looked)}"
    if wanted.text is not None:
        problem += (
            f". The text was compared by its hash with all replies, and by its letters with the newest "
            f"{COMPARED_REPLIES}"
        )
    if result.without_text:
        problem += f"; {result.without_text} replies fit everything but the text"
    return field_error("match", f"{problem}.", code="not_found", status=404)


def _unknown_reply(target: str) -> RequestError:
    return field_error(
        "id",
        f"there is no reply {target[:_SHOWN_CHARS]!r} under this API key.",
        code="not_found",
        status=404,
    )


def _read_limit(value: str) -> int:
    is_number = value.isascii() and value.isdigit() and len(value) < 6
    if not is_number or not 1 <= int(value) <= MAX_PAGE_ITEMS:
        raise field_error("limit", f"expected 1 to {MAX_PAGE_ITEMS}, got {value[:40]!r}.")
    return int(value)


def _entry(record: FeedbackRecord) -> dict[str, Any]:
    """Return feedback as the API shows it."""
    item = record.feedback
    return {
        "id": item.id,
        "object": "feedback",
        "target": item.target,
        "session": record.session,
        "user": record.user,
        "score": item.score,
        "comment": item.comment,
        "correction": item.correction,
        "by": item.given_by,
        "given_at": item.given_at,
        "counts": record.counts,
        "retracted_at": item.retracted_at,
        "trained_versions": list(record.trained_versions),
    }


def _deleted_entry(record: FeedbackRecord) -> dict[str, Any]:
    """Return what was taken back. If versions were trained on its reply: which, and the command that undoes it."""
    item = record.feedback
    entry: dict[str, Any] = {
        "id": item.id,
        "object": "feedback",
        "deleted": True,
        "target": item.target,
        "trained_versions": list(record.trained_versions),
    }
    if record.trained_versions:
        entry["undo"] = f"openclaw-rl undo --turn {item.target}"
    return entry


def _candidate_entry(reply: FoundReply) -> dict[str, Any]:
    return {
        "id": reply.id,
        "session": reply.session,
        "user": reply.user,
        "client_message_id": reply.client_message_id,
        "admitted_at": reply.admitted_at,
    }


def _match(store: Store, scope: str, wanted: ReplyMatch) -> MatchResult:
    with store.read() as conn:
        return match_reply(conn, scope, wanted, store.secret)


def _find_by_key(store: Store, scope: str, key: str) -> Feedback | None:
    with store.read() as conn:
        return records.find_by_key(conn, scope, key)


def _find_retracted(
    store: Store, scope: str, parsed: FeedbackRequest, target: str | None
) -> list[FeedbackRecord]:
    with store.read() as conn:
        if target is None:
            assert parsed.idempotency_key is not None
            known = records.find_by_key(conn, scope, parsed.idempotency_key)
            record = None if known is None else records.get_feedback(conn, scope, known.id)
            return [] if record is None else [record]
        return records.list_feedback(
            conn, scope, target=target, given_by=parsed.given_by, limit=MAX_RETRACTED
        )


def _get_feedback(store: Store, scope: str, id_: str) -> FeedbackRecord | None:
    with store.read() as conn:
        return records.get_feedback(conn, scope, id_)


def _list_feedback(store: Store, scope: str, **filters: Any) -> list[FeedbackRecord]:
    with store.read() as conn:
        return records.list_feedback(conn, scope, **filters)
