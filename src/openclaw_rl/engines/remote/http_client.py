"""HTTP client for one inference server: calls and streamed answers, with failures as `EngineError`s.

A lost connection, a status 502 to 504 and a server that reports a dead engine raise `EngineGone`. Every other refusal
raises `RequestRefused` with the server's message. Closing a stream closes its connection, which makes the server stop.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.errors import EngineError, EngineGone

_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})
_ENGINE_DEAD_MESSAGES = (
    "EngineDead",
    "EngineCore encountered",
)  # of vLLM, with status 500, if its engine died
# SGLang's `/health` generates a token and takes at least a second; OpenAI-compatible endpoints have none.
SGLANG_HEALTH = "/model_info"
OPENAI_HEALTH = "/v1/models"
# Seconds; less than uvicorn's keep-alive timeout of 5 s.
_KEEP_ALIVE_TIMEOUT = 2.0
# Seconds.
_CONNECT_TIMEOUT = 5.0
# Of a body that is sent at once.
_WHOLE_BODY_BYTES = 2**18
# Seconds that a health check may take; long, because a busy server answers slowly.
HEALTH_TIMEOUT = 20.0

_json_encoder = msgspec.json.Encoder()
_json_decoder = msgspec.json.Decoder()


_REQUEST_FAULTS = frozenset({400, 404, 413, 422})


class RequestRefused(EngineError):
    """Raised if the server answers a request with an error; unlike `EngineGone`, the server works.

    `status`: of the HTTP response.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.blames_request = status in _REQUEST_FAULTS


class HttpClient:
    """Client for the server at `url`, such as `http://host:port`, with or without a final `/v1`.

    `health_path`: answers at once while the server works. `socket`: connect to this Unix socket instead; `url` is then
    only a name. `key_setting`: where the key is set, for messages.
    """

    def __init__(
        self,
        url: str,
        health_path: str = "/health",
        *,
        socket: Path | None = None,
        api_key: str | None = None,
        key_setting: str = "engine.api_key (OPENCLAW_ENGINE_API_KEY)",
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.socket = socket
        self._health_path = health_path
        self._key_setting = key_setting
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._open_responses: set[aiohttp.ClientResponse] = set()

    @property
    def address(self) -> str:
        """Socket path or URL, for messages."""
        return str(self.socket or self.url)

    async def call_json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        limit: float | None = None,
    ) -> Any:
        """Return the decoded JSON answer: None if it is empty, text if it is not JSON. `limit`: timeout in seconds.

        `body`: a JSON value, or the bytes of one.

        Raises `RequestRefused` if the server refuses, `EngineGone` if it cannot be reached or the connection is lost.
        """
        async with self._send_request(
            method, path, body, params, limit, "the call got no answer"
        ) as answer:
            return _decode_json(await answer.read())

    async def post_checked(self, path: str, body: Any) -> None:
        """POST a request. Raises `RequestRefused` also if `success` in the answer is false."""
        answer = await self.call_json("POST", path, body)
        if isinstance(answer, dict) and answer.get("success") is False:
            raise RequestRefused(str(answer.get("error_message") or answer.get("message")))

    async def check_alive(self) -> None:
        """Check the health of the server. Raises `EngineGone`."""
        try:
            await self.call_json("GET", self._health_path, limit=HEALTH_TIMEOUT)
        except EngineError as error:
            raise EngineGone(str(error)) from None

    async def stream_events(self, path: str, body: Any) -> AsyncGenerator[list[bytes]]:
        """Yield the `data:` payloads of a streamed answer, one list for each read; ends at `[DONE]`.

        Raises the same errors as `call_json`. Closing the generator closes the connection.
        """
        then = "the reply is incomplete. Repeat it once the engine is back"
        async with self._send_request("POST", path, body, None, None, then) as answer:
            self._open_responses.add(answer)
            try:
                rest = b""
                while data := await answer.content.readany():
                    *lines, rest = (rest + data).split(b"\n")
                    payloads = [line[5:].strip() for line in lines if line.startswith(b"data:")]
                    done = bool(payloads) and payloads[-1] == b"[DONE]"
                    if done:
                        payloads.pop()
                    if payloads:
                        yield payloads
                    if done:
                        return
            finally:
                self._open_responses.discard(answer)
                answer.close()

    def abort_streams(self) -> None:
        """Close all running streams; each of them raises `EngineGone`."""
        for answer in list(self._open_responses):
            answer.close()

    async def close(self) -> None:
        self.abort_streams()
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _send_request(
        self,
        method: str,
        path: str,
        body: Any,
        params: Mapping[str, str] | None,
        limit: float | None,
        then: str,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request. `then`: what a lost connection means for the caller, for its error message."""
        data = _encode_body(body)
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=_CONNECT_TIMEOUT)
        # No redirects: conversations are sent only to the server that the owner configured.
        request = self._get_session().request(
            method,
            self.url + path,
            data=data,
            params=params,
            timeout=timeout,
            allow_redirects=False,
        )
        try:
            async with request as answer:
                if answer.status >= 300:
                    raise self._refusal_error(answer.status, path, await answer.read())
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._connection_error(error, then) from None

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = open_http_session(
                socket=self.socket,
                headers=self._headers,
                connections=0,
                keep_alive=_KEEP_ALIVE_TIMEOUT,
            )
        return self._session

    def _refusal_error(self, status: int, path: str, raw: bytes) -> EngineError:
        message = error_message(raw)
        if status < 400:
            return RequestRefused(
                f"{path} at {self.address} is redirected ({status}), and prompts go only to the address of the "
                "settings. Set it to the address that answers",
                status,
            )
        if status in (401, 403):
            return RequestRefused(
                f"the engine at {self.address} refused the key ({status}). Set {self._key_setting}",
                status,
            )
        if status in _UNAVAILABLE_STATUSES or _is_engine_dead(message):
            return EngineGone(f"the engine at {self.address} cannot answer ({status} {message})")
        if status == 400 and message:
            return RequestRefused(message, status)
        return RequestRefused(f"{path} at {self.address}: {status} {message}", status)

    def _connection_error(self, error: BaseException, then: str) -> EngineGone:
        if isinstance(error, aiohttp.ClientConnectorError):
            return EngineGone(
                f"no engine answers at {self.address} ({error.os_error.strerror or error.os_error})"
            )
        message = str(error) or type(error).__name__
        return EngineGone(
            f"the connection to the engine at {self.address} was lost ({message}); {then}"
        )


def _encode_body(body: Any) -> bytes | io.BytesIO | None:
    """Return the body to send. aiohttp sends a file in pieces, between which the event loop does other work."""
    if body is None:
        return None
    data = body if isinstance(body, bytes) else _json_encoder.encode(body)
    return io.BytesIO(data) if len(data) > _WHOLE_BODY_BYTES else data


def error_from_event(error: object) -> EngineError:
    """Return the exception for an error event of a stream."""
    message = error_message(_json_encoder.encode(error))
    if _is_engine_dead(message):
        return EngineGone(
            f"the engine died ({message}); the reply is incomplete. Repeat it once the engine is back"
        )
    return EngineError(message)


def _is_engine_dead(message: str) -> bool:
    return any(sign in message for sign in _ENGINE_DEAD_MESSAGES)


def error_message(raw: bytes) -> str:
    """Return the message in an error body of any of the usual shapes, at most 1000 characters."""
    value = _decode_json(raw)
    for key in ("error", "message", "detail", "error_message"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    return (value if isinstance(value, str) else raw.decode(errors="replace"))[:1000]


def _decode_json(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return _json_decoder.decode(raw)
    except msgspec.DecodeError:
        return raw.decode(errors="replace")
