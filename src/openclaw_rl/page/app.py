"""The application of the page: sign-in, views, acts and the stream of changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, tzinfo
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs

from aiohttp import web
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from openclaw_rl.common.gateway_address import page_key
from openclaw_rl.errors import OpenClawError, StoreError
from openclaw_rl.page import version_replies
from openclaw_rl.page.live import LiveChanges
from openclaw_rl.page.reply_tokens import ReplyTokens
from openclaw_rl.page.sections import SECTIONS, FindPicture
from openclaw_rl.page.security import (
    SECURITY_HEADERS,
    SIGNED_IN_HEADER,
    cookie_name,
    has_gateway_key,
    is_own_origin,
    may_read,
)
from openclaw_rl.page.templating import STATIC_FOLDER, TemplateRenderer
from openclaw_rl.page.time_zone import ZONE_COOKIE, find_zone
from openclaw_rl.page.version_replies import VersionReplies
from openclaw_rl.page.view import (
    ActPlan,
    ActRequest,
    ActResult,
    InvalidForm,
    NotFound,
    PageAct,
    View,
    ViewRequest,
)
from openclaw_rl.settings.load import Config
from openclaw_rl.store import page_access
from openclaw_rl.store.acts import get_act, new_act_id
from openclaw_rl.store.db import Store

log = logging.getLogger("openclaw_rl.page")

MAX_FORM_BYTES = 256 * 1024
SIGN_IN_PATH = "/ui/sign-in"
DONE_EVENT = "act-done"
"""Event at the form of an act that was carried out; a form without a dialog waits for it."""
_PUBLIC_PREFIX = "/ui/static/"
_COMMENT_SECONDS = 15.0
_QUICK_THREADS = 2
_Result = TypeVar("_Result")
# Of the form by which a browser signs in.
_TICKET_BYTES = 1024
_TICKET_SECONDS = 10.0
_DATA_OF_ALL: Mapping[str, Any] = {"sections": SECTIONS, "path": "", "message": ""}
"""Data that every template has."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageApp:
    """Handlers of the page. Every one but sign-in and the static files needs a signed-in browser."""

    def __init__(self, config: Config, store: Store) -> None:
        self.config = config
        self.store = store
        # Views never delay the check of a cookie and the changes, and an act waits for none of them.
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="page-quick")
        self._act_thread = ThreadPoolExecutor(1, thread_name_prefix="page-act")
        self.live = LiveChanges(store, self._quick)
        self._key = page_key(store.secret)
        self._cookie = cookie_name(store.secret)
        self._templates = TemplateRenderer()
        self._tokens = ReplyTokens(config)
        self.running_acts: dict[str, asyncio.Future[ActResult]] = {}
        self._replies = VersionReplies(config, store)
        self._cache: dict[str, Any] = {version_replies.CACHE_NAME: self._replies}

    def make_app(self) -> web.Application:
        """Return the application. Raises `ValueError` if two views have one path."""
        app = web.Application(
            middlewares=[self._explain_errors, self._guard], client_max_size=MAX_FORM_BYTES
        )
        app.on_response_prepare.append(_add_security_headers)
        app.router.add_static(_PUBLIC_PREFIX, STATIC_FOLDER)
        app.router.add_get("/ui", self._show_start)
        app.router.add_post(SIGN_IN_PATH, self._sign_in)
        app.router.add_post("/ui/sign-out", self._sign_out)
        app.router.add_get("/ui/changes", self._stream_changes)
        app.router.add_get("/ui/acts/state/{id}", self._show_act_state)
        for section in SECTIONS:
            for view in section.views:
                app.router.add_get(view.path, partial(self._show_view, view))
            for act in section.acts:
                app.router.add_get(act.path, partial(self._show_plan, act))
                app.router.add_post(act.path, partial(self._carry_out, act))
            for path, find in section.pictures.items():
                app.router.add_get(path, partial(self._show_picture, find))
            for path, stream in section.streams.items():
                app.router.add_post(path, partial(stream, self.config, self.store))
        app.cleanup_ctx.append(self._run_live)
        return app

    async def _run_live(self, _app: web.Application) -> Any:
        tasks = (
            asyncio.create_task(self.live.run(), name="page-changes"),
            asyncio.create_task(asyncio.to_thread(self._fill_caches), name="page-caches"),
        )
        yield
        self.live.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._close_threads)

    def _close_threads(self) -> None:
        """Wait for acts that are being carried out, and for replies that are being generated."""
        self._replies.close()
        self._act_thread.shutdown()
        self._quick.shutdown()

    def _fill_caches(self) -> None:
        """Collect the first view once: its summaries take a moment, which the first visitor need not wait for."""
        start = SECTIONS[0].views[0]
        try:
            with self.store.read() as conn:
                data = start.collect(self._view_request(conn, {}, {}))
            self._templates.render(start.template, {**_DATA_OF_ALL, **data})
        except Exception:
            # Any error, also a bug: the first visitor waits a little longer, and the log says why.
            log.exception("the first view cannot be prepared")

    # ------------------------------------------------------------------------------ middlewares

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse what comes past the gateway, from another origin, or from a browser that is not signed in."""
        if not has_gateway_key(request, self._key):
            raise web.HTTPForbidden(text="The page answers through the gateway alone.")
        if request.method == "POST" and not is_own_origin(request):
            raise web.HTTPForbidden(text="This request comes from another page.")
        if not may_read(request):
            raise web.HTTPForbidden(text="This request comes from another page.")
        if request.path.startswith(_PUBLIC_PREFIX) or request.path == SIGN_IN_PATH:
            return await handler(request)
        if not await self._run_quickly(self._is_signed_in, request):
            return self._html("sign_in.html", {}, status=200 if _opens_link(request) else 401)
        response = await handler(request)
        if not response.prepared:
            response.headers[SIGNED_IN_HEADER] = "1"
        return response

    async def _run_quickly(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run a short read or write of the store in a thread that views do not use."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._quick, function, *arguments)

    def _is_signed_in(self, request: web.Request) -> bool:
        token = request.cookies.get(self._cookie, "")
        if not token:
            return False
        with self.store.read() as conn:
            return page_access.is_signed_in(conn, token, at=time.time())

    @web.middleware
    async def _explain_errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Show an error as a page that says what happened."""
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return self._show_error(request, 404, f"There is no page {request.path[:200]}.")
        except web.HTTPRequestEntityTooLarge:
            size = MAX_FORM_BYTES // 1024
            return self._show_error(request, 413, f"This is longer than {size} KiB: shorten it.")
        except web.HTTPException:
            raise
        except NotFound as error:
            return self._show_error(request, 404, str(error))
        except StoreError as error:
            return self._show_error(request, 503, str(error))
        except OpenClawError as error:
            return self._show_error(request, 422, str(error))
        except Exception:
            # Any bug: the browser gets a page, the log the traceback.
            log.exception("%s %s failed", request.method, request.path)
            return self._show_error(
                request, 500, "This is an error of the page. Its log, page.log, says more."
            )

    def _show_error(self, request: web.Request, status: int, message: str) -> web.Response:
        """Return the error as a dialog if the browser asked for one, else as a page."""
        template = "error_dialog.html" if "HX-Request" in request.headers else "error.html"
        # htmx shows only responses that succeeded.
        shown = 200 if template == "error_dialog.html" and request.method == "POST" else status
        return self._html(template, {"message": message, "status": status}, status=shown)

    # --------------------------------------------------------------------------------- sign-in

    async def _show_start(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPSeeOther("/ui/now")

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        """Exchange the ticket of a link for a cookie."""
        ticket = await _read_ticket(request)
        token = await self._run_quickly(self._exchange, ticket[:200])
        if token is None:
            message = "This link was used already, or is older than ten minutes."
            return self._html("sign_in.html", {"message": message}, status=401)
        response = web.Response(status=204)
        response.set_cookie(
            self._cookie,
            token,
            max_age=int(page_access.SESSION_SECONDS),
            path="/ui",
            httponly=True,
            samesite="Strict",
        )
        return response

    def _exchange(self, ticket: str) -> str | None:
        # Anyone may send a ticket: the write lock is for those that exist.
        with self.store.read() as conn:
            if not page_access.is_ticket(conn, ticket, at=time.time()):
                return None
        with self.store.write() as conn:
            return page_access.exchange_ticket(conn, ticket, at=time.time())

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        await self._run_quickly(self._end_session, request.cookies.get(self._cookie, ""))
        response = web.Response(status=204, headers={"HX-Redirect": "/ui"})
        response.del_cookie(self._cookie, path="/ui")
        return response

    def _end_session(self, token: str) -> None:
        with self.store.write() as conn:
            page_access.end_session(conn, token)

    # ------------------------------------------------------------------------------------ views

    async def _show_view(self, view: View, request: web.Request) -> web.StreamResponse:
        return await asyncio.to_thread(self._render_view, view, request)

    def _render_view(self, view: View, request: web.Request) -> web.Response:
        data = self._collect(view.collect, request)
        block = request.headers.get("HX-Target", "").replace("-", "_") or None
        return self._html(view.template, {"path": request.path, **data}, block=block)

    async def _show_picture(self, find: FindPicture, request: web.Request) -> web.StreamResponse:
        """Send a picture. Raises `NotFound`."""
        path = await asyncio.to_thread(find, self.config, request.query.get("id", ""))
        if path is None:
            raise NotFound("There is no such picture (any more).")
        return web.FileResponse(path, headers={"Content-Type": "image/png"})

    def _collect(self, collect: Callable[[ViewRequest], Any], request: web.Request) -> Any:
        with self.store.read() as conn:
            params = {**request.query, **request.match_info}
            lists = {name: request.query.getall(name) for name in set(request.query)}
            zone = find_zone(request.cookies.get(ZONE_COOKIE, ""))
            return collect(self._view_request(conn, params, lists, zone))

    def _view_request(
        self,
        conn: Connection,
        params: Mapping[str, str],
        lists: Mapping[str, list[str]],
        zone: tzinfo = UTC,
    ) -> ViewRequest:
        return ViewRequest(
            conn=conn,
            config=self.config,
            params=params,
            lists=lists,
            now=time.time(),
            tokens=self._tokens,
            cache=self._cache,
            zone=zone,
        )

    async def _stream_changes(self, request: web.Request) -> web.StreamResponse:
        """Send which data has changed, until the browser closes the page."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", SIGNED_IN_HEADER: "1"}
        )
        await response.prepare(request)
        await response.write(b": open\n\n")
        changes = self.live.follow()
        following = asyncio.ensure_future(anext(changes, None))
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=_COMMENT_SECONDS)
                if not done:
                    await response.write(b": still open\n\n")
                    continue
                changed = following.result()
                if changed is None:
                    break
                names = " ".join(sorted(changed))
                await response.write(f"event: changed\ndata: {names}\n\n".encode())
                following = asyncio.ensure_future(anext(changes, None))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await changes.aclose()  # type: ignore[attr-defined]
        return response

    # ------------------------------------------------------------------------------------- acts

    async def _show_plan(self, act: PageAct, request: web.Request) -> web.StreamResponse:
        plan: ActPlan = await asyncio.to_thread(self._collect, act.plan, request)
        data = {"plan": plan, "action": act.path, "act_id": new_act_id()}
        return self._html("act_plan.html", data)

    async def _carry_out(self, act: PageAct, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        values = {name: [str(value) for value in form.getall(name)] for name in set(form)}
        act_id = (values.get("act_id") or [""])[-1]
        if not act_id.isalnum() or not 8 <= len(act_id) <= 64:
            raise InvalidForm("the form has no id. Load the page again.")
        running = asyncio.ensure_future(
            asyncio.get_running_loop().run_in_executor(
                self._act_thread, self._apply, act, values, act_id
            )
        )
        self.running_acts[act_id] = running
        running.add_done_callback(partial(self._end_act, act_id))
        # It is carried out to the end even if the gateway ends meanwhile.
        result = await asyncio.shield(running)
        response = self._html("act_result.html", {"result": result})
        response.headers["HX-Trigger"] = DONE_EVENT
        return response

    def _end_act(self, act_id: str, running: asyncio.Future[ActResult]) -> None:
        if self.running_acts.get(act_id) is running:
            del self.running_acts[act_id]
        if not running.cancelled() and running.exception() is not None:
            log.info("an act was not carried out: %s", running.exception())

    def _apply(self, act: PageAct, form: Mapping[str, list[str]], act_id: str) -> ActResult:
        with self.store.read() as conn:
            known = get_act(conn, act_id)
        if known is not None:
            return ActResult(message=f"This was done already: {known.outcome}")
        request = ActRequest(
            store=self.store, config=self.config, form=form, act_id=act_id, now=time.time()
        )
        try:
            return act.apply(request)
        except (IntegrityError, OpenClawError):
            # Two clicks at once: the other one was carried out, and recorded under this id.
            with self.store.read() as conn:
                known = get_act(conn, act_id)
            if known is None:
                raise
            return ActResult(message=f"This was done already: {known.outcome}")

    async def _show_act_state(self, request: web.Request) -> web.StreamResponse:
        """Say whether an act was carried out whose answer the browser did not get."""
        act_id = request.match_info["id"]
        running = self.running_acts.get(act_id)
        if running is not None:
            await asyncio.wait({running})
        known = await self._run_quickly(self._read_act, act_id)
        if known is None:
            message = "It is not done so far. Look again in a moment."
            result = ActResult(message=message, title="Not done so far", again=request.path)
        else:
            result = ActResult(message=f"It was done: {known.outcome}")
        return self._html("act_result.html", {"result": result})

    def _read_act(self, id: str) -> Any:
        with self.store.read() as conn:
            return get_act(conn, id)

    def _html(
        self, name: str, data: Mapping[str, Any], *, status: int = 200, block: str | None = None
    ) -> web.Response:
        html = self._templates.render(name, {**_DATA_OF_ALL, **data}, block=block)
        return web.Response(text=html, status=status, content_type="text/html")


async def _read_ticket(request: web.Request) -> str:
    """Return the ticket of a link. Anyone may send this form, so its size and its time are bounded."""
    try:
        async with asyncio.timeout(_TICKET_SECONDS):
            raw = await request.content.read(_TICKET_BYTES)
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    values = parse_qs(raw.decode("ascii", "replace")).get("ticket", [""])
    return values[0]


def _opens_link(request: web.Request) -> bool:
    """Return whether a browser opens a link, whose ticket only the script of the sign-in page sees.

    For a browser, 401 would be an error of the page.
    """
    return request.path == "/ui" and request.headers.get("Sec-Fetch-Mode") == "navigate"


async def _add_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    if request.path.startswith(_PUBLIC_PREFIX):
        # Their addresses change with their content.
        response.headers.setdefault("Cache-Control", "private, max-age=604800")
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
