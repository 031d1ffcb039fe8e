"""HTTP connections: errors below the router (invalid HTTP, a header that is too long) get the usual error format."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError, LineTooLong

from openclaw_rl.serve.dialects.registry import error_body
from openclaw_rl.serve.http_headers import REQUEST_ID_HEADER, request_id

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024  # maximum for the request line, and for each header
_QUOTED_BYTES = re.compile(r"\n|:? b['\"]")  # start of the client's bytes, which are never logged
_REQUEST_LINE = re.compile(rb"[A-Z]+ (/[^ ?\r\n]*)")
_PARSE_ERRORS = (HttpProcessingError, web.RequestPayloadError)


class GatewayConnection(web.RequestHandler):
    """One client connection. An unreadable request gets an error in the format of its path, and one line in the log."""

    _request_path = ""  # path of the latest request line that was recognised

    def __init__(self, manager: web.Server, **kwargs: Any) -> None:
        super().__init__(manager, access_log=None, **kwargs)  # type: ignore[arg-type]  # AppRunner passes None, too

    def data_received(self, data: bytes) -> None:
        """Record the path before parsing, because a request that cannot be parsed has none."""
        if (line := _REQUEST_LINE.match(data)) is not None:
            self._request_path = line[1].decode("latin-1")
        super().data_received(data)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the last response of this connection. Raises `ConnectionError` if another response has begun."""
        self.log_exception("a request failed below the router", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a response has already begun; this error cannot be sent")
        status = 431 if isinstance(exc, LineTooLong) else 415 if isinstance(exc, ContentEncodingError) else status
        words = (
            f"the request is not readable as HTTP: {error_summary(exc or message)}."
            if status < 500
            else "the gateway failed."
        )
        headers = {REQUEST_ID_HEADER: request_id(request.headers)}
        answer = json_response(error_body(self._request_path, status, words), status=status, headers=headers)
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Format errors that aiohttp raises before any handler, such as for an unknown `Expect` header."""
        if isinstance(resp, web.HTTPException):
            body = error_body(request.path, resp.status, f"{resp.text or resp.reason}.")
            resp = json_response(body, status=resp.status, headers={REQUEST_ID_HEADER: request_id(request.headers)})
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log one line for an unreadable request, and a traceback for any other error."""
        if isinstance(error := kw.get("exc_info"), _PARSE_ERRORS):
            log.info("a request was not readable: %s", error_summary(error))
        else:
            super().log_exception(*args, **kw)


def json_response(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def error_summary(error: BaseException | str | None) -> str:
    """Return the error's first line, without the client's bytes that aiohttp quotes after it."""
    words = str(getattr(error, "message", None) or error or "unknown").removeprefix("400, message:")
    return _QUOTED_BYTES.split(words.strip(), maxsplit=1)[0].rstrip(".:")[:200]


class GatewayRunner(web.AppRunner):
    """Runs an application with `GatewayConnection`s. A handler is cancelled when its client disconnects."""

    def __init__(self, app: web.Application, *, grace: float) -> None:
        """`grace`: seconds for running requests at shutdown."""
        super().__init__(app, access_log=None, handler_cancellation=True, shutdown_timeout=grace)

    @property
    def server(self) -> Any:
        """Factory of the protocol object for each connection."""
        manager = super().server
        if manager is None:
            return None
        return partial(
            GatewayConnection,
            manager,
            loop=asyncio.get_running_loop(),
            logger=log,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
