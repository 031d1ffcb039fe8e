"""SQLAlchemy definitions of the page, and of reports.

Who may see the page, the audit of what the owner changed, and the indexes of the queries of the page and of reports:
what `status` counts, and the lists of sessions and versions. SQLite uses a partial index only if a query repeats its
condition with literals, so queries use the conditions here.
"""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, LargeBinary, Table, Text, text

from openclaw_rl.store.schema import (
    exchanges,
    lesson_turns,
    metadata,
    policies,
    turns,
    verdicts,
)

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

OF_PEOPLE = text("turns.kind != 'practice'")
"""Turns that are not of practice."""
IS_DROPPED = text("turns.state = 'dropped'")
IS_UNFIT = text("turns.untrainable IS NOT NULL")
IS_UNLINKED = text("turns.unlinked IS NOT NULL")
# 7b7d is {}, and 223a22 is between a file's name and its digest.
IS_PRESENT = text("files IS NULL OR files = x'7b7d' OR instr(files, x'223a22') > 0")
"""Versions whose files were not removed; it stands in parentheses beside other conditions."""

_OF_PEOPLE = "kind != 'practice'"
Index("turns_by_session", turns.c.session)
Index("turns_by_state", turns.c.state, sqlite_where=text(_OF_PEOPLE))
Index(
    "turns_dropped",
    turns.c.cause,
    turns.c.reason,
    sqlite_where=text(f"state = 'dropped' AND {_OF_PEOPLE}"),
)
Index(
    "turns_unfit",
    turns.c.untrainable_code,
    turns.c.untrainable,
    sqlite_where=text(f"untrainable IS NOT NULL AND {_OF_PEOPLE}"),
)
Index(
    "turns_unlinked",
    turns.c.unlinked_code,
    turns.c.unlinked,
    sqlite_where=text(f"unlinked IS NOT NULL AND {_OF_PEOPLE}"),
)
Index("verdicts_judge", verdicts.c.judge, verdicts.c.score)
Index("policies_state", policies.c.state)
Index("policies_parent", policies.c.parent)
Index("policies_present", policies.c.path, sqlite_where=IS_PRESENT)
