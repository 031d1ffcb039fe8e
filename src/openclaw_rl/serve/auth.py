"""Authenticate clients by API keys from the settings, or from a key file that is created at the first start.

A right key is never delayed: a program that repeats an old key, or an attacker behind the same proxy, must not lock
out others with the same address. Wrong keys wait, which bounds what they cost; that they cannot be guessed is ensured
by their length.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar, cast

from aiohttp import web

from openclaw_rl.common.gateway_address import home_key
from openclaw_rl.errors import ConfigError, RequestError
from openclaw_rl.serve.access.key_form import (
    KEY_HEADERS,
    KEY_PREFIX,
    bearer_key,
    describe_keys,
)
from openclaw_rl.serve.episodes.ticket import TICKET_PREFIX, Ticket, read_ticket
from openclaw_rl.serve.http_connection import GatewayConnection
from openclaw_rl.settings.load import Config

_Match = TypeVar("_Match")

log = logging.getLogger(__name__)

_KEY_NEEDED = "this gateway needs its API key."
_KEY_ADVICE = (
    "Send `Authorization: Bearer <key>` (or `x-api-key: <key>`, or `api-key: <key>`). On the gateway's machine, "
    "`openclaw-rl key` prints the key; it is in serve.api_key of the settings, else in the file <home>/api_key."
)
_UNDELAYED_ATTEMPTS = 5  # wrong keys of an address that are answered at once
# Seconds; the delay doubles with each wrong key.
_FIRST_DELAY = 0.25
_LONGEST_DELAY = 2.0
# Without a wrong key.
_FORGET_SECONDS = 60.0
_MAX_ADDRESSES = 10_000


def scope_of(key: str) -> str:
    """Return the key's id in the store (12 hex digits). Exchanges are never linked across scopes."""
    return blake2b(
        key.encode("utf-8", "surrogateescape"), digest_size=6, person=b"openclaw-scope"
    ).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request. The exchanges of an episode have a scope of their own: they are linked to no others."""

    scope: str
    owner: str  # scope of the API key, also for a ticket that was made with it
    episode: str | None = None  # of the ticket
    is_home: bool = False  # whether it is a command on the home, for which versions have no owners


def first_match(match: Callable[[str], _Match | None], keys: Iterable[str]) -> _Match | None:
    """Return the first result of `match` that is not None."""
    results = map(match, keys)
    return next((result for result in results if result is not None), None)


class ApiKeys:
    """The accepted API keys. A sent key is compared with each of them, in constant time."""

    def __init__(self, keys: Sequence[str], *, ticket_secret: bytes = b"") -> None:
        """`ticket_secret`: of the store; without it no ticket is accepted, nor the key of the home."""
        self._keys_and_scopes = [(k.encode("utf-8", "surrogateescape"), scope_of(k)) for k in keys]
        self._wrong_keys = WrongKeyDelays()
        self.ticket_secret = ticket_secret

    @property
    def first_scope(self) -> str:
        """The id of the first key, which is the home's own."""
        return self._keys_and_scopes[0][1]

    async def authenticate(self, request: web.Request) -> str:
        """Return the scope of an owner's key. Raises as `authenticate_owner` does."""
        return (await self.authenticate_owner(request)).scope

    async def authenticate_owner(self, request: web.Request) -> Caller:
        """Return who has the request's key. Raises as `authenticate_caller` does, and 403 for a ticket."""
        caller = await self.authenticate_caller(request)
        if caller.episode is not None:
            raise RequestError(
                f"this key is for the replies of the episode {caller.episode} alone; {request.method} {request.path} "
                "needs the owner's key.",
                code="episode_key",
                status=403,
            )
        return caller

    async def authenticate_caller(self, request: web.Request) -> Caller:
        """Return who has the request's key. Raises `RequestError` (401), for a wrong key after a delay."""
        connection = cast(GatewayConnection, request.protocol)
        try:
            caller = self._find_caller(request.headers)
        except RequestError:
            if _sent_keys(request.headers):
                await asyncio.sleep(self._wrong_keys.next_delay(connection.client_address))
            raise
        if caller.episode is None:
            connection.mark_owner()
        else:
            connection.mark_ticket()
        return caller

    def ticket_episode(self, headers: Mapping[str, str]) -> str | None:
        """Return the episode whose ticket the request has; None for any other key."""
        try:
            return self._find_caller(headers).episode
        except RequestError:
            return None

    def authenticated_scope(self, headers: Mapping[str, str]) -> str:
        """Return the scope of the key in `Authorization: Bearer`, else in `x-api-key` or Azure's `api-key`.

        Raises `RequestError` (401).
        """
        return self._find_caller(headers).scope

    def _find_caller(self, headers: Mapping[str, str]) -> Caller:
        keys = _sent_keys(headers)
        owner = first_match(self._match_key, keys)
        if owner is not None:
            return Caller(scope=owner, owner=owner)
        if any(map(self._is_home_key, keys)):
            return Caller(scope=self.first_scope, owner=self.first_scope, is_home=True)
        ticket = first_match(self._match_ticket, keys)
        if ticket is None:
            raise RequestError(
                f"{_KEY_NEEDED} Got {describe_keys(headers)}. {_KEY_ADVICE}",
                code="invalid_api_key",
                status=401,
            )
        scope = scope_of(f"{TICKET_PREFIX}{ticket.owner}.{ticket.episode}")
        return Caller(scope=scope, owner=ticket.owner, episode=ticket.episode)

    def _is_home_key(self, key: str) -> bool:
        known = home_key(self.ticket_secret) if self.ticket_secret else ""
        return bool(known) and hmac.compare_digest(known.encode(), key.encode(errors="replace"))

    def _match_ticket(self, key: str) -> Ticket | None:
        if not self.ticket_secret:
            return None
        return read_ticket(self.ticket_secret, key, [scope for _, scope in self._keys_and_scopes])

    def _match_key(self, key: str) -> str | None:
        raw = key.encode("utf-8", "surrogateescape")
        matched_scope = None
        for known, scope in self._keys_and_scopes:
            if hmac.compare_digest(known, raw):
                matched_scope = scope
        return matched_scope


def _sent_keys(headers: Mapping[str, str]) -> list[str]:
    """Return the keys of all headers: clients send several, and often only one of them is for this gateway."""
    bearer = bearer_key(headers.get("Authorization", ""))
    return [key for key in (bearer, *(headers.get(name, "") for name in KEY_HEADERS)) if key]


class WrongKeyDelays:
    """How long the response to a wrong key waits, by client address."""

    def __init__(self) -> None:
        # Address -> (wrong keys, time of the last).
        self._attempts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def next_delay(self, address: str) -> float:
        """Count a wrong key. Return the seconds that its response waits."""
        now = time.monotonic()
        count, last = self._attempts.pop(address, (0, now))
        count = 1 if now - last > _FORGET_SECONDS else count + 1
        self._attempts[address] = count, now
        if len(self._attempts) > _MAX_ADDRESSES:
            self._attempts.popitem(last=False)
        doublings = count - _UNDELAYED_ATTEMPTS - 1
        return 0.0 if doublings < 0 else min(_FIRST_DELAY * 2 ** min(doublings, 10), _LONGEST_DELAY)


def load_keys(config: Config) -> ApiKeys:
    """Load `serve.api_key`, else the key file. A missing file is created (mode 600). Raises `ConfigError`."""
    if config.serve.api_key:
        return ApiKeys([config.serve.api_key])
    return ApiKeys(read_key_file(config.key_file))


def read_key_file(path: Path) -> list[str]:
    """Read the keys of a file: one per line, as `key` or `name:key`. A line that begins with `#` is a comment."""
    try:
        if not path.exists():
            _make_key_file(path)
        mode = path.stat().st_mode & 0o777
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: the API key file cannot be used ({error}). Make it readable, or set serve.api_key."
        ) from error
    if mode & 0o077:
        log.warning("%s can be read by other users (mode %o); run `chmod 600` on it", path, mode)
    lines = list(filter(None, map(str.strip, text.splitlines())))
    keys = [line.split(":", 1)[-1].strip() for line in lines if not line.startswith("#")]
    if not keys or "" in keys:
        raise ConfigError(
            f"{path}: expected one key per line, found none. Delete the file to create a new key."
        )
    return keys


def _make_key_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        # Another process created the file first; its key is used.
        return
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(KEY_PREFIX + secrets.token_urlsafe(24) + "\n")
