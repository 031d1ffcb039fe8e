"""One server over HTTP: calls, streamed answers, and every failure as one of ours.

Connection loss, 502 to 504 and a server that says that its engine died are `EngineGone`; every other refusal is an
`EngineError` with the server's own words. Closing a stream closes its connection, by which servers know to stop.
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
_DEAD = ("EngineDead", "EngineCore encountered")  # how vLLM says that its engine's process died, in a 500
_KEEP_ALIVE = 2.0  # seconds; below the 5 s after which uvicorn hangs up on an idle connection
_CONNECT = 5.0  # seconds
ANSWER = 20.0  # seconds that a sign of life may take: a busy server is slow, not dead

_encoder = msgspec.json.Encoder()
_anything = msgspec.json.Decoder()


class Http:
    """`url` like `http://host:port`, with or without the final `/v1` of OpenAI's clients.

    `socket`: speak over this Unix socket instead (then `url` is only a name).
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
        """The address, for messages."""
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
        """The decoded JSON answer (None for an empty one, text where it is no JSON). `limit`: seconds at most.

        Raises `EngineError` when the server refuses, `EngineGone` when it cannot be reached or breaks off.
        """
        try:
            async with self._request(method, path, body, params, limit) as answer:
                return _decoded(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._gone(error, "the call got no answer") from None

    async def alive(self, path: str = "/health") -> None:
        """A sign of life. Raises `EngineGone`."""
        try:
            async with self._request("GET", path, None, None, ANSWER) as answer:
                await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._gone(error, "it gives no sign of life") from None
        except EngineGone:
            raise
        except EngineError as error:
            raise EngineGone(str(error)) from None

    async def events(self, path: str, body: Any) -> AsyncGenerator[list[bytes]]:
        """The `data:` payloads of a streamed answer, those that came together in one list; ends at `[DONE]`.

        Raises as `call` does. Closing the generator closes the connection.
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
            raise self._gone(error, "the reply is broken off. Ask again once the engine is back") from None

    def break_off(self) -> None:
        """Close every stream that runs: each raises `EngineGone`."""
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
                f"the engine at {self.where} refused our key ({status}). Set engine.api_key (OPENCLAW_ENGINE_API_KEY)"
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
    """An error that came as an event of a stream."""
    words = message_of(_encoder.encode(error))
    if any(sign in words for sign in _DEAD):
        return EngineGone(f"the engine died ({words}); the reply is broken off. Ask again once the engine is back")
    return EngineError(words)


def message_of(raw: bytes) -> str:
    """The words of an error body, whichever of the usual shapes it has."""
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
