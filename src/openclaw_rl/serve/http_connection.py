"""HTTP connections: bounds in time and number, and errors below the router (invalid HTTP) in the usual error format."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from functools import partial
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import _ErrInfo

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.access.expectation import CONTINUE, take_expectation
from openclaw_rl.serve.access.request_paths import read_message, read_path
from openclaw_rl.serve.body_budget import STALLED_SECONDS, BodyBudget
from openclaw_rl.serve.connection_limits import (
    Admission,
    ConnectionLimits,
    allow_open_files,
    client_address,
)
from openclaw_rl.serve.dialects.registry import error_body
from openclaw_rl.serve.http_headers import REQUEST_ID_HEADER, request_id
from openclaw_rl.settings.load import ServeConfig

log = logging.getLogger(__name__)

# Maximum for the request line, and for each header.
MAX_LINE_BYTES = 64 * 1024
# Maximum for the request line and all headers.
MAX_HEAD_BYTES = 256 * 1024
# For which aiohttp discards a body behind the response; `discard_body` came before.
_LINGER_SECONDS = 1.0
# Start of the client's bytes, which are never logged.
_QUOTED_BYTES = re.compile(r"\n|:? b['\"]")
_REQUEST_LINE = re.compile(rb"[A-Z]+ (/[^ ?\r\n]*)")
_PARSE_ERRORS = (HttpProcessingError, web.RequestPayloadError)


class GatewayConnection(web.RequestHandler):
    """One client connection. An unreadable request gets an error in the format of its path, and one line in the log.

    aiohttp bounds the time between two requests. This class bounds the time and the size of a request's head, and
    registers the connection with its `ConnectionLimits`. Bodies are bounded where they are read (`request_body.py`).
    """

    client_address = ""
    _request_path = ""  # path of the latest request line that was recognised
    _head_bytes = 0  # received of a head that is incomplete
    _head_timer: asyncio.TimerHandle | None = None
    _body: StreamReader | None = None  # body of the latest request
    _received_at = 0.0  # monotonic time of the client's latest bytes
    is_ticket = False  # whether the latest key is a ticket
    deployment = ""  # the model that the latest request's path names
    holds_body = (
        False  # whether the client waits for a word before it sends the latest request's body
    )

    def __init__(
        self,
        manager: web.Server,
        *,
        limits: ConnectionLimits,
        bodies: BodyBudget,
        header_timeout: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(manager, access_log=None, **kwargs)  # type: ignore[arg-type]  # AppRunner passes None, too
        self._make_request = manager.request_factory
        self._request_factory = self._make_readable_request
        self._limits = limits
        self.bodies = bodies
        self._header_timeout = header_timeout

    def _make_readable_request(
        self, message: RawRequestMessage, *arguments: Any
    ) -> web.BaseRequest:
        """Return the request with the path of its route, and an expectation that the gateway answers itself."""
        message, self.deployment = read_message(message)
        message, self.holds_body = take_expectation(message)
        return self._make_request(message, *arguments)

    async def ask_for_body(self, request: web.BaseRequest) -> None:
        """Ask a client that holds its body back to send it, where the body is about to be read."""
        if not self.holds_body:
            return
        self.holds_body = False
        await request.writer.write(CONTINUE)
        # These bytes are no part of the response.
        request.writer.output_size = 0

    @property
    def is_idle(self) -> bool:
        """Whether the connection waits for a request, for the rest of its head, or for more of a stalled body."""
        if self._waiter is not None and not self._waiter.done():
            return True
        return self._is_in_body and time.monotonic() - self._received_at >= STALLED_SECONDS

    @property
    def _is_in_body(self) -> bool:
        """Whether the client has begun a body and not ended it."""
        return self._body is not None and not self._body.is_eof()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or refuse it if there are too many."""
        self.client_address = client_address(transport.get_extra_info("peername"))
        if self._limits.admit(self) is Admission.REFUSED:
            self._force_close = True
            cast(asyncio.Transport, transport).write(_TOO_MANY_CONNECTIONS)
            cast(asyncio.Transport, transport).close()
            return
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._limits.remove(self)
        self._stop_head_timer()
        super().connection_lost(exc)

    def mark_owner(self) -> None:
        """Record that a request on this connection had an owner's key. Raises `RequestError` (503) without a place."""
        self.is_ticket = False
        if not self._limits.mark_owner(self):
            raise RequestError(_NO_PLACE, code="too_many_connections", status=503)

    def mark_ticket(self) -> None:
        """Record that a request on this connection had a ticket. Raises `RequestError` (429) without a place."""
        self.is_ticket = True
        if not self._limits.mark_ticket(self):
            self.close()
            raise RequestError(
                "the connections of episodes have all their places (half of serve.max_connections and of "
                "serve.max_connections_per_address). Try again in a moment.",
                code="too_many_connections",
                status=429,
            )

    def data_received(self, data: bytes) -> None:
        """Record the path before parsing, because a request that cannot be parsed has none."""
        if (line := _REQUEST_LINE.match(data)) is not None:
            self._request_path = read_path(line[1].decode("latin-1")).path
        known = self._request_count
        in_body = self._is_in_body
        self._received_at = time.monotonic()
        super().data_received(data)
        if self._request_count > known:
            self._stop_head_timer()
            self._assign_error()
        elif data and not in_body:
            self._bound_head(len(data))

    def _bound_head(self, received: int) -> None:
        """Bound the incomplete head of a request."""
        self._head_bytes += received
        if self._head_bytes > MAX_HEAD_BYTES:
            log.info(
                "a request's head had more than %d bytes; its connection is closed", MAX_HEAD_BYTES
            )
            self.force_close()
        elif self._head_timer is None:
            self._start_head_timer()

    def _start_head_timer(self) -> None:
        self._head_timer = self._loop.call_later(self._header_timeout, self._close_if_idle)

    def _stop_head_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_if_idle(self) -> None:
        """Close the connection, or wait again if an earlier request is still being answered."""
        if self.is_idle:
            self.force_close()
        else:
            self._start_head_timer()

    def _assign_error(self) -> None:
        """Give an error in a body to the request that reads the body: aiohttp would only answer it afterwards."""
        message, body = self._messages[-1]
        if not isinstance(message, _ErrInfo):
            self._body = body
        elif self._body is not None and not self._body.is_eof():
            self._messages.pop()
            self._body.set_exception(web.RequestPayloadError(message.message))
            self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the last response of this connection. Raises `ConnectionError` if another response has begun."""
        self.log_exception("a request failed below the router", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a response has already begun; this error cannot be sent")
        status = 431 if isinstance(exc, LineTooLong) else status
        message = (
            f"the request is not readable as HTTP: {error_summary(exc or message)}."
            if status < 500
            else "the gateway failed."
        )
        headers = {REQUEST_ID_HEADER: request_id(request.headers)}
        answer = json_response(
            error_body(self._request_path, status, message), status=status, headers=headers
        )
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Format errors that aiohttp raises before any handler, such as for an unknown `Expect` header."""
        if isinstance(resp, web.HTTPException):
            body = error_body(request.path, resp.status, f"{resp.text or resp.reason}.")
            resp = json_response(
                body, status=resp.status, headers={REQUEST_ID_HEADER: request_id(request.headers)}
            )
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log one line for an unreadable request, and a traceback for any other error."""
        if isinstance(error := kw.get("exc_info"), _PARSE_ERRORS):
            log.info("a request was not readable: %s", error_summary(error))
        else:
            super().log_exception(*args, **kw)


def json_response(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def error_summary(error: BaseException | str | None) -> str:
    """Return the error's first line, without the client's bytes that aiohttp quotes after it."""
    summary = str(getattr(error, "message", None) or error or "unknown").removeprefix(
        "400, message:"
    )
    return _QUOTED_BYTES.split(summary.strip(), maxsplit=1)[0].rstrip(".:")[:200]


_NO_PLACE = (
    "too many connections (serve.max_connections, serve.max_connections_per_address). Try again."
)
_TOO_MANY_CONNECTIONS_BODY = error_body("", 503, _NO_PLACE)
_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TOO_MANY_CONNECTIONS_BODY), _TOO_MANY_CONNECTIONS_BODY)
)


class GatewayRunner(web.AppRunner):
    """Runs an application with `GatewayConnection`s. A handler is cancelled when its client disconnects."""

    def __init__(self, app: web.Application, serve: ServeConfig, *, grace: float) -> None:
        """`grace`: seconds for running requests at shutdown."""
        super().__init__(app, access_log=None, handler_cancellation=True, shutdown_timeout=grace)
        self._serve = serve
        self._limits = ConnectionLimits(
            allow_open_files(serve.max_connections), serve.max_connections_per_address
        )
        self._bodies = BodyBudget(serve.max_body_bytes)

    @property
    def server(self) -> Any:
        """Factory of the protocol object for each connection."""
        manager = super().server
        if manager is None:
            return None
        return partial(
            GatewayConnection,
            manager,
            limits=self._limits,
            bodies=self._bodies,
            header_timeout=self._serve.header_timeout,
            keepalive_timeout=self._serve.idle_timeout,
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,
            loop=asyncio.get_running_loop(),
            logger=log,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
