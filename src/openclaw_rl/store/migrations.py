"""The numbered schema migrations. Never edit one that has been applied anywhere; add the next number instead.

They are SQL files in `assets/schema/` and do not use `schema.py`, so that later changes of it do not alter them.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.store import migrated_reasons

Migration = Callable[[sqlite3.Connection], None]


def run_script(conn: sqlite3.Connection, script: str) -> None:
    """Execute each statement of `script` (`executescript` would commit the open transaction). A `;` always ends one."""
    for statement in script.split(";"):
        if statement.strip():
            conn.execute(statement)


def _run_file(name: str, conn: sqlite3.Connection) -> None:
    run_script(conn, (ASSETS / "schema" / f"{name}.sql").read_text(encoding="utf-8"))


def _initial_schema(conn: sqlite3.Connection) -> None:
    """Create all tables, and the key of the message hashes."""
    _run_file("1_initial", conn)
    conn.execute("INSERT INTO meta (key, value) VALUES ('secret', ?)", (secrets.token_bytes(32),))


def _add_reason_codes(conn: sqlite3.Connection) -> None:
    _run_file("24_reason_codes", conn)
    migrated_reasons.fill_codes(conn)


def _add_unlinked_codes(conn: sqlite3.Connection) -> None:
    _run_file("25_unlinked_codes", conn)
    migrated_reasons.fill_unlinked_codes(conn)


MIGRATIONS: Sequence[Migration] = (
    _initial_schema,
    partial(_run_file, "2_template_variables"),
    partial(_run_file, "3_previous_exchange"),
    partial(_run_file, "4_exchange_origin"),
    partial(_run_file, "5_episodes"),
    partial(_run_file, "6_reply_calls"),
    partial(_run_file, "7_attempts"),
    partial(_run_file, "8_policy_files"),
    partial(_run_file, "9_cached_votes"),
    partial(_run_file, "10_probe_answers"),
    partial(_run_file, "11_retraining"),
    partial(_run_file, "12_behaviour"),
    partial(_run_file, "13_policy_names"),
    partial(_run_file, "14_lessons"),
    partial(_run_file, "15_practice"),
    partial(_run_file, "16_degenerate_turns"),
    partial(_run_file, "17_episode_groups"),
    partial(_run_file, "18_forgotten_wishes"),
    partial(_run_file, "19_lesson_conflicts"),
    partial(_run_file, "20_file_digests"),
    partial(_run_file, "21_progress"),
    partial(_run_file, "22_lesson_examinations"),
    partial(_run_file, "23_waits"),
    _add_reason_codes,
    _add_unlinked_codes,
    partial(_run_file, "26_feedback"),
    partial(_run_file, "27_words_of_lessons"),
    partial(_run_file, "28_policy_keys"),
    partial(_run_file, "29_person_trust"),
    partial(_run_file, "30_page"),
    partial(_run_file, "31_page_indexes"),
    partial(_run_file, "32_newest_words"),
    partial(_run_file, "33_not_understood"),
    partial(_run_file, "34_owners"),
    partial(_run_file, "35_reports"),
    partial(_run_file, "36_freed_turns"),
    partial(_run_file, "37_workers"),
)
"""Migration n is at index n - 1. Each runs in the same transaction that writes the new schema number."""
