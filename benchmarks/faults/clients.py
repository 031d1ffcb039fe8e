"""Clients of a system under faults: users who talk and retry, and a probe that measures outages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from benchmarks.demo.personas import Persona
from benchmarks.demo.user_driver import MAX_TOKENS, SIDE_TRAFFIC
from benchmarks.faults.client_log import AcknowledgedFeedback, ClientLog, ClientRequest

from openclaw_rl.evals.styles import Taste
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem

# Seconds after which a client gives up, as many do.
REPLY_WAIT = 120.0
# Share of replies to which a user sends explicit feedback.
FEEDBACK_SHARE = 0.1
# Seconds before a failed request is sent again.
_RETRY_PAUSE = 0.2
_TASTES: tuple[Taste, ...] = ("short", "casual", "bulleted", "formal")
_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdLoad:
    """Who talks to a system. In seconds: `pause`, `probe_pause`, before each message of a user, and of the probe;
    `wait`, for a reply, after which the client gives up."""

    users: int = 3
    pause: float = 0.1
    probe_pause: float = 0.1
    wait: float = REPLY_WAIT


USUAL_LOAD = CrowdLoad()


@dataclass(slots=True)
class _StreamState:
    """What has come of a reply so far."""

    status: int = 0
    retry_after: str | None = None
    id: str | None = None
    version: int | None = None
    parts: list[str] = field(default_factory=list)
    tokens: int | None = None
    has_finish_reason: bool = False
    is_done: bool = False
    error: str = ""

    def read_event(self, data: str) -> None:
        if data == "[DONE]":
            self.is_done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self.error = str(chunk["error"].get("message"))
            return
        self.id = chunk["id"]
        self.version = int(chunk["system_fingerprint"].removeprefix("v"))
        for choice in chunk["choices"]:
            self.parts.append(choice["delta"].get("content") or "")
            self.has_finish_reason |= choice["finish_reason"] is not None
        if chunk.get("usage"):
            self.tokens = chunk["usage"]["completion_tokens"]


class StreamingClient:
    """Sends chat requests and feedback to one system, and logs each. It never retries by itself."""

    def __init__(self, system: SubprocessSystem, log: ClientLog, wait: float = REPLY_WAIT) -> None:
        """`wait`: seconds for a reply."""
        self._log = log
        self._model = system.config.model.name
        self._session = aiohttp.ClientSession(
            system.base_url,
            headers={"Authorization": f"Bearer {system.api_key}"},
            timeout=aiohttp.ClientTimeout(total=wait),
        )

    async def close(self) -> None:
        await self._session.close()

    async def request_reply(
        self,
        history: Sequence[dict[str, str]],
        *,
        previous: str | None = None,
        is_probe: bool = False,
    ) -> ClientRequest:
        """Request one reply to `history` as a stream. `previous`: id of the reply that the last message reacts to."""
        state = _StreamState()
        began = time.time()
        try:
            await self._read_stream(state, history, is_probe=is_probe)
        except _ERRORS as error:
            state.error = f"{type(error).__name__}: {error}"
        finished = state.has_finish_reason and state.is_done and not state.error
        request = ClientRequest(
            began=began, ended=time.time(), text=history[-1]["content"], previous=previous, is_probe=is_probe,
            status=state.status, retry_after=state.retry_after, id=state.id, version=state.version,
            reply="".join(state.parts), tokens=state.tokens, finished=finished,
            error=state.error or ("" if finished else "a stream ended without a finish"),
        )  # fmt: skip
        self._log.add_request(request)
        return request

    async def _read_stream(
        self, state: _StreamState, history: Sequence[dict[str, str]], *, is_probe: bool
    ) -> None:
        body = {
            "model": self._model,
            "messages": list(history),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 1 if is_probe else MAX_TOKENS,
            "temperature": 1.0,
        }
        headers = SIDE_TRAFFIC if is_probe else {}
        async with self._session.post(
            "/v1/chat/completions", json=body, headers=headers
        ) as response:
            state.status = response.status
            state.retry_after = response.headers.get("Retry-After")
            if response.status != 200:
                state.error = f"{response.status}: {(await response.text())[:300]}"
                return
            async for line in response.content:
                if line.startswith(b"data: "):
                    state.read_event(line.removeprefix(b"data: ").decode().strip())

    async def send_feedback(self, target: str, score: int) -> None:
        """Send explicit feedback, and log it if it was acknowledged."""
        with contextlib.suppress(*_ERRORS):
            async with self._session.post(
                "/v1/feedback", json={"id": target, "score": score}
            ) as response:
                if response.status == 200:
                    id_ = str((await response.json())["id"])
                    self._log.add_feedback(
                        AcknowledgedFeedback(id=id_, target=target, score=score, at=time.time())
                    )


async def run_user(
    client: StreamingClient, persona: Persona, stop: asyncio.Event, pause: float
) -> None:
    """Talk until `stop` is set. A broken reply is requested again, as clients do. Some replies get honest feedback."""
    rng = random.Random(persona.seed)
    while not stop.is_set():
        history: list[dict[str, str]] = []
        previous: str | None = None
        while not stop.is_set() and (text := persona.next_message(history)) is not None:
            if previous is not None and rng.random() < FEEDBACK_SHARE:
                await client.send_feedback(previous, 1 if persona.log[-1].satisfied else -1)
            history.append({"role": "user", "content": text})
            reply = await _insist(client, history, previous, stop)
            if reply is None:
                break
            history.append({"role": "assistant", "content": reply.reply})
            previous = reply.id
            await asyncio.sleep(pause)


async def _insist(
    client: StreamingClient,
    history: Sequence[dict[str, str]],
    previous: str | None,
    stop: asyncio.Event,
) -> ClientRequest | None:
    while not stop.is_set():
        reply = await client.request_reply(history, previous=previous)
        if reply.finished:
            return reply
        await asyncio.sleep(min(float(reply.retry_after or _RETRY_PAUSE), 2.0))
    return None


async def run_probe(client: StreamingClient, stop: asyncio.Event, pause: float) -> None:
    """Request one token again and again."""
    while not stop.is_set():
        await client.request_reply([{"role": "user", "content": "Hi."}], is_probe=True)
        await asyncio.sleep(pause)


@contextlib.asynccontextmanager
async def crowd(
    system: SubprocessSystem,
    users: int,
    log: ClientLog,
    *,
    pause: float = 0.02,
    probe_pause: float | None = None,
    wait: float = REPLY_WAIT,
) -> AsyncIterator[None]:
    """So many users talk while the block runs. Seconds are those of `CrowdLoad`; `probe_pause` None: no probe."""
    stop = asyncio.Event()
    clients = [StreamingClient(system, log, wait) for _ in range(users + (probe_pause is not None))]
    tasks = [
        asyncio.create_task(run_user(client, Persona(taste=_TASTES[n % 4], seed=n), stop, pause))
        for n, client in enumerate(clients[:users])
    ]
    tasks += [
        asyncio.create_task(run_probe(client, stop, probe_pause or 0.0))
        for client in clients[users:]
    ]
    try:
        yield
    finally:
        stop.set()
        done: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()
    for error in done:
        if isinstance(error, BaseException):
            raise error
