"""Replies of a version for the gate: from the running gateway, which answers only while nobody else waits for a reply.

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
from pathlib import Path
from typing import Protocol

import numpy as np

from openclaw_rl.common.gateway_address import GATE_REPLY_PATH, gate_key, running_address
from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import OpenClawError
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.types import Ids, Logprobs

REPLY_TIMEOUT, TOKEN_TIMEOUT = 30.0, 2.0
"""Seconds for one reply: for its start, including the load of the version, and beyond it for each token."""
_RESTART_SECONDS = 60.0  # a gateway whose last heartbeat is younger is expected back


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOrder:
    """One request to the gateway: the reply of a version to a prompt."""

    version: int
    prompt_ids: list[int]  # [P]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReply:
    """A reply as it was sampled, with its stop token."""

    token_ids: Ids  # [R]
    logprobs: Logprobs  # [R]
    finish: str  # "stop" | "length"


class RepliesDelayed(OpenClawError):
    """No reply can be had now; the message says why."""


class BrokenVersion(OpenClawError):
    """The engine cannot load a version."""

    def __init__(self, version: int, why: str) -> None:
        super().__init__(f"the engine cannot load version {version}: {why}")
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
        self._home, self._store, self._workers = home, store, workers

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        """See `ReplySource.generate`."""
        address = running_address(self._home)
        if address is None:
            if self._is_expected():
                raise RepliesDelayed("the gateway cannot be reached")
            raise NoGateway(f"no gateway runs on {self._home}")
        url, key = address.url + GATE_REPLY_PATH, gate_key(self._store.secret)
        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(lambda order: _request_reply(url, key, order), orders))

    def _is_expected(self) -> bool:
        """Return whether a gateway ran just now, so that it probably restarts."""
        with self._store.read() as conn:
            beats = heartbeats.read_heartbeats(conn)
        return any(beat.name == "gateway" and beat.is_alive(time.time(), _RESTART_SECONDS) for beat in beats)


def _request_reply(url: str, key: str, order: ReplyOrder) -> GateReply:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(asdict(order)).encode(), headers)
    timeout = REPLY_TIMEOUT + TOKEN_TIMEOUT * order.max_tokens
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            found = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            words = error.read(2000).decode("utf-8", "replace")
        message, code = _error_of(words)
        if code == "version_broken":
            raise BrokenVersion(order.version, message) from None
        raise RepliesDelayed(f"the gateway gave no reply of version {order.version}: {message}") from None
    except (OSError, ValueError) as error:
        raise RepliesDelayed(f"the gateway cannot be reached: {error}") from None
    record_progress()
    return GateReply(
        token_ids=np.array(found["token_ids"], np.int32),
        logprobs=np.array(found["logprobs"], np.float32),
        finish=found["finish"],
    )


def _error_of(body: str) -> tuple[str, str]:
    """Return the message and the code of an error."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"]), str(error.get("code"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return body[:200], ""
