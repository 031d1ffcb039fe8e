"""SQLAlchemy definitions of the tables. `migrations.py` creates them; a test checks that the two agree.

An exchange has three tables, so that finishing a reply does not rewrite the 40 KB of its request: `exchanges` has the
columns for look-ups, `bodies` the request, `replies` the reply. Arrays are little-endian bytes, structures JSON bytes.
SQLite uses a partial index only if a query repeats its condition with literals; `equals_literal` writes them.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)

metadata = MetaData()


def equals_literal(column: Column[str], value: StrEnum) -> ColumnElement[bool]:
    """Return `column = 'value'` with a literal instead of a parameter, as in the partial indexes."""
    return column == literal_column(f"'{value.value}'")


meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("scope", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("session", Text),  # X-Session-Id, when sent
    Column("kind", Text),  # X-Turn-Type, when sent
    Column("session_done", Integer, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("capture", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("identity", Text, nullable=False),
    Column("admitted_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("finish_reason", Text),
    Column("context_chain", LargeBinary),  # chain of the request's last mark
    Column("reply_own", LargeBinary),
    Column("reply_chain", LargeBinary),
    Column("previous", Text),  # id of the exchange that the client continues, when sent
    Column("origin", Text),  # an `Origin`; NULL: served here
    Column("episode", Text, ForeignKey("episodes.id")),  # NULL: a conversation
)
Index("exchanges_context", exchanges.c.scope, exchanges.c.context_chain)
Index("exchanges_reply_chain", exchanges.c.scope, exchanges.c.reply_chain)
Index("exchanges_reply_own", exchanges.c.scope, exchanges.c.reply_own)
Index("exchanges_running", exchanges.c.seq, sqlite_where=text("status = 'running'"))
Index("exchanges_episode", exchanges.c.episode, sqlite_where=text("episode IS NOT NULL"))

episodes = Table(
    "episodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("task", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("split", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("outcome", Text),  # done, void; NULL: running
    Column("reward", Float),
    Column("ended_at", Float),
)
Index("episodes_group", episodes.c.group_id)

bodies = Table(
    "bodies",
    metadata,
    Column("seq", Integer, ForeignKey("exchanges.seq", ondelete="CASCADE"), primary_key=True),
    Column("messages", LargeBinary),  # NULL: redacted
    Column("tools", LargeBinary),
    Column("template", LargeBinary),  # NULL: no variables
    Column("marks", LargeBinary, nullable=False),
    Column("sampling", LargeBinary, nullable=False),
    Column("prompt_ids", LargeBinary),
)

replies = Table(
    "replies",
    metadata,
    Column("seq", Integer, ForeignKey("exchanges.seq", ondelete="CASCADE"), primary_key=True),
    Column("message", LargeBinary),  # NULL: redacted
    Column("response_ids", LargeBinary),
    Column("logprobs", LargeBinary),
    Column("mask", LargeBinary),
    Column("spans", LargeBinary, nullable=False),
    Column("mark", LargeBinary),
    Column("error", Text),
    Column("first_token_at", Float),
)

turns = Table(
    "turns",
    metadata,
    Column("seq", Integer, ForeignKey("exchanges.seq", ondelete="CASCADE"), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("scope", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("parent", Text),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("cause", Text),  # a `DropReason`
    Column("reason", Text),
    Column("untrainable", Text),
    Column("relation", Text, nullable=False),
    Column("relation_of", Text),
    Column("unlinked", Text),
    Column("revision", Integer, nullable=False),  # of the current reaction; 0: none
    Column("signal", Integer, nullable=False),  # bits of the current verdict: 1 a score, 2 a hint
    Column("uses", Integer, nullable=False),  # by all policies, including rejected candidates
)
Index("turns_served", turns.c.seq, sqlite_where=text("state = 'served'"))
Index("turns_closed", turns.c.seq, sqlite_where=text("state = 'closed'"))
Index("turns_session", turns.c.scope, turns.c.session)
Index(
    "turns_claimable",
    turns.c.uses,
    turns.c.signal,
    turns.c.seq,
    sqlite_where=text("state = 'judged' AND untrainable IS NULL AND kind = 'main'"),
)

reactions = Table(
    "reactions",
    metadata,
    Column("turn", Text, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("messages", LargeBinary, nullable=False),
    Column("signature", LargeBinary),  # of the messages' marks; NULL: explicit feedback only
    Column("source", Text),
    Column("how", Text, nullable=False),
    Column("at", Float, nullable=False),
)

feedback = Table(
    "feedback",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("scope", Text, nullable=False),
    Column("target", Text, ForeignKey("exchanges.id", ondelete="CASCADE"), nullable=False),
    Column("score", Integer),
    Column("comment", Text),
    Column("correction", Text),
    Column("given_at", Float, nullable=False),
    Column("revision", Integer),  # of the reaction that includes it; NULL: pending
)
Index("feedback_target", feedback.c.target)

verdicts = Table(
    "verdicts",
    metadata,
    Column("turn", Text, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("judge", Text, primary_key=True),
    Column("score", Integer),
    Column("votes", LargeBinary, nullable=False),
    Column("hints", LargeBinary, nullable=False),
    Column("explicit", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
)

policies = Table(
    "policies",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("parent", Integer, ForeignKey("policies.version")),
    Column("state", Text, nullable=False),
    Column("path", Text),
    Column("digest", Text, nullable=False),
    Column("base", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("memory", LargeBinary, nullable=False),
    Column("metrics", LargeBinary, nullable=False),
    Column("reason", Text),
    Column("created_at", Float, nullable=False),
)

heads = Table(
    "heads",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, ForeignKey("policies.version"), nullable=False),
)

uses = Table(
    "uses",
    metadata,
    Column("policy", Integer, ForeignKey("policies.version"), primary_key=True),
    Column("turn", Text, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, nullable=False),
    UniqueConstraint("turn", "number"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("expires_at", Float, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("ref", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("at", Float, nullable=False),
    sqlite_autoincrement=True,
)

cursors = Table(
    "cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seq", Integer, nullable=False),
)

loops = Table(
    "loops",
    metadata,
    Column("name", Text, primary_key=True),
    Column("pid", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("note", Text, nullable=False),
)
