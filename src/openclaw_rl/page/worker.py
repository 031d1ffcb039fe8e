"""The worker of the page: its own process, so that browsing delays no token."""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from openclaw_rl.common.gateway_address import publish_page
from openclaw_rl.common.worker_loop import run_worker_loop
from openclaw_rl.page.app import PageApp
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store

log = logging.getLogger("openclaw_rl.page")

HEARTBEAT_NAME = "page"
_POLL_SECONDS = 1.0
_SHUTDOWN_SECONDS = 2.0
THREADS = 3
"""Views that are collected at once."""
CACHE_MIB = 4
"""Memory that each connection to the store may keep: one for each thread, and some for acts and changes."""


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Serve the page to the gateway until `stop` is set.

    Consumes: requests that the gateway passes on; the store. Produces: HTML, and the acts of the owner.
    Waits for: browsers. Unblocked by: `stop`.
    """
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="page")
    asyncio.get_running_loop().set_default_executor(executor)
    with await asyncio.to_thread(Store.open, config.store_path, cache_mib=CACHE_MIB) as store:
        page = PageApp(config, store)
        runner = web.AppRunner(
            page.make_app(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                await web.SockSite(runner, listener).start()
                port = int(listener.getsockname()[1])
                with publish_page(config.home_dir, port):
                    await run_worker_loop(
                        lambda: None,
                        heartbeats.heartbeat_writer(store, HEARTBEAT_NAME, lambda: _note(page)),
                        stop,
                        poll=_POLL_SECONDS,
                    )
        finally:
            await runner.cleanup()


def _note(page: PageApp) -> str:
    count = page.live.open_streams
    return f"{count} open" if count else "waiting"
