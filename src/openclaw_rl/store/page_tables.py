"""SQLAlchemy definitions of the page: who may see it, the audit of what the owner changed, indexes of its queries."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, Table, Text, text

from openclaw_rl.store.schema import exchanges, metadata, turns

# Links that were not used yet (`page_access.py`).
page_tickets = Table(
    "page_tickets",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("expires_at", Float, nullable=False),
)
# Browsers that are signed in.
page_sessions = Table(
    "page_sessions",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
)
# By a command or on the page (`acts.py`).
acts = Table(
    "acts",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("at", Float, nullable=False),
)

Index("exchanges_admitted", exchanges.c.admitted_at)
Index("exchanges_version", exchanges.c.version)
_IS_DROPPED = text("kind = 'main' AND cause IS NOT NULL")
Index("turns_cause", turns.c.cause, sqlite_where=_IS_DROPPED)
_IS_UNTRAINABLE = text("kind = 'main' AND untrainable_code IS NOT NULL")
Index("turns_untrainable", turns.c.untrainable_code, sqlite_where=_IS_UNTRAINABLE)
