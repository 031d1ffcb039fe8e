"""Who may see the page: tickets of links, each of which signs in one browser, and the sessions of signed-in browsers.

Only digests are stored, so that a copy of the store opens no page.
"""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import Connection, delete, insert, select

from openclaw_rl.store.page_tables import page_sessions, page_tickets

TICKET_SECONDS = 600.0
"""Time in which a link can be used."""
SESSION_SECONDS = 30 * 86400.0
"""Time after which a browser has to sign in again."""


def create_ticket(conn: Connection, *, at: float) -> str:
    """Return a new ticket. Deletes tickets and sessions that have expired."""
    for table in (page_tickets, page_sessions):
        conn.execute(delete(table).where(table.c.expires_at <= at))
    ticket = secrets.token_urlsafe(24)
    conn.execute(
        insert(page_tickets).values(digest=_digest(ticket), expires_at=at + TICKET_SECONDS)
    )
    return ticket


def is_ticket(conn: Connection, ticket: str, *, at: float) -> bool:
    """Return whether a ticket can be exchanged."""
    is_valid = (page_tickets.c.digest == _digest(ticket)) & (page_tickets.c.expires_at > at)
    return conn.execute(select(page_tickets.c.digest).where(is_valid)).first() is not None


def exchange_ticket(conn: Connection, ticket: str, *, at: float) -> str | None:
    """Use up a ticket and return the token of a new session; None if the ticket is unknown, used or too old."""
    is_valid = (page_tickets.c.digest == _digest(ticket)) & (page_tickets.c.expires_at > at)
    if conn.execute(delete(page_tickets).where(is_valid)).rowcount != 1:
        return None
    token = secrets.token_urlsafe(32)
    row = {"digest": _digest(token), "created_at": at, "expires_at": at + SESSION_SECONDS}
    conn.execute(insert(page_sessions).values(row))
    return token


def is_signed_in(conn: Connection, token: str, *, at: float) -> bool:
    """Return whether a browser with this token is signed in."""
    query = select(page_sessions.c.expires_at).where(page_sessions.c.digest == _digest(token))
    expires_at = conn.execute(query).scalar()
    return expires_at is not None and expires_at > at


def end_session(conn: Connection, token: str) -> None:
    """Sign a browser out."""
    conn.execute(delete(page_sessions).where(page_sessions.c.digest == _digest(token)))


def end_all_sessions(conn: Connection) -> int:
    """Sign every browser out and make every link invalid. Return the number of browsers."""
    conn.execute(delete(page_tickets))
    return conn.execute(delete(page_sessions)).rowcount


def _digest(token: str) -> bytes:
    raw = token.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=32, person=b"openclaw-page").digest()
