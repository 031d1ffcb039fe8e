"""The view of what happens now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.page.cached import cached, current_diagnoses
from openclaw_rl.page.view import View, ViewRequest
from openclaw_rl.page.views.versions import read_line
from openclaw_rl.status.lessons_report import scope_words
from openclaw_rl.status.now import (
    compare_with_base,
    newest_learned,
    satisfaction_data,
    waiting_work,
)
from openclaw_rl.status.report import describe_long_work, shows_problem, worker_rows
from openclaw_rl.status.sentences import SENDERS, WORKERS, health_sentence
from openclaw_rl.status.understanding import understanding_data
from openclaw_rl.status.version_words import VersionPlace, version_place
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, heads_in_use
from openclaw_rl.types import Policy

# Seconds for which costly parts are kept.
_SCORES_SECONDS = 5.0
_POLICIES_SHOWN = 10


def collect_now(request: ViewRequest) -> Mapping[str, Any]:
    conn = request.conn
    config = request.config
    rows = worker_rows(conn, request.now)
    heads = heads_in_use(conn)
    head = heads[DEFAULT_NAME]
    problems = [diagnosis.name for diagnosis in current_diagnoses(request)]
    newest = newest_learned(conn)
    satisfaction = cached(request, "satisfaction", _SCORES_SECONDS, lambda: satisfaction_data(conn))
    return {
        "problems": problems,
        "sentence": health_sentence(problems, rows, heads),
        "is_well": not problems and bool(rows) and all(row["alive"] for row in rows),
        "workers": [_worker_data(row) for row in rows],
        "waiting": cached(
            request, "waiting", _SCORES_SECONDS, lambda: waiting_work(config, conn, rows)
        ),
        "policies": _newest_policies(heads),
        "hidden_policies": max(0, len(heads) - _POLICIES_SHOWN),
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
        "default": DEFAULT_NAME,
        "scope_words": scope_words,
        "senders": SENDERS,
    }


def _newest_policies(heads: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (name, version in use) of the policies with the newest versions; nothing if there is only one."""
    if len(heads) == 1:
        return []
    newest = sorted(heads.items(), key=lambda item: item[1], reverse=True)
    return newest[:_POLICIES_SHOWN]


def _version_places(conn: Connection, newest: Sequence[Policy]) -> Mapping[int, VersionPlace]:
    """Return the current use of each of these versions."""
    lines = {name: read_line(conn, name) for name in {version.name for version in newest}}
    return {version.version: version_place(version, lines[version.name]) for version in newest}


def _worker_data(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "name": row["name"],
        "role": WORKERS.get(row["name"], ""),
        "work": describe_long_work(row),
        "note": row["note"],
        "is_alive": row["alive"],
        "is_well": row["alive"] and not shows_problem(row),
        "age": row["age"],
    }


VIEWS: Sequence[View] = (View(path="/ui/now", template="now.html", collect=collect_now),)
