"""SQLAlchemy definition of the table of workers. `migrations.py` creates it."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, Table, Text

from openclaw_rl.store.schema import metadata

# The processes that work on the home.
workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("stage", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("boot", Text, nullable=False),
    Column("pid_space", Integer, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
)
