"""HTTP handlers of the gateway. Every error has the wire format of its path."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aiohttp import web

from openclaw_rl.common.client_ids import read_user
from openclaw_rl.errors import PromptTooLong, RequestError, StoreError
from openclaw_rl.serve.auth import ApiKeys, Caller
from openclaw_rl.serve.chat_request import DISK_FULL
from openclaw_rl.serve.completion_handler import (
    CompletionHandler,
    decode_header,
    describe_error,
)
from openclaw_rl.serve.dialects.registry import DIALECTS, error_body, prompt_too_long
from openclaw_rl.serve.gateway import MAX_COUNTED_CONTEXTS, Gateway
from openclaw_rl.serve.http_connection import json_response
from openclaw_rl.serve.http_headers import accepted_hosts, check_host, preflight_response
from openclaw_rl.serve.request_body import decode_body, discard_body
from openclaw_rl.serve.responses_api import StoredResponseHandler
from openclaw_rl.serve.versions.version_access import may_name
from openclaw_rl.serve.versions.version_manager import unservable_reason
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import candidates, policies, retraining, version_files
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Policy

log = logging.getLogger(__name__)


_POST_PATHS = ", ".join(
    path for dialect in DIALECTS for path in (dialect.path, dialect.count_path) if path
)
_ROUTE_LIST = (
    f"POST {_POST_PATHS} and /v1/feedback; GET /v1/feedback, GET and DELETE /v1/feedback/{{id}}; "
    "PUT and GET /v1/episodes/{id}, POST /v1/episodes/{id}/outcome; GET /v1/episodes, /v1/models, "
    "/v1/models/{name}, /v1/responses/{id}, /v1/responses/{id}/input_items, /health, /healthz, /readyz and /metrics"
)
_UNSUPPORTED_ROUTES = {
    "/v1/embeddings": "this gateway serves a model that generates text, and it gives no embeddings.",
    "/v1/moderations": "this gateway has no moderation model.",
    "/v1/images": "this gateway serves a model that generates text, and it makes no images.",
    "/v1/audio": "this gateway serves a model that reads and writes text, and it has no audio.",
}
ENGINE_NAME = "engine"
"""Worker that samples, in the heartbeats."""
# Seconds after which a client may try again; there is space again when the owner makes it.
DISK_FULL_WAIT = 5


class GatewayRoutes:
    """The HTTP handlers. All but health require an API key; readiness and metrics do not on a loopback bind."""

    def __init__(self, gateway: Gateway, keys: ApiKeys, engine_alive: Callable[[], bool]) -> None:
        self._gateway = gateway
        self._keys = keys
        self._engine_alive = engine_alive
        self.completion_handler = CompletionHandler(gateway, keys)
        self.stored_responses = StoredResponseHandler(gateway, keys)
        self._reply_counter = gateway.metrics.replies.labels
        self._accepted_hosts = accepted_hosts(gateway.config.serve)

    @web.middleware
    async def error_middleware(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Middleware: check the host, and convert every error to the wire format of the request's path."""
        try:
            check_host(request, self._accepted_hosts)
            return preflight_response(
                request, self._gateway.config.serve.cors_origins
            ) or await handler(request)
        except web.HTTPException as error:
            response = self._http_error_response(request, error)
        except Exception as error:  # noqa: BLE001 - any error gets a response in the format of the path
            status, message, code, param = describe_error(error, f"{request.method} {request.path}")
            if isinstance(error, PromptTooLong):
                message, param = prompt_too_long(request.path, error)
            self.completion_handler.note_failure(request, status, message)
            response = self._error_response(request, status, message, param=param, code=code)
        await discard_body(request)
        return response

    def _http_error_response(
        self, http_request: web.Request, error: web.HTTPException
    ) -> web.Response:
        if isinstance(error, web.HTTPMethodNotAllowed):
            allowed = ", ".join(sorted(error.allowed_methods))
            answer = self._error_response(
                http_request,
                405,
                f"{http_request.path} accepts {allowed}, not {http_request.method}.",
            )
            answer.headers["Allow"] = allowed
            return answer
        messages = {
            404: unsupported_route(http_request.path)
            or f"there is no {http_request.method} {http_request.path}; the routes are {_ROUTE_LIST}.",
        }
        return self._error_response(
            http_request, error.status, messages.get(error.status, error.reason)
        )

    def _error_response(
        self,
        http_request: web.Request,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> web.Response:
        self._reply_counter(route="error", outcome=str(status)).inc()
        # Without this header, Claude Code sends a request with an unknown key ten times.
        wait = DISK_FULL_WAIT if code == DISK_FULL else 1
        headers = {}
        if status in (429, 503):
            headers["Retry-After"] = str(wait)
        elif status < 500:
            headers["X-Should-Retry"] = "false"
        body = error_body(http_request.path, status, message, param=param, code=code)
        return json_response(body, status=status, headers=headers)

    async def count_tokens(self, http_request: web.Request) -> web.Response:
        """Count the tokens of a request's prompt, in the dialect of its path."""
        caller = await self._keys.authenticate_owner(http_request)
        dialect = self.completion_handler.token_counters[http_request.path]
        check = partial(self._gateway.check_body_size, contexts=MAX_COUNTED_CONTEXTS)
        request = await decode_body(
            dialect.decode_count_request, http_request, self._gateway.config.serve, check
        )
        return json_response(
            dialect.encode_count(await self._gateway.count_prompt_tokens(request, caller))
        )

    async def list_models(self, http_request: web.Request) -> web.Response:
        caller = await self._keys.authenticate_caller(http_request)
        self._gateway.check_running(caller)
        entries = await self._model_entries(http_request, caller)
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]}
        return json_response(
            to_json({"object": "list", "data": entries, "has_more": False, **ends})
        )

    async def get_model(self, http_request: web.Request) -> web.Response:
        caller = await self._keys.authenticate_caller(http_request)
        self._gateway.check_running(caller)
        name = http_request.match_info["name"]
        for model in await self._model_entries(http_request, caller):
            if model["id"] == name:
                return json_response(to_json(model))
        raise RequestError(
            f"the model {name[:80]!r} is not here; GET /v1/models lists the models.",
            param="model",
            code="model_not_found",
            status=404,
        )

    async def _model_entries(
        self, http_request: web.Request, caller: Caller
    ) -> list[dict[str, Any]]:
        """Return the model, and the versions of it that the caller may name."""
        name = self._gateway.config.model.name
        known = await asyncio.to_thread(_all_policies, self._gateway.store)
        agent = decode_header(http_request.headers.get("X-Agent-Id", ""))
        user = decode_header(read_user(http_request.headers, {}).value)
        own_policy = self._gateway.policy_of(caller, agent=agent, user=user)
        granted = self._gateway.granted_versions(caller)
        servable = [
            policy
            for policy in known
            if unservable_reason(policy) is None
            and may_name(
                policy.version, policy.name, caller, own_policy=own_policy, granted=granted
            )
        ]
        newest = max((p.created_at for p in servable), default=0.0)
        rows = [
            (name, newest),
            *((f"{name}@{p.version}", p.created_at) for p in reversed(servable)),
        ]
        context = self._gateway.context_length
        return [_model_entry(i, at) | {"max_model_len": context} for i, at in rows]

    async def get_health(self, http_request: web.Request) -> web.Response:
        return json_response(b'{"status":"ok"}')

    async def get_readiness(self, http_request: web.Request) -> web.Response:
        """Return 200 while requests are answered.

        A head that is being loaded, or a parked worker that is not the engine, gives no 503.
        """
        await self._authenticate_if_wide(http_request)
        versions = self._gateway.versions
        keeper = self._gateway.version_task
        answers = self._engine_alive() and versions.is_loaded(versions.serving)
        reasons = []
        if not answers:
            reasons.append(versions.problem or "the engine does not answer")
        elif versions.serving != versions.head:
            reasons.append(versions.problem or f"version {versions.head} is being loaded")
        if keeper is None or keeper.done():
            answers = False
            reasons.append("the version manager has stopped; see the gateway's log for the reason")
        if (full := self._gateway.disk.problem()) is not None:
            answers = False
            reasons.append(str(full))
        # Its connection may be open although it hangs.
        if await asyncio.to_thread(_is_engine_silent, self._gateway.store):
            answers = False
        reasons += await asyncio.to_thread(_stored_problems, self._gateway.store)
        body = {
            "ready": answers,
            "reasons": reasons,
            "version": versions.serving,
            "head": versions.head,
        }
        if (
            candidate := await asyncio.to_thread(_stored_candidate, self._gateway.store)
        ) is not None:
            body["candidate"] = candidate
        return json_response(to_json(body), status=200 if answers else 503)

    async def get_metrics(self, http_request: web.Request) -> web.Response:
        await self._authenticate_if_wide(http_request)
        metrics = self._gateway.metrics
        return web.Response(body=metrics.expose(), headers={"Content-Type": metrics.content_type})

    async def _authenticate_if_wide(self, http_request: web.Request) -> None:
        """Require the key where other machines reach the gateway."""
        if not self._gateway.config.serve.is_loopback:
            await self._keys.authenticate(http_request)


def unsupported_route(path: str) -> str | None:
    """Return why a route of OpenAI's API is not served; None for other paths."""
    explanation = next(
        (
            text
            for start, text in _UNSUPPORTED_ROUTES.items()
            if (path + "/").startswith(start + "/")
        ),
        None,
    )
    return explanation and f"{explanation} Use another server for {path}."


def _model_entry(name: str, at: float) -> dict[str, Any]:
    """Return a model entry with the fields of both OpenAI's and Anthropic's formats."""
    created = datetime.fromtimestamp(int(at), UTC).isoformat()
    ours = {"id": name, "object": "model", "created": int(at), "owned_by": "openclaw-rl"}
    return ours | {"type": "model", "display_name": name, "created_at": created}


def _stored_problems(store: Store) -> list[str]:
    """Return what prevents other workers from working, damaged versions, and an undo. Replies do not depend on them."""
    try:
        with store.read() as conn:
            return [
                *heartbeats.reported_problems(conn, time.time()),
                *version_files.damage_reports(conn),
                *retraining.progress_reports(conn),
            ]
    except StoreError as error:
        return [str(error)]


def _is_engine_silent(store: Store) -> bool:
    """Return whether the supervisor has had no answer of the engine for 15 seconds, of which it says why."""
    try:
        with store.read() as conn:
            return heartbeats.has_problem(conn, ENGINE_NAME, time.time())
    except StoreError:
        return False


def _stored_candidate(store: Store) -> int | None:
    """Return the newest version that the gate examines now, if any."""
    try:
        with store.read() as conn:
            return max(
                (policy.version for policy in candidates.list_candidates(conn)), default=None
            )
    except StoreError:
        return None


def _all_policies(store: Store) -> list[Policy]:
    with store.read() as conn:
        return policies.list_all(conn)
