"""Health snapshot of a home: its newest turns, verdicts, steps and log lines. `diagnose` evaluates it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from openclaw_rl.common.message_hash import text_of
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import verdict_of
from openclaw_rl.store.version_stats import agreement
from openclaw_rl.train.tracking import FILE
from openclaw_rl.train.worker import make_method
from openclaw_rl.types import Kind, TurnState, Verdict

NEWEST = 50  # number of turns, verdicts and steps in a snapshot
RECENT = 3600.0  # seconds: older log lines are ignored
_TAIL = 2**18  # bytes that are read at the end of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a worker's log."""

    file: str
    message: str
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """State of a home at one moment."""

    config: Config
    now: float  # seconds since the epoch
    lines: Sequence[Line]  # of the last hour, oldest first
    steps: Sequence[Mapping[str, Any]]  # newest rows of metrics.jsonl, oldest first
    notes: Mapping[str, str]  # worker -> the note of its last heartbeat
    verdicts: Sequence[Verdict]  # newest verdicts of the judge, newest first
    wordless: int  # number of these verdicts whose reaction has no text and no feedback
    placed: int  # number of the newest main turns
    unlinked: Sequence[str]  # of those main turns: why no earlier turn was found in a history that has replies
    alone: int  # number of those main turns that have neither an earlier turn nor a reaction
    unjudged: int  # turns that wait for their verdict
    oldest: float  # seconds that the first of them has waited
    untrained: int  # turns that the method can train on and that no version has used
    agreement: tuple[int, int]  # (turns on which judge and user feedback agree, turns that have both)


def read(config: Config, conn: Connection, now: float) -> Signs:
    """Take the snapshot of a home. `now`: seconds since the epoch."""
    verdicts = _verdicts(conn)
    placed = _placed(conn)
    unjudged, since = _unjudged(conn)
    return Signs(
        config=config,
        now=now,
        lines=_lines(config.logs_dir, now),
        steps=[line for line in _json_lines(config.logs_dir / FILE) if "version" in line][-NEWEST:],
        notes={beat.name: beat.note for beat in heartbeats.beats(conn)},
        verdicts=verdicts,
        wordless=sum(_wordless(conn, v.turn) for v in verdicts),
        placed=len(placed),
        unlinked=[row.unlinked for row in placed if row.unlinked],
        alone=sum(row.parent is None and not row.revision for row in placed),
        unjudged=unjudged,
        oldest=0.0 if since is None else now - since,
        untrained=_untrained(config, conn),
        agreement=agreement(conn),
    )


def _verdicts(conn: Connection) -> list[Verdict]:
    """Return the newest verdicts of the judge, without those from user feedback."""
    query = select(t.verdicts).join(t.turns, t.turns.c.id == t.verdicts.c.turn).where(t.verdicts.c.explicit == 0)
    rows = conn.execute(query.order_by(t.turns.c.seq.desc(), t.verdicts.c.revision.desc()).limit(NEWEST))
    return [verdict_of(row) for row in rows]


def _wordless(conn: Connection, turn: str) -> bool:
    reaction = turns.reaction(conn, turn)
    return reaction is not None and not any(text_of(m).strip() for m in reaction.messages) and not reaction.feedback


def _placed(conn: Connection) -> Sequence[Any]:
    query = select(t.turns.c.parent, t.turns.c.unlinked, t.turns.c.revision)
    query = query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    main = t.is_(t.turns.c.kind, Kind.MAIN), t.exchanges.c.origin.is_(None)
    return conn.execute(query.where(*main).order_by(t.turns.c.seq.desc()).limit(NEWEST)).all()


def _unjudged(conn: Connection) -> tuple[int, float | None]:
    """Return the number of turns without a verdict, and the time since which the first of them waits."""
    here = (t.reactions.c.turn == t.turns.c.id) & (t.reactions.c.revision == t.turns.c.revision)
    query = select(func.count(), func.min(t.reactions.c.at)).select_from(t.turns.join(t.reactions, here))
    count, since = conn.execute(query.where(t.is_(t.turns.c.state, TurnState.CLOSED))).one()
    return int(count), since


def _untrained(config: Config, conn: Connection) -> int:
    method = make_method(config.train)
    wanted = (turns.SCORE if method.uses_reward else 0) | (turns.HINT if method.uses_hints else 0)
    ready = (
        *(t.is_(t.turns.c.state, TurnState.JUDGED), t.is_(t.turns.c.kind, Kind.MAIN)),
        *(t.turns.c.untrainable.is_(None), t.turns.c.uses == 0, t.turns.c.signal.op("&")(wanted) > 0),
    )
    return int(conn.execute(select(func.count()).select_from(t.turns).where(*ready)).scalar_one())


def _lines(logs: Path, now: float) -> list[Line]:
    found = [
        Line(file=path.name, message=str(line["message"]), at=float(line["at"]))
        for path in sorted(logs.glob("*.log"))
        for line in _json_lines(path)
        if "message" in line and isinstance(line.get("at"), int | float) and now - line["at"] <= RECENT
    ]
    return sorted(found, key=lambda line: line.at)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects at the end of a file, one per line. Other lines are skipped."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        raw = file.read().decode(errors="replace")
    return [line for line in map(_object, raw.splitlines()) if line]


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
