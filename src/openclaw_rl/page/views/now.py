"""The view of what happens now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.page.cached import cached
from openclaw_rl.page.view import View, ViewRequest
from openclaw_rl.page.views.versions import read_line
from openclaw_rl.status.diagnose import find_diagnoses
from openclaw_rl.status.now import (
    compare_with_base,
    newest_learned,
    satisfaction_data,
    waiting_work,
)
from openclaw_rl.status.report import describe_work, shows_problem, worker_rows
from openclaw_rl.status.sentences import SCOPES, SENDERS, WORKERS, health_sentence
from openclaw_rl.status.understanding import understanding_data
from openclaw_rl.status.version_words import VersionPlace, version_place
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, head_version, read_heads
from openclaw_rl.types import Policy

# Seconds for which costly parts are kept.
_DIAGNOSES_SECONDS = 15.0
_SCORES_SECONDS = 5.0


def collect_now(request: ViewRequest) -> Mapping[str, Any]:
    conn = request.conn
    config = request.config
    rows = worker_rows(conn, request.now)
    head = head_version(read_heads(conn), DEFAULT_NAME)
    problems = cached(
        request,
        "diagnoses",
        _DIAGNOSES_SECONDS,
        lambda: [each.name for each in find_diagnoses(config, conn, request.now)],
    )
    newest = newest_learned(conn)
    satisfaction = cached(request, "satisfaction", _SCORES_SECONDS, lambda: satisfaction_data(conn))
    return {
        "problems": problems,
        "sentence": health_sentence(problems, rows, head),
        "is_well": not problems and bool(rows) and all(row["alive"] for row in rows),
        "workers": [_worker_data(row) for row in rows],
        "waiting": cached(
            request, "waiting", _SCORES_SECONDS, lambda: waiting_work(config, conn, rows)
        ),
        "satisfaction": satisfaction,
        "comparison": cached(
            request,
            "comparison",
            _SCORES_SECONDS,
            lambda: compare_with_base(satisfaction, policies.lineage(conn, head)),
        ),
        "understanding": cached(
            request, "understanding", _SCORES_SECONDS, lambda: understanding_data(conn)
        ),
        "newest": newest,
        "places": _version_places(conn, newest.versions),
        "senders": SENDERS,
        "scopes": SCOPES,
    }


def _version_places(conn: Connection, newest: Sequence[Policy]) -> Mapping[int, VersionPlace]:
    """Return the current use of each of these versions."""
    lines = {name: read_line(conn, name) for name in {version.name for version in newest}}
    return {version.version: version_place(version, lines[version.name]) for version in newest}


def _worker_data(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "name": row["name"],
        "role": WORKERS.get(row["name"], ""),
        "work": describe_work(row) or "ready",
        "is_alive": row["alive"],
        "is_well": row["alive"] and not shows_problem(row),
        "age": row["age"],
    }


VIEWS: Sequence[View] = (View(path="/ui/now", template="now.html", collect=collect_now),)
