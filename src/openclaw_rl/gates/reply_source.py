"""Replies of a version for gate and practice: from the running gateway, which answers while nobody waits for a reply.

The gateway stores nothing of these replies, so that they are no turns of the person. It takes a key that only programs
with access to the store can compute, and for this key alone it serves a candidate.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol

import numpy as np

from openclaw_rl.common.gateway_address import GATE_REPLY_PATH, gate_key, running_address
from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import OpenClawError
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.types import Ids, Logprobs

REPLY_TIMEOUT = 30.0
"""Seconds without a sign of the gateway after which it counts as gone. While it generates a reply, which takes as long
as the machine needs, it sends one every few seconds."""
_READ_BYTES = 2**16
# A gateway whose last heartbeat is younger is expected back.
_RESTART_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOrder:
    """One request to the gateway: the reply of a version to a prompt."""

    version: int
    prompt_ids: list[int]  # [P]
    max_tokens: int
    temperature: float
    seed: int
    # It may run beside people's replies; else it waits for a pause, and ends when one begins.
    beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReply:
    """A reply as it was sampled, with its stop token."""

    token_ids: Ids  # [R]
    logprobs: Logprobs  # [R]
    finish: str  # "stop" | "length"


class DelayCode(StrEnum):
    """Why no reply can be had now."""

    BUSY = "busy"  # people's replies are running
    UNREACHABLE = "unreachable"  # the gateway does not answer
    REFUSED = "refused"  # the gateway cannot give this reply now


class RepliesDelayed(OpenClawError):
    """No reply can be had now; the message says why, and `code` as data."""

    def __init__(self, message: str, code: DelayCode = DelayCode.REFUSED) -> None:
        super().__init__(message)
        self.code = code


class BrokenVersion(OpenClawError):
    """The engine cannot load a version."""

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(f"the engine cannot load version {version}: {reason}")
        self.version = version


class NoGateway(OpenClawError):
    """No gateway runs on this home: no version answers anyone."""


class ReplySource(Protocol):
    """Generates the replies that the gate compares."""

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        """Return the replies in order. Raises `RepliesDelayed`, and `NoGateway` if no version answers anyone."""
        ...


class GatewayReplySource:
    """`ReplySource` over the gateway that runs on the home, with at most `workers` requests at once."""

    def __init__(self, home: Path, store: Store, workers: int) -> None:
        self._home = home
        self._store = store
        self._workers = workers

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        """See `ReplySource.generate`."""
        address = running_address(self._home)
        if address is None:
            if self._is_expected():
                raise RepliesDelayed("the gateway cannot be reached", DelayCode.UNREACHABLE)
            raise NoGateway(f"no gateway runs on {self._home}")
        url = address.url + GATE_REPLY_PATH
        key = gate_key(self._store.secret)
        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(lambda order: _request_reply(url, key, order), orders))

    def _is_expected(self) -> bool:
        """Return whether a gateway ran just now, so that it probably restarts."""
        with self._store.read() as conn:
            beats = heartbeats.read_heartbeats(conn)
        return any(
            beat.name == "gateway" and beat.is_alive(time.time(), _RESTART_SECONDS)
            for beat in beats
        )


def _request_reply(url: str, key: str, order: ReplyOrder) -> GateReply:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(asdict(order)).encode(), headers)
    try:
        with open_url(request, timeout=REPLY_TIMEOUT) as response:
            answer = json.loads(_read_slowly(response))
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(2000).decode("utf-8", "replace")
        raise _to_error(order, *_error_of(body)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise RepliesDelayed(
            f"the gateway cannot be reached: {error}", DelayCode.UNREACHABLE
        ) from None
    # Its status was sent before.
    if "error" in answer:
        raise _to_error(order, str(answer["error"]["message"]), str(answer["error"]["code"]))
    return GateReply(
        token_ids=np.array(answer["token_ids"], np.int32),
        logprobs=np.array(answer["logprobs"], np.float32),
        finish=answer["finish"],
    )


def _read_slowly(response: HTTPResponse) -> bytes:
    """Return the body. Each of its parts is progress of this process."""
    body = b""
    while part := response.read1(_READ_BYTES):
        record_progress()
        body += part
    return body


def _to_error(order: ReplyOrder, message: str, code: str) -> OpenClawError:
    if code == "version_broken":
        return BrokenVersion(order.version, message)
    delay = DelayCode.BUSY if code == DelayCode.BUSY else DelayCode.REFUSED
    return RepliesDelayed(f"the gateway gave no reply of version {order.version}: {message}", delay)


def _error_of(body: str) -> tuple[str, str]:
    """Return the message and the code of an error."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"]), str(error.get("code"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return body[:200], ""
