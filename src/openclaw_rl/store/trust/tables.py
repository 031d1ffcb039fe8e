"""The tables of trust. Migration 29 creates them (`assets/schema/29_person_trust.sql`)."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, Table, Text, text

from openclaw_rl.store.schema import metadata

# Whether a judge is trusted for a person's turns, by the scores of that person.
judge_trust = Table(
    "judge_trust",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("user", Text, primary_key=True),
    Column("judge", Text, primary_key=True),
    Column("is_trusted", Integer, nullable=False),
    Column("kappa", Float, nullable=False),
    Column("pairs", Integer, nullable=False),
)
Index("judge_trust_refused", judge_trust.c.judge, sqlite_where=text("is_trusted = 0"))

# Evidence of people that does not count in what is common to all.
evidence_set_aside = Table(
    "evidence_set_aside",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("user", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("part", Integer, nullable=False),
    Column("whole", Integer, nullable=False),
    Column("detail", Text, nullable=False),
    Column("at", Float, nullable=False),
)
