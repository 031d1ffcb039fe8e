"""Build the gateway's aiohttp application, and run it as the worker of the serve stage."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from aiohttp import web

from openclaw_rl.common.assets import STARTER, local_model_folder
from openclaw_rl.common.gateway_address import (
    GATE_REPLY_PATH,
    GatewayAddress,
    gate_key,
    publish_address,
)
from openclaw_rl.common.worker_loop import run_worker_loop
from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.errors import OpenClawError, StartStopped
from openclaw_rl.protocols import Engine
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.render.template_probe import UNREAD_CALLS_NOTE
from openclaw_rl.serve.auth import ApiKeys, load_keys
from openclaw_rl.serve.embeddings.embedding_handler import EMBEDDINGS_PATH, EmbeddingHandler
from openclaw_rl.serve.episodes.episode_handler import EpisodeHandler, add_episode_routes
from openclaw_rl.serve.feedback.handler import FeedbackHandler, add_feedback_routes
from openclaw_rl.serve.gate.reply_handler import GateReplyHandler
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import GatewayRunner
from openclaw_rl.serve.http_headers import add_header_signals
from openclaw_rl.serve.page.proxy import PageProxy
from openclaw_rl.serve.routes import GatewayRoutes
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, file_digests, heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import record_main_key, start_policies

log = logging.getLogger(__name__)

HEARTBEAT_NAME = "gateway"
# Seconds between two checks of the version manager.
_POLL_SECONDS = 1.0
# Seconds for running replies at shutdown.
_SHUTDOWN_GRACE_SECONDS = 5.0
# Time after which a thread with a large request gives the GIL to the event loop.
_SWITCH_INTERVAL_SECONDS = 0.0005
# New objects after which garbage is collected: those of about ten requests.
_GARBAGE_OBJECTS = 10_000
LISTEN_BACKLOG = 4096
"""Connections that wait to be accepted; the system may allow fewer. Beyond it, a client tries again after a second."""
# From malloc.h.
_M_MMAP_THRESHOLD = -3
_GATEWAY_KEY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)


def make_app(
    config: Config,
    *,
    store: Store,
    engine: Engine,
    renderer: Renderer,
    keys: ApiKeys,
    identity: str = "",
    engine_alive: Callable[[], bool] = lambda: True,
) -> web.Application:
    """Return the application. Its version manager and its writer run from start-up to clean-up.

    `store` must contain the root policy (`policies.ensure_root`).
    """
    keys.ticket_secret = store.secret
    gateway = Gateway(config, store=store, engine=engine, renderer=renderer, identity=identity)
    routes = GatewayRoutes(gateway, keys, engine_alive)
    app = web.Application(middlewares=[routes.error_middleware])
    app[_GATEWAY_KEY] = gateway
    add_header_signals(app, config.serve.cors_origins)
    for path in routes.completion_handler.dialects:
        app.router.add_post(path, routes.completion_handler.handle_request)
    for path in routes.completion_handler.token_counters:
        app.router.add_post(path, routes.count_tokens)
    app.router.add_post("/v1/responses/compact", routes.stored_responses.refuse_compact)
    app.router.add_get("/v1/responses/{id}", routes.stored_responses.get_response)
    app.router.add_delete("/v1/responses/{id}", routes.stored_responses.refuse_delete)
    app.router.add_get("/v1/responses/{id}/input_items", routes.stored_responses.list_input_items)
    app.router.add_post(
        GATE_REPLY_PATH, GateReplyHandler(gateway, gate_key(store.secret)).post_reply
    )
    if config.serve.embeddings:
        app.router.add_post(EMBEDDINGS_PATH, EmbeddingHandler(gateway, keys).post_embeddings)
    add_feedback_routes(app, FeedbackHandler(gateway, keys))
    add_episode_routes(app, EpisodeHandler(gateway, keys))
    app.router.add_get("/v1/models", routes.list_models)
    app.router.add_get("/v1/models/{name}", routes.get_model)
    for path in ("/health", "/healthz"):
        app.router.add_get(path, routes.get_health)
    app.router.add_get("/readyz", routes.get_readiness)
    app.router.add_get("/metrics", routes.get_metrics)
    PageProxy(config, store.secret).add_routes(app)
    app.cleanup_ctx.append(_run_version_manager)
    return app


async def _run_version_manager(app: web.Application) -> Any:
    """Run the version manager while the application runs. If the manager ends early, /readyz reports it."""
    gateway = app[_GATEWAY_KEY]
    task = asyncio.create_task(gateway.versions.run(), name="version-keeper")
    task.add_done_callback(_log_manager_failure)
    gateway.version_task = task
    gateway.background.spawn(gateway.lessons.read_topics())
    examiner_task = None
    if gateway.examiner is not None:
        examiner_task = asyncio.create_task(gateway.examiner.run(), name="lesson-examiner")
        examiner_task.add_done_callback(_log_examiner_failure)
    yield
    for running in (task, examiner_task):
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    await gateway.close()


def _log_examiner_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("lessons are no longer examined: %s", error, exc_info=error)


def _log_manager_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the version manager failed: %s", error, exc_info=error)


# -------------------------------------------------------------------------------------- the worker


async def run(
    config: Config, *, stop: asyncio.Event, listeners: Sequence[socket.socket] = ()
) -> None:
    """Run the gateway until `stop` is set. `listeners`: bound sockets; without them it binds its own.

    Consumes: HTTP requests; the head in the store; the engine's tokens. Produces: responses, exchanges, feedback.
    Waits for: clients. Unblocked by: `stop`.
    """
    _bound_heap()
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    store = await asyncio.to_thread(Store.open, config.store_path)
    try:
        files = await asyncio.to_thread(ModelFiles.from_config, config.model)
        literal = config.serve.special_tokens == "text"
        renderer = await asyncio.to_thread(Renderer, files, literal_text=literal)
        identity = await asyncio.to_thread(_identify_model, store, files, stop)
        keys = load_keys(config)
        await asyncio.to_thread(_prepare_store, store, config, identity, keys.first_scope)
        await _serve_until_stopped(config, store, renderer, identity, keys, stop, listeners)
    except StartStopped as error:
        log.info("%s", error)
    finally:
        store.close()


def _bound_heap() -> None:
    """Make glibc return large blocks at once; by default, a few bodies of 8 MB leave 100 MB resident."""
    # Other C libraries do not have it.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**16)


def _identify_model(store: Store, files: ModelFiles, stop: asyncio.Event) -> str:
    report = file_digests.heartbeat_reporter(store, HEARTBEAT_NAME)
    return compute_identity(
        files,
        file_digests.digest_files(store, files.weights, report=report, should_stop=stop.is_set),
    )


def _prepare_store(store: Store, config: Config, identity: str, main_key: str) -> None:
    now = time.time()
    with store.write() as conn:
        policies.ensure_root(conn, base=config.model.path, identity=identity, at=now)
        start_policies(conn, config.policy.per)
        record_main_key(conn, main_key)
        failed = exchanges.fail_running(
            conn, "the gateway was stopped before the reply was complete", now
        )
    if failed:
        log.warning(
            "%d exchanges of the last run were incomplete; they are recorded as failed", failed
        )


@contextmanager
def _spare_garbage_collector() -> Iterator[None]:
    """Collect garbage less often, and leave out what exists since the start.

    With Python's defaults, the objects of rules, settings and libraries are searched again every few hundred requests,
    and each request is searched while it runs.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def _serve_until_stopped(
    config: Config,
    store: Store,
    renderer: Renderer,
    identity: str,
    keys: ApiKeys,
    stop: asyncio.Event,
    listeners: Sequence[socket.socket],
) -> None:
    engine = connect_engine(config, on_connect=lambda epoch: gateway.versions.mark_lost())
    app = make_app(
        config,
        store=store,
        engine=engine,
        renderer=renderer,
        keys=keys,
        identity=identity,
        engine_alive=lambda: engine.connected,
    )
    gateway = app[_GATEWAY_KEY]

    async def update_engine_info() -> None:
        info = await engine.info()
        gateway.sampling.context_length = info.context_length
        gateway.sampling.supports_grammar = info.grammar
        gateway.reads_images = info.images

    gateway.versions.on_loaded = update_engine_info
    runner = GatewayRunner(app, config.serve, grace=_SHUTDOWN_GRACE_SECONDS)
    await runner.setup()
    try:
        if not renderer.reads_calls:
            log.warning("%s", UNREAD_CALLS_NOTE)
        await _listen(runner, config, listeners)
        wide = (
            f" (serve.host {config.serve.host})" if config.serve.host in ("0.0.0.0", "::") else ""
        )
        log.info("listening at %s/v1%s", config.serve.url, wide)
        log.info(
            "chat template: %s format; it %s", renderer.family.name, renderer.history_description
        )
        if config.serve.special_tokens == "text" and (acting := renderer.acting_tokens):
            log.warning(
                "%d control tokens cannot be encoded as text by this tokenizer, such as %s; turns with their text are "
                "not trained on (serve.special_tokens)",
                len(acting),
                min(acting),
            )
        with _spare_garbage_collector(), publish_address(config.home_dir, _address(config)):
            await run_worker_loop(
                lambda: _check_version_manager(gateway),
                heartbeats.heartbeat_writer(store, HEARTBEAT_NAME, lambda: _status_note(gateway)),
                stop,
                poll=_POLL_SECONDS,
            )
    finally:
        await runner.cleanup()
        await engine.close()


def _address(config: Config) -> GatewayAddress:
    key: Literal["settings", "file"] = "settings" if config.serve.api_key else "file"
    folder = None if config.model.path == STARTER else local_model_folder(config.model.path)
    base = config.model.path if folder is None else str(folder.absolute())
    return GatewayAddress(
        url=config.serve.url,
        model=config.model.name,
        model_path=base,
        key=key,
        pid=os.getpid(),
        method=config.train.method,
    )


async def _listen(
    runner: web.AppRunner, config: Config, listeners: Sequence[socket.socket]
) -> None:
    host = config.serve.host
    port = config.serve.port
    try:
        for listener in listeners:
            await web.SockSite(runner, listener, backlog=LISTEN_BACKLOG).start()
        if not listeners:
            await web.TCPSite(runner, host, port, backlog=LISTEN_BACKLOG).start()
    except OSError as error:
        raise OpenClawError(
            f"the gateway cannot listen on {host}:{port} ({error.strerror or error}). "
            "Stop the program that uses this port, or choose another port with serve.port (OPENCLAW_PORT, --port)."
        ) from error


def _check_version_manager(gateway: Gateway) -> None:
    """Raise the version manager's error if it failed: without it, no new version is served."""
    if gateway.version_task is not None and gateway.version_task.done():
        gateway.version_task.result()


def _status_note(gateway: Gateway) -> str:
    versions = gateway.versions
    running = int(gateway.load.running_replies)
    note = versions.problem or f"serving version {versions.serving}, {running} running"
    return note if gateway.renderer.reads_calls else f"{note}; {UNREAD_CALLS_NOTE}"
