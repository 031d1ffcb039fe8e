"""Build the gateway's aiohttp application, and run it as the worker of the serve stage."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from openclaw_rl.engines.registry import connect
from openclaw_rl.errors import OpenClawError, StoreError
from openclaw_rl.protocols import Engine
from openclaw_rl.render.model_folder import ModelFiles, identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.auth import Keys, load_keys
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.serve.http_connection import Runner
from openclaw_rl.serve.prompt_recovery import StoreRecall
from openclaw_rl.serve.routes import Routes
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, heartbeats, policies
from openclaw_rl.store.db import Store

log = logging.getLogger(__name__)

LOOP = "gateway"
_BEAT = 1.0  # seconds
_GRACE = 5.0  # seconds for running replies at shutdown
_GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)


def make_app(
    config: Config,
    *,
    store: Store,
    engine: Engine,
    renderer: Renderer,
    keys: Keys,
    identity: str = "",
    engine_alive: Callable[[], bool] = lambda: True,
) -> web.Application:
    """Return the application. Its version manager and its writer run from start-up to clean-up.

    `store` must contain the root policy (`policies.ensure_root`).
    """
    recall = StoreRecall(store, identity=identity, stop_token_ids=renderer.stop_token_ids)
    gateway = Gateway(config, store=store, engine=engine, renderer=renderer, identity=identity, recall=recall)
    routes = Routes(gateway, keys, engine_alive)
    app = web.Application(middlewares=[routes.shaped], client_max_size=config.serve.max_body_bytes)
    app[_GATEWAY] = gateway
    for path in routes.replies.dialects:
        app.router.add_post(path, routes.replies.reply)
    for path in routes.replies.counts:
        app.router.add_post(path, routes.count_tokens)
    app.router.add_post("/v1/responses/compact", routes.stored.compact)
    app.router.add_get("/v1/responses/{id}", routes.stored.get)
    app.router.add_delete("/v1/responses/{id}", routes.stored.delete)
    app.router.add_get("/v1/responses/{id}/input_items", routes.stored.items)
    app.router.add_post("/v1/feedback", routes.feedback)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/v1/models/{name}", routes.model)
    app.router.add_get("/healthz", routes.health)
    app.router.add_get("/readyz", routes.ready)
    app.router.add_get("/metrics", routes.metrics)
    app.cleanup_ctx.append(_keeper)
    return app


async def _keeper(app: web.Application) -> Any:
    """Run the version manager while the application runs. If the manager ends early, /readyz reports it."""
    gateway = app[_GATEWAY]
    task = asyncio.create_task(gateway.versions.run(), name="version-keeper")
    task.add_done_callback(_keeper_ended)
    gateway.keeper = task
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await gateway.close()


def _keeper_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the version manager failed: %s", error, exc_info=error)


# ---------------------------------------------------------------------------------------------------------- the worker


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Run the gateway until `stop` is set.

    Consumes: HTTP requests; the head in the store; the engine's tokens. Produces: responses, exchanges, feedback.
    Waits for: clients. Unblocked by: `stop`.
    """
    store = await asyncio.to_thread(Store.open, config.store_path)
    try:
        files = await asyncio.to_thread(ModelFiles.of, config.model)
        renderer = await asyncio.to_thread(Renderer, files)
        name = await asyncio.to_thread(identity, files)
        await asyncio.to_thread(_prepare, store, config, name)
        await _serve(config, store, renderer, name, stop)
    finally:
        store.close()


def _prepare(store: Store, config: Config, name: str) -> None:
    now = time.time()
    with store.write() as conn:
        policies.ensure_root(conn, base=config.model.path, identity=name, at=now)
        failed = exchanges.fail_running(conn, "the gateway was stopped before the reply was complete", now)
    if failed:
        log.warning("%d exchanges of the last run were incomplete; they are recorded as failed", failed)


async def _serve(config: Config, store: Store, renderer: Renderer, name: str, stop: asyncio.Event) -> None:
    def connected(epoch: int) -> None:
        gateway.versions.lost()

    engine = connect(config, on_connect=connected)
    app = make_app(
        config,
        store=store,
        engine=engine,
        renderer=renderer,
        keys=load_keys(config),
        identity=name,
        engine_alive=lambda: engine.connected,
    )
    gateway = app[_GATEWAY]

    async def learn_context() -> None:
        info = await engine.info()
        gateway.context_length, gateway.grammar = info.context_length, info.grammar

    gateway.versions.on_loaded = learn_context
    runner = Runner(app, grace=_GRACE)
    await runner.setup()
    try:
        await _bind(runner, config)
        log.info("the gateway listens on http://%s:%d/v1", config.serve.host, config.serve.port)
        await _beat(store, gateway, stop)
    finally:
        await runner.cleanup()
        await engine.close()


async def _bind(runner: web.AppRunner, config: Config) -> None:
    host, port = config.serve.host, config.serve.port
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise OpenClawError(
            f"the gateway cannot listen on {host}:{port} ({error.strerror or error}). "
            "Stop the program that uses this port, or choose another port with serve.port (OPENCLAW_PORT, --port)."
        ) from error


async def _beat(store: Store, gateway: Gateway, stop: asyncio.Event) -> None:
    """Write a heartbeat each second until `stop` is set. Raises the version manager's error if it fails."""
    while not stop.is_set():
        if gateway.keeper is not None and gateway.keeper.done():
            await gateway.keeper  # raises its error: without the manager, no new version is served
        versions = gateway.versions
        note = versions.trouble or f"serving version {versions.serving}, {int(gateway.running)} running"
        try:
            await asyncio.to_thread(heartbeats.beat, store, LOOP, note)
        except StoreError as error:
            log.error("the heartbeat cannot be written: %s", error)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _BEAT)
