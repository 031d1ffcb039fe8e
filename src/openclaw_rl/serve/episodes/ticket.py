"""Tickets: API keys that are valid for one episode, authenticated by a MAC without the store."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

EPISODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
TICKET_PREFIX = "sk-ep-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """An authentic ticket. Whether its episode is still running is not known from it."""

    episode: str
    owner: str  # scope of the owner's API key
    expires_at: int  # seconds since the epoch


def make_ticket(secret: bytes, ticket: Ticket) -> str:
    """Return the key `sk-ep-<episode>.<expiry>.<mac>`. `secret`: of the store."""
    return f"{TICKET_PREFIX}{ticket.episode}.{ticket.expires_at}.{_mac(secret, ticket)}"


def read_ticket(secret: bytes, key: str, owners: Iterable[str]) -> Ticket | None:
    """Return the ticket of a key that was made for one of these owners; None for any other key."""
    episode, _, rest = key.removeprefix(TICKET_PREFIX).rpartition(".")
    episode, _, expiry = episode.rpartition(".")
    if not (
        key.startswith(TICKET_PREFIX) and key.isascii() and expiry.isdigit() and len(expiry) < 16
    ):
        return None
    matched = None
    for owner in owners:
        ticket = Ticket(episode=episode, owner=owner, expires_at=int(expiry))
        if hmac.compare_digest(_mac(secret, ticket), rest):
            matched = ticket
    return matched


def _mac(secret: bytes, ticket: Ticket) -> str:
    signed = f"{ticket.owner}.{ticket.episode}.{ticket.expires_at}".encode()
    return blake2b(signed, digest_size=20, key=secret, person=b"openclaw-ticket").hexdigest()
