"""Replies of versions to a person's earlier prompts, for the comparison of two versions.

The gateway generates them as it does for the gate: people come first, and nothing is stored, linked or trained on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import Any

from openclaw_rl.common.gateway_address import GATE_REPLY_PATH, gate_key
from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.errors import OpenClawError
from openclaw_rl.page.gateway_client import gateway_url
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store

log = logging.getLogger("openclaw_rl.page")

CACHE_NAME = "version replies"
"""Name of the `VersionReplies` in the cache of the page."""
MAX_TOKENS = 256
MAX_CACHED = 200
MAX_PENDING = 12
"""Replies that are kept, and that are generated or wait at once."""
_MAX_WAIT = 60.0
_FIRST_DELAY = 1.0
_MAX_DELAY = 8.0
# Seconds without a sign of the gateway, which sends one every few seconds.
_SILENCE = 30.0
_READ_BYTES = 2**16
_BUSY = "busy"


class AnswerState(StrEnum):
    """Pending: it is being generated, or waits until nobody else does."""

    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnswer:
    """The reply of a version to a prompt. `note`: why it waits or failed."""

    state: AnswerState
    token_ids: tuple[int, ...] = ()
    is_cut: bool = False
    note: str = ""


class _GatewayBusy(Exception):
    """Raised while replies to people run."""


class VersionReplies:
    """Generates replies in threads of its own, and keeps the newest ones in memory."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config = config
        self._key = gate_key(store.secret)
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[int, str], VersionAnswer] = OrderedDict()
        self._threads: set[threading.Thread] = set()
        self._closing = threading.Event()

    def get(self, version: int, turn: str, prompt_ids: Sequence[int]) -> VersionAnswer:
        """Return the reply of a version to the prompt of a turn; the first call begins it.

        A failure is returned once: the call after it begins again.
        """
        key = (version, turn)
        with self._lock:
            known = self._answers.get(key)
            if known is not None:
                self._answers.move_to_end(key)
                if known.state is AnswerState.FAILED:
                    del self._answers[key]
                return known
            if len(self._threads) >= MAX_PENDING:
                return VersionAnswer(
                    state=AnswerState.PENDING, note="waiting for the other comparisons"
                )
            pending = VersionAnswer(state=AnswerState.PENDING)
            self._keep(key, pending)
            thread = threading.Thread(
                target=self._run, args=(key, list(prompt_ids)), name="version-reply", daemon=True
            )
            self._threads.add(thread)
        thread.start()
        return pending

    def close(self) -> None:
        """Give up what waits, and wait for what is being generated."""
        self._closing.set()
        for thread in list(self._threads):
            thread.join()

    def _keep(self, key: tuple[int, str], answer: VersionAnswer) -> None:
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > MAX_CACHED:
            self._answers.popitem(last=False)

    def _run(self, key: tuple[int, str], prompt_ids: list[int]) -> None:
        try:
            answer = self._ask_politely(key, prompt_ids)
        except OpenClawError as error:
            answer = VersionAnswer(state=AnswerState.FAILED, note=str(error))
        except Exception:
            # Any bug: the comparison says that it failed, and the next ones have their place.
            log.exception("the reply of version %d cannot be generated", key[0])
            answer = VersionAnswer(state=AnswerState.FAILED, note="this is an error of the page")
        with self._lock:
            self._keep(key, answer)
            self._threads.discard(threading.current_thread())

    def _ask_politely(self, key: tuple[int, str], prompt_ids: list[int]) -> VersionAnswer:
        """Ask until nobody else waits for a reply, for a minute at most."""
        deadline = time.monotonic() + _MAX_WAIT
        delay = _FIRST_DELAY
        while True:
            try:
                return self._request(key[0], prompt_ids)
            except _GatewayBusy:
                waiting = VersionAnswer(
                    state=AnswerState.PENDING, note="waiting: replies to people come first"
                )
                with self._lock:
                    self._keep(key, waiting)
            if time.monotonic() + delay > deadline or self._closing.wait(delay):
                raise OpenClawError(
                    "replies to people come first, and took the whole minute. Try again later"
                )
            delay = min(2 * delay, _MAX_DELAY)

    def _request(self, version: int, prompt_ids: list[int]) -> VersionAnswer:
        """Return the greedy reply, so that only the weights make the difference. Raises `_GatewayBusy`."""
        body = {
            "version": version,
            "prompt_ids": prompt_ids,
            "max_tokens": MAX_TOKENS,
            "temperature": 0.0,
            "seed": 0,
        }
        request = urllib.request.Request(
            gateway_url(self._config) + GATE_REPLY_PATH,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        answer = _read_answer(request)
        if "error" in answer:
            if answer["error"].get("code") == _BUSY:
                raise _GatewayBusy
            raise OpenClawError(str(answer["error"].get("message")))
        return VersionAnswer(
            state=AnswerState.READY,
            token_ids=tuple(answer["token_ids"]),
            is_cut=answer["finish"] == "length",
        )


def _read_answer(request: urllib.request.Request) -> dict[str, Any]:
    """Return the JSON of the gateway, also of an error. Raises `OpenClawError` without an answer in JSON."""
    try:
        try:
            response = open_url(request, timeout=_SILENCE)
        except urllib.error.HTTPError as error:
            with error:
                answer = json.loads(error.read())
        else:
            with response:
                answer = json.loads(response.read())
    except (OSError, HTTPException, ValueError) as error:
        raise OpenClawError(f"the gateway does not answer ({error})") from error
    if not isinstance(answer, dict):
        raise OpenClawError("the gateway sent another answer than expected")
    return answer
