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
VARIABLES_AT_ONCE = 5000
"""Values that a query names at most, below the bound of any build of SQLite."""


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


meta = Table(
    "meta", metadata, Column("key", Text, primary_key=True), *_required(LargeBinary, "value")
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    *_required(Text, "scope agent user dialect capture status identity"),
    *_required(Integer, "session_done version"),
    *_required(Float, "admitted_at"),
    # X-Session-Id, when sent.
    Column("session", Text),
    # X-Turn-Type, when sent.
    Column("kind", Text),
    # Id of the exchange that the client continues, when sent.
    Column("previous", Text),
    # The client's own id of the reply, when sent.
    Column("client_message_id", Text),
    # An `Origin`; NULL: served here.
    Column("origin", Text),
    # NULL: a conversation.
    Column("episode", Text, ForeignKey("episodes.id")),
    *_optional(Text, "finish_reason"),
    *_optional(Float, "finished_at"),
    # context_chain: chain of the request's last mark.
    *_optional(LargeBinary, "context_chain reply_own reply_chain"),
)
Index("exchanges_context", exchanges.c.scope, exchanges.c.context_chain)
Index("exchanges_reply_chain", exchanges.c.scope, exchanges.c.reply_chain)
Index("exchanges_reply_own", exchanges.c.scope, exchanges.c.reply_own)
Index(
    "exchanges_client_message",
    exchanges.c.scope,
    exchanges.c.client_message_id,
    sqlite_where=text("client_message_id IS NOT NULL"),
)
Index("exchanges_running", exchanges.c.seq, sqlite_where=text("status = 'running'"))
Index("exchanges_episode", exchanges.c.episode, sqlite_where=text("episode IS NOT NULL"))

episodes = Table(
    "episodes",
    metadata,
    Column("id", Text, primary_key=True),
    *_required(Text, "task group_id split agent"),
    *_required(Float, "started_at"),
    # Done, void; NULL: running.
    Column("outcome", Text),
    *_optional(Float, "reward ended_at"),
    # Of the owner's key.
    Column("scope", Text, nullable=False, server_default=text("''")),
    Column("expires_at", Float, nullable=False, server_default=text("0")),
    *_optional(Integer, "max_steps"),
    # JSON; NULL: none.
    *_optional(LargeBinary, "sampling parts steps versions"),
    *_optional(Text, "reason"),
    # NULL: its steps are not known yet.
    *_optional(Float, "settled_at"),
)
Index("episodes_group", episodes.c.group_id)
Index("episodes_running", episodes.c.expires_at, sqlite_where=text("outcome IS NULL"))

episode_groups = Table(
    "episode_groups",
    metadata,
    Column("id", Text, primary_key=True),
    *_required(Text, "scope task split agent"),
    *_required(Integer, "size"),
    *_required(Float, "expires_at"),
    *_optional(Float, "completed_at"),
    # Why it is not trained on.
    *_optional(Text, "reason"),
)
Index("episode_groups_open", episode_groups.c.expires_at, sqlite_where=text("completed_at IS NULL"))

# The turns on the chain that leads to the last turn of an episode.
episode_steps = Table(
    "episode_steps",
    metadata,
    _turn_key(),
    Column("episode", Text, ForeignKey("episodes.id"), nullable=False),
    *_required(Integer, "step"),
    # That the environment gave.
    *_optional(Float, "reward"),
)
Index("episode_steps_episode", episode_steps.c.episode)

bodies = Table(
    "bodies",
    metadata,
    _exchange_key(),
    *_required(LargeBinary, "marks sampling"),
    # NULL: redacted.
    *_optional(LargeBinary, "messages tools prompt_ids"),
    # NULL: no variables.
    *_optional(LargeBinary, "template"),
    # JSON id -> text of the lessons in the prompt; NULL: none.
    *_optional(LargeBinary, "lessons"),
)

replies = Table(
    "replies",
    metadata,
    _exchange_key(),
    *_required(LargeBinary, "spans"),
    # NULL: redacted.
    *_optional(LargeBinary, "message response_ids logprobs mask"),
    *_optional(LargeBinary, "mark"),
    *_optional(Text, "error"),
    *_optional(Float, "first_token_at"),
)

# Ids of the tool calls in replies; clients send them back.
reply_calls = Table(
    "reply_calls",
    metadata,
    _exchange_key(),
    Column("call", Text, primary_key=True),
    *_required(Text, "scope"),
)
Index("reply_calls_call", reply_calls.c.scope, reply_calls.c.call)

turns = Table(
    "turns",
    metadata,
    _exchange_key(),
    Column("id", Text, nullable=False, unique=True),
    *_required(Text, "scope session kind state relation"),
    *_optional(Text, "parent reason untrainable relation_of unlinked"),
    # `ReasonCode` of `reason`.
    Column("cause", Text),
    # `ReasonCode` of `untrainable` and of `unlinked`.
    *_optional(Text, "untrainable_code unlinked_code"),
    # Of the current reaction; 0: none.
    Column("revision", Integer, nullable=False),
    # Bits of the current verdict: 1 a score, 2 a hint.
    Column("signal", Integer, nullable=False),
    # By all policies, including rejected candidates.
    Column("uses", Integer, nullable=False),
    # Name of the policy that it trains (`lineage/policy_names.py`).
    Column("owner", Text, nullable=False, server_default=text("'default'")),
    # Those of its uses that are not by versions on the lineage of its policy's head (`lineage/lost_uses.py`).
    Column("lost", Integer, nullable=False, server_default=text("0")),
)
Index("turns_served", turns.c.seq, sqlite_where=text("state = 'served'"))
Index("turns_closed", turns.c.seq, sqlite_where=text("state = 'closed'"))
Index("turns_session", turns.c.scope, turns.c.session)
Index("turns_practice", turns.c.seq, sqlite_where=text("kind = 'practice'"))
Index("turns_degenerate", turns.c.seq, sqlite_where=text("cause = 'degenerate'"))
Index("turns_owner", turns.c.owner, turns.c.seq, sqlite_where=text("kind = 'main'"))
_IS_CLAIMABLE = "state = 'judged' AND untrainable IS NULL AND kind = 'main'"
Index(
    "turns_claimable",
    *(turns.c.signal, turns.c.uses, turns.c.owner, turns.c.seq),
    sqlite_where=text(_IS_CLAIMABLE),
)
Index(
    "turns_lost",
    *(turns.c.signal, turns.c.owner, turns.c.seq),
    sqlite_where=text(f"{_IS_CLAIMABLE} AND lost > 0"),
)
Index(
    "turns_freed",
    *(turns.c.signal, turns.c.owner, turns.c.seq),
    sqlite_where=text(f"{_IS_CLAIMABLE} AND lost > 0 AND uses - lost = 0"),
)

reactions = Table(
    "reactions",
    metadata,
    _turn_key(),
    Column("revision", Integer, primary_key=True),
    *_required(LargeBinary, "messages"),
    # Of the messages' marks; NULL: explicit feedback only.
    Column("signature", LargeBinary),
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
    # Of the reaction that includes it; NULL: pending.
    Column("revision", Integer),
    *_optional(Text, "given_by idempotency_key"),
    *_optional(LargeBinary, "body_digest"),
    # NULL: it counts.
    *_optional(Float, "retracted_at"),
)
Index("feedback_target", feedback.c.target)
Index("feedback_key", feedback.c.scope, feedback.c.idempotency_key, unique=True)

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
    Column("weight", Float, nullable=False, server_default=text("1")),
    # `ReasonCode` of an abstention of votes.
    Column("reason_code", Text),
)

# What a person did with a reply, which may be evidence (`store/behaviour/observations.py`).
observations = Table(
    "observations",
    metadata,
    _turn_key(),
    Column("signal", Text, primary_key=True),
    # The exchange that shows it.
    *_optional(Text, "source"),
    *_required(Float, "at"),
)

# Answers of judges to questions, by the hash of the question.
cached_votes = Table(
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
    # Digests of all files; NULL: only that of the weights is known.
    Column("files", LargeBinary),
    # How the files differ from their digests; NULL: they do not, as far as is known.
    Column("damage", Text),
    # Of the policy; see `lineage/policy_names.py`.
    Column("name", Text, nullable=False, server_default="default"),
    # `ReasonCode` of `reason`.
    Column("reason_code", Text),
)
Index("policies_damaged", policies.c.version, sqlite_where=text("damage IS NOT NULL"))
Index("policies_name", policies.c.name, policies.c.version)

# Answers of the head and of a candidate to the probes of the gate.
probe_answers = Table(
    "probe_answers",
    metadata,
    Column("version", Integer, ForeignKey("policies.version"), primary_key=True),
    Column("probe", Text, primary_key=True),
    Column("head", Integer, ForeignKey("policies.version"), nullable=False),
    # The person's turn whose prompt was asked again.
    Column("turn", Text, ForeignKey("turns.id", ondelete="CASCADE")),
    *_required(Text, "question head_answer candidate_answer"),
    *_required(Float, "verdict"),
    *_required(Text, "reason"),
)
Index("probe_answers_turn", probe_answers.c.turn)

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
    # Ascending in the order of the batch.
    Column("place", Integer),
    # See `token_credit`; NULL: not recorded.
    Column("credit", LargeBinary),
    UniqueConstraint("turn", "number"),
)

# Batches that an undo trains on again, in this order.
retraining = Table(
    "retraining",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("repeats", Integer, ForeignKey("policies.version"), nullable=False),
    # JSON list of ids, in the order of the batch.
    *_required(LargeBinary, "turns"),
    # Of the policy.
    Column("name", Text, nullable=False, server_default="default"),
    sqlite_autoincrement=True,
)

# What people said about replies in words (`store/lessons/lessons.py`).
lessons = Table(
    "lessons",
    metadata,
    Column("id", Text, primary_key=True),
    *_required(Text, "policy key text topic scope_kind scope_value"),
    *_required(Float, "weight"),
    *_required(Text, "state"),
    Column("superseded_by", Text, ForeignKey("lessons.id", ondelete="SET NULL")),
    *_required(Integer, "is_pinned"),
    *_required(Float, "made_at reinforced_at"),
    # NULL: it is not in the weights.
    Column("learned_version", Integer, ForeignKey("policies.version")),
    *_optional(Float, "divergence"),
    # JSON of a `Withdrawal`; NULL: it was not withdrawn.
    Column("withdrawal", LargeBinary),
    # Whether it may reach others than the person who said it.
    Column("is_shared", Integer, nullable=False, server_default=text("1")),
)
Index("lessons_scope", lessons.c.policy, lessons.c.key, lessons.c.scope_kind, lessons.c.scope_value)

# The evidence of each lesson.
lesson_turns = Table(
    "lesson_turns",
    metadata,
    Column("lesson", Text, ForeignKey("lessons.id", ondelete="CASCADE"), primary_key=True),
    _turn_key(),
    *_required(Float, "weight at"),
    # Of the person, on which the lesson stands.
    Column("words", Text, nullable=False, server_default=text("''")),
)
Index("lesson_turns_turn", lesson_turns.c.turn)

# Wishes of lessons that a person has forgotten (`store/lessons/forgotten_wishes.py`).
forgotten_wishes = Table(
    "forgotten_wishes",
    metadata,
    _turn_key(),
    Column("wish", Text, primary_key=True),
)

# Lessons that a narrower one contradicts (`store/lessons/conflicts.py`).
lesson_conflicts = Table(
    "lesson_conflicts",
    metadata,
    Column("lesson", Text, ForeignKey("lessons.id", ondelete="CASCADE"), primary_key=True),
    Column("other", Text, ForeignKey("lessons.id", ondelete="CASCADE"), primary_key=True),
)
Index("lesson_conflicts_other", lesson_conflicts.c.other)

lesson_divergences = Table(
    "lesson_divergences",
    metadata,
    Column("lesson", Text, ForeignKey("lessons.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, ForeignKey("policies.version"), primary_key=True),
    *_required(Float, "value at"),
)

# Turns of practice (`store/lessons/practice_turns.py`).
practice_turns = Table(
    "practice_turns",
    metadata,
    _turn_key(),
    # Its prompt was asked again.
    Column("source", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
)
Index("practice_turns_source", practice_turns.c.source)

# The lessons in the teacher's prompt of a practice turn; some may be forgotten since.
practice_lessons = Table(
    "practice_lessons",
    metadata,
    Column("turn", Text, ForeignKey("practice_turns.turn", ondelete="CASCADE"), primary_key=True),
    Column("lesson", Text, primary_key=True),
)
Index("practice_lessons_lesson", practice_lessons.c.lesson)

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

cursors = Table(
    "cursors", metadata, Column("name", Text, primary_key=True), *_required(Integer, "seq")
)

# Of large files, by what identifies their content (`store/file_digests.py`).
file_digests = Table(
    "file_digests",
    metadata,
    Column("path", Text, primary_key=True),
    *_required(Integer, "size modified_ns inode"),
    *_required(LargeBinary, "sha256"),
)

# What the workers are working on, and how often they began.
attempts = Table(
    "attempts",
    metadata,
    Column("stage", Text, primary_key=True),
    Column("ref", Text, primary_key=True),
    *_required(Integer, "count"),
    # The process that began it last, and its entry (`workers/registry.py`); empty: of an earlier release.
    Column("pid", Integer, nullable=False, server_default="0"),
    Column("worker", Text, nullable=False, server_default=text("''")),
    # Deaths that the machine caused.
    Column("excused", Integer, nullable=False, server_default="0"),
)

loops = Table(
    "loops",
    metadata,
    Column("name", Text, primary_key=True),
    *_required(Integer, "pid"),
    *_required(Float, "at"),
    *_required(Text, "state note"),
    Column("advanced_at", Float, nullable=False, server_default="0"),
    # JSON; empty: nothing that takes long.
    Column("activity", Text, nullable=False, server_default=""),
    # JSON list of `Wait`.
    Column("waits", Text, nullable=False, server_default="[]"),
)
