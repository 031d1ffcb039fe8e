"""HTTP client for one inference server: calls and streamed answers, with failures as `EngineError`s.

A lost connection, a status 502 to 504 and a server that reports a dead engine raise `EngineGone`. Every other refusal
raises `EngineError` with the server's message. Closing a stream closes its connection, which makes the server stop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from openclaw_rl.errors import EngineError, EngineGone

_GONE = frozenset({502, 503, 504})
_DEAD = ("EngineDead", "EngineCore encountered")  # vLLM's message, with status 500, when its engine process died
_KEEP_ALIVE = 2.0  # seconds; less than uvicorn's keep-alive timeout of 5 s
_CONNECT = 5.0  # seconds
ANSWER = 20.0  # seconds that a health check may take; long, because a busy server answers slowly

_encoder = msgspec.json.Encoder()
_anything = msgspec.json.Decoder()


class Http:
    """Client for the server at `url`, such as `http://host:port`, with or without a final `/v1`.

    `socket`: connect to this Unix socket instead; `url` is then only a name.
    """

    def __init__(self, url: str, *, socket: Path | None = None, api_key: str | None = None) -> None:
        self.url, self._socket = url.rstrip("/").removesuffix("/v1").rstrip("/"), socket
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._open: set[aiohttp.ClientResponse] = set()

    @property
    def where(self) -> str:
        """Socket path or URL, for messages."""
        return str(self._socket or self.url)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        limit: float | None = None,
    ) -> Any:
        """Return the decoded JSON answer: None if it is empty, text if it is not JSON. `limit`: timeout in seconds.

        Raises `EngineError` if the server refuses, `EngineGone` if it cannot be reached or the connection is lost.
        """
        try:
            async with self._request(method, path, body, params, limit) as answer:
                return _decoded(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._gone(error, "the call got no answer") from None

    async def alive(self, path: str = "/health") -> None:
        """Check the health of the server. Raises `EngineGone`."""
        try:
            async with self._request("GET", path, None, None, ANSWER) as answer:
                await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._gone(error, "the health check failed") from None
        except EngineGone:
            raise
        except EngineError as error:
            raise EngineGone(str(error)) from None

    async def events(self, path: str, body: Any) -> AsyncGenerator[list[bytes]]:
        """Yield the `data:` payloads of a streamed answer, one list for each read; ends at `[DONE]`.

        Raises the same errors as `call_json`. Closing the generator closes the connection.
        """
        try:
            async with self._request("POST", path, body, None, None) as answer:
                self._open.add(answer)
                try:
                    rest = b""
                    while data := await answer.content.readany():
                        *lines, rest = (rest + data).split(b"\n")
                        found = [line[5:].strip() for line in lines if line.startswith(b"data:")]
                        done = bool(found) and found[-1] == b"[DONE]"
                        if found := found[:-1] if done else found:
                            yield found
                        if done:
                            return
                finally:
                    self._open.discard(answer)
                    answer.close()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._gone(error, "the reply is incomplete. Repeat it once the engine is back") from None

    def break_off(self) -> None:
        """Close all running streams; each of them raises `EngineGone`."""
        for answer in list(self._open):
            answer.close()

    async def close(self) -> None:
        self.break_off()
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Any, params: Mapping[str, str] | None, limit: float | None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        data = None if body is None else _encoder.encode(body)
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=_CONNECT)
        async with self._connected().request(
            method, self.url + path, data=data, params=params, timeout=timeout
        ) as answer:
            if answer.status >= 300:
                raise self._refusal(answer.status, path, await answer.read())
            yield answer

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector: aiohttp.BaseConnector
            if self._socket is not None:
                connector = aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=_KEEP_ALIVE)
            else:
                connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._session

    def _refusal(self, status: int, path: str, raw: bytes) -> EngineError:
        words = message_of(raw)
        if status in (401, 403):
            return EngineError(
                f"the engine at {self.where} refused the key ({status}). Set engine.api_key (OPENCLAW_ENGINE_API_KEY)"
            )
        if status in _GONE or any(sign in words for sign in _DEAD):
            return EngineGone(f"the engine at {self.where} cannot answer ({status} {words})")
        return EngineError(words if status == 400 and words else f"{path} at {self.where}: {status} {words}")

    def _gone(self, error: BaseException, then: str) -> EngineGone:
        if isinstance(error, aiohttp.ClientConnectorError):
            return EngineGone(f"no engine answers at {self.where} ({error.os_error.strerror or error.os_error})")
        words = str(error) or type(error).__name__
        return EngineGone(f"the connection to the engine at {self.where} was lost ({words}); {then}")


def refused(error: object) -> EngineError:
    """Return the exception for an error event of a stream."""
    words = message_of(_encoder.encode(error))
    if any(sign in words for sign in _DEAD):
        return EngineGone(f"the engine died ({words}); the reply is incomplete. Repeat it once the engine is back")
    return EngineError(words)


def message_of(raw: bytes) -> str:
    """Return the message in an error body of any of the usual shapes, at most 1000 characters."""
    value = _decoded(raw)
    for key in ("error", "message", "detail", "error_message"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    return (value if isinstance(value, str) else raw.decode(errors="replace"))[:1000]


def _decoded(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return _anything.decode(raw)
    except msgspec.DecodeError:
        return raw.decode(errors="replace")
