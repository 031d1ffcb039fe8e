"""The page behind a real gateway: both on real sockets, on one store, in threads of their own."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from urllib.parse import urlencode

import pytest
from aiohttp import web
from tests.serve.conftest import Answer, Site, Start, empty_store, renderers, start

from openclaw_rl.common.gateway_address import publish_page
from openclaw_rl.page.app import PageApp
from openclaw_rl.page.security import cookie_name
from openclaw_rl.settings.load import Config
from openclaw_rl.store import page_access
from openclaw_rl.store.db import Store

__all__ = ["empty_store", "renderers", "start"]


class PageThread:
    """The page's application in a thread; its port is published in the home until `close`."""

    def __init__(self, config: Config, store: Store) -> None:
        self.page = PageApp(config, store)
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._up: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.port = self._up.result(240)

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _main(self) -> None:
        runner = web.AppRunner(
            self.page.make_app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.2
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        with publish_page(self._config.home_dir, port):
            self._up.set_result(port)
            await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(240)


class Browser:
    """Sends what a browser would send, without its safeguards; `cookie` None: not signed in."""

    def __init__(self, site: Site, cookie: str | None) -> None:
        self.site = site
        self.cookie = cookie
        self.host = site.url.removeprefix("http://")

    def send(
        self,
        method: str,
        path: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = {"Accept": "text/html", "Origin": self.site.url, "Sec-Fetch-Site": "same-origin"}
        if self.cookie is not None:
            sent["Cookie"] = self.cookie
        body = None
        if form is not None:
            body = urlencode(form).encode("utf-8", "surrogatepass")
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        sent.update(headers or {})
        connection = http.client.HTTPConnection(self.host, timeout=240)
        try:
            connection.request(method, path, body, {k: v for k, v in sent.items() if v})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.send("GET", path, headers=headers)

    def post(
        self, path: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> Answer:
        return self.send("POST", path, form, headers)


OpenPage = Callable[[Site], Browser]


def new_ticket(store: Store, *, at: float | None = None) -> str:
    with store.write() as conn:
        return page_access.create_ticket(conn, at=time.time() if at is None else at)


@pytest.fixture
def pages() -> Iterator[list[PageThread]]:
    """The pages that were started, the newest last."""
    pages: list[PageThread] = []
    yield pages
    for page in pages:
        page.close()


@pytest.fixture
def open_page(pages: list[PageThread]) -> OpenPage:
    """Start the page of a gateway and return a browser that is signed in."""

    def open_page(site: Site) -> Browser:
        pages.append(PageThread(site.config, site.store))
        with site.store.write() as conn:
            ticket = page_access.create_ticket(conn, at=time.time())
            token = page_access.exchange_ticket(conn, ticket, at=time.time())
        return Browser(site, f"{cookie_name(site.store.secret)}={token}")

    return open_page


@pytest.fixture
def browser(start: Start, open_page: OpenPage) -> Browser:
    return open_page(start())
