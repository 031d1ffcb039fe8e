"""Connections: what goes wrong below the router (no HTTP, a header that is too long) looks like every other error."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError, LineTooLong

from openclaw_rl.serve.dialects import errors

log = logging.getLogger(__name__)

LINE_BYTES = 64 * 1024  # of the request line, and of each header
_QUOTED = re.compile(r"\n|:? b['\"]")  # the client's bytes are in no log
_REQUEST_LINE = re.compile(rb"[A-Z]+ (/[^ ?\r\n]*)")
_UNREADABLE = (HttpProcessingError, web.RequestPayloadError)


class Connection(web.RequestHandler):
    """One client's connection. What cannot be read is answered in the shape of its path, and is one line in the log."""

    _path = ""  # of the latest request line, as far as one could be seen

    def __init__(self, manager: web.Server, **kwargs: Any) -> None:
        super().__init__(manager, access_log=None, **kwargs)  # type: ignore[arg-type]  # None is what AppRunner gives

    def data_received(self, data: bytes) -> None:
        """A request that cannot be parsed has no path any more: it is looked at before."""
        if (line := _REQUEST_LINE.match(data)) is not None:
            self._path = line[1].decode("latin-1")
        super().data_received(data)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The last answer of this connection. Raises `ConnectionError` when another answer has already begun."""
        self.log_exception("a request failed below the router", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; this error cannot be sent")
        status = _status(status, exc)
        words = (
            f"the request is not readable as HTTP: {first_line(exc or message)}."
            if status < 500
            else "the gateway failed."
        )
        body = errors.error(self._path, status, words)
        answer = web.Response(body=body, status=status, content_type="application/json")
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """An `Expect` that is not known is refused before any handler: that answer too gets its shape here."""
        if isinstance(resp, web.HTTPException):
            body = errors.error(request.path, resp.status, f"{resp.text or resp.reason}.")
            resp = web.Response(body=body, status=resp.status, content_type="application/json")
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A traceback for a bug of ours; a line for bytes that are no request."""
        if isinstance(error := kw.get("exc_info"), _UNREADABLE):
            log.info("a request was not readable: %s", first_line(error))
        else:
            super().log_exception(*args, **kw)


def _status(status: int, error: BaseException | None) -> int:
    if isinstance(error, LineTooLong):
        return 431
    return 415 if isinstance(error, ContentEncodingError) else status


def first_line(error: BaseException | str | None) -> str:
    """In words, without the bytes that aiohttp quotes below."""
    words = str(getattr(error, "message", None) or error or "unknown").removeprefix("400, message:")
    return _QUOTED.split(words.strip(), maxsplit=1)[0].rstrip(".:")[:200]


class Runner(web.AppRunner):
    """An application on `Connection`s. A handler whose client goes away is cancelled."""

    def __init__(self, app: web.Application, *, grace: float) -> None:
        """`grace`: seconds that requests under way get at the end."""
        super().__init__(app, access_log=None, handler_cancellation=True, shutdown_timeout=grace)

    @property
    def server(self) -> Any:
        """What makes a protocol for each connection."""
        manager = super().server
        if manager is None:
            return None
        return partial(
            Connection,
            manager,
            loop=asyncio.get_running_loop(),
            logger=log,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
        )
