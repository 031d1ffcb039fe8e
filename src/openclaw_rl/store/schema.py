"""SQLAlchemy definitions of the tables. `migrations.py` creates them; a test checks that the two agree.

An exchange has three tables, so that finishing a reply does not rewrite the 40 KB of its request: `exchanges` has the
columns for look-ups, `bodies` the request, `replies` the reply. Arrays are little-endian bytes, structures JSON bytes.
SQLite uses a partial index only if a query repeats its condition with literals; `equals_literal` writes them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

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
from sqlalchemy.types import TypeEngine

metadata = MetaData()


def equals_literal(column: Column[str], value: StrEnum) -> ColumnElement[bool]:
    """Return `column = 'value'` with a literal instead of a parameter, as in the partial indexes."""
    return column == literal_column(f"'{value.value}'")


def _required(kind: type[TypeEngine[Any]], names: str) -> list[Column[Any]]:
    """Return columns without NULLs. `names`: separated by spaces."""
    return [Column(name, kind, nullable=False) for name in names.split()]


def _optional(kind: type[TypeEngine[Any]], names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names.split()]


def _exchange_key() -> Column[int]:
    return Column("seq", Integer, ForeignKey("exchanges.seq", ondelete="CASCADE"), primary_key=True)


def _turn_key() -> Column[str]:
    return Column("turn", Text, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True)


meta = Table("meta", metadata, Column("key", Text, primary_key=True), *_required(LargeBinary, "value"))

exchanges = Table(
    "exchanges",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    *_required(Text, "scope agent user dialect capture status identity"),
    *_required(Integer, "session_done version"),
    *_required(Float, "admitted_at"),
    Column("session", Text),  # X-Session-Id, when sent
    Column("kind", Text),  # X-Turn-Type, when sent
    Column("previous", Text),  # id of the exchange that the client continues, when sent
    Column("origin", Text),  # an `Origin`; NULL: served here
    Column("episode", Text, ForeignKey("episodes.id")),  # NULL: a conversation
    *_optional(Text, "finish_reason"),
    *_optional(Float, "finished_at"),
    *_optional(LargeBinary, "context_chain reply_own reply_chain"),  # context_chain: chain of the request's last mark
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
    *_required(Text, "task group_id split agent"),
    *_required(Float, "started_at"),
    Column("outcome", Text),  # done, void; NULL: running
    *_optional(Float, "reward ended_at"),
)
Index("episodes_group", episodes.c.group_id)

bodies = Table(
    "bodies",
    metadata,
    _exchange_key(),
    *_required(LargeBinary, "marks sampling"),
    *_optional(LargeBinary, "messages tools prompt_ids"),  # NULL: redacted
    *_optional(LargeBinary, "template"),  # NULL: no variables
)

replies = Table(
    "replies",
    metadata,
    _exchange_key(),
    *_required(LargeBinary, "spans"),
    *_optional(LargeBinary, "message response_ids logprobs mask"),  # NULL: redacted
    *_optional(LargeBinary, "mark"),
    *_optional(Text, "error"),
    *_optional(Float, "first_token_at"),
)

reply_calls = Table(  # ids of the tool calls in replies; clients send them back
    "reply_calls", metadata, _exchange_key(), Column("call", Text, primary_key=True), *_required(Text, "scope")
)
Index("reply_calls_call", reply_calls.c.scope, reply_calls.c.call)

turns = Table(
    "turns",
    metadata,
    _exchange_key(),
    Column("id", Text, nullable=False, unique=True),
    *_required(Text, "scope session kind state relation"),
    *_optional(Text, "parent reason untrainable relation_of unlinked"),
    Column("cause", Text),  # a `DropReason`
    Column("revision", Integer, nullable=False),  # of the current reaction; 0: none
    Column("signal", Integer, nullable=False),  # bits of the current verdict: 1 a score, 2 a hint
    Column("uses", Integer, nullable=False),  # by all policies, including rejected candidates
)
Index("turns_served", turns.c.seq, sqlite_where=text("state = 'served'"))
Index("turns_closed", turns.c.seq, sqlite_where=text("state = 'closed'"))
Index("turns_session", turns.c.scope, turns.c.session)
_IS_CLAIMABLE = text("state = 'judged' AND untrainable IS NULL AND kind = 'main'")
Index("turns_claimable", turns.c.uses, turns.c.signal, turns.c.seq, sqlite_where=_IS_CLAIMABLE)

reactions = Table(
    "reactions",
    metadata,
    _turn_key(),
    Column("revision", Integer, primary_key=True),
    *_required(LargeBinary, "messages"),
    Column("signature", LargeBinary),  # of the messages' marks; NULL: explicit feedback only
    *_optional(Text, "source"),
    *_required(Text, "how"),
    *_required(Float, "at"),
)

feedback = Table(
    "feedback",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    *_required(Text, "scope"),
    Column("target", Text, ForeignKey("exchanges.id", ondelete="CASCADE"), nullable=False),
    *_optional(Integer, "score"),
    *_optional(Text, "comment correction"),
    *_required(Float, "given_at"),
    Column("revision", Integer),  # of the reaction that includes it; NULL: pending
)
Index("feedback_target", feedback.c.target)

verdicts = Table(
    "verdicts",
    metadata,
    _turn_key(),
    Column("revision", Integer, primary_key=True),
    Column("judge", Text, primary_key=True),
    *_optional(Integer, "score"),
    *_required(LargeBinary, "votes hints"),
    *_required(Integer, "explicit"),
    *_required(Text, "reason"),
    *_required(Float, "at"),
)

cached_votes = Table(  # answers of judges to questions, by the hash of the question
    "cached_votes",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("key", LargeBinary, nullable=False, unique=True),
    Column("turn", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    *_required(LargeBinary, "votes"),
)
Index("cached_votes_turn", cached_votes.c.turn)

policies = Table(
    "policies",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("parent", Integer, ForeignKey("policies.version")),
    *_required(Text, "state digest base identity"),
    *_optional(Text, "path reason"),
    *_required(LargeBinary, "memory metrics"),
    *_required(Float, "created_at"),
    Column("files", LargeBinary),  # digests of all files; NULL: only that of the weights is known
    Column("damage", Text),  # how the files differ from their digests; NULL: they do not, as far as is known
)
Index("policies_damaged", policies.c.version, sqlite_where=text("damage IS NOT NULL"))

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
    _turn_key(),
    *_required(Integer, "number"),
    UniqueConstraint("turn", "number"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    *_required(Text, "holder"),
    *_required(Integer, "epoch"),
    *_required(Float, "expires_at"),
)

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True),
    *_required(Text, "kind ref"),
    *_required(LargeBinary, "data"),
    *_required(Float, "at"),
    sqlite_autoincrement=True,
)

cursors = Table("cursors", metadata, Column("name", Text, primary_key=True), *_required(Integer, "seq"))

attempts = Table(  # what the workers are working on, and how often they began
    "attempts",
    metadata,
    Column("stage", Text, primary_key=True),
    Column("ref", Text, primary_key=True),
    *_required(Integer, "count"),
)

loops = Table(
    "loops",
    metadata,
    Column("name", Text, primary_key=True),
    *_required(Integer, "pid"),
    *_required(Float, "at"),
    *_required(Text, "state note"),
)
