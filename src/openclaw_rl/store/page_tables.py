"""SQLAlchemy definitions of the tables of the page: who may see it, and the audit of what the owner changed."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, Table, Text

from openclaw_rl.store.schema import lesson_turns, metadata

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

Index("lesson_turns_said", lesson_turns.c.lesson, lesson_turns.c.at)
