"""SQLAlchemy definition of the table of workers. Migration 37 creates it (`assets/schema/37_workers.sql`)."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, Table, Text

from openclaw_rl.store.schema import metadata

# The processes that work on the home.
workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    # Of its heartbeat.
    Column("name", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    # Seconds since the boot of the machine.
    Column("expires_at", Float, nullable=False),
)
