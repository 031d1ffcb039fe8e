"""SQLAlchemy definitions of the page: who may see it, the audit of what the owner changed, indexes of its queries."""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, LargeBinary, Table, Text, text

from openclaw_rl.store.schema import exchanges, lesson_turns, metadata, turns, verdicts

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
# What an act changed, as JSON.
act_details = Table(
    "act_details",
    metadata,
    Column("act", Text, ForeignKey("acts.id", ondelete="CASCADE"), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
# Of verdicts by which a judge understood nothing (`unclear_reactions.py`).
IS_NOT_UNDERSTOOD = text(
    "score IS NULL AND explicit = 0 AND hints = x'5b5d' AND coalesce(reason_code, '') != 'no evidence'"
)
Index(
    "verdicts_not_understood",
    verdicts.c.at,
    verdicts.c.turn,
    sqlite_where=IS_NOT_UNDERSTOOD,
)

Index("exchanges_admitted", exchanges.c.admitted_at)
Index("exchanges_version", exchanges.c.version)
_IS_DROPPED = text("kind = 'main' AND cause IS NOT NULL")
Index("turns_cause", turns.c.cause, sqlite_where=_IS_DROPPED)
_IS_UNTRAINABLE = text("kind = 'main' AND untrainable_code IS NOT NULL")
Index("turns_untrainable", turns.c.untrainable_code, sqlite_where=_IS_UNTRAINABLE)
Index("lesson_turns_said", lesson_turns.c.lesson, lesson_turns.c.at)
