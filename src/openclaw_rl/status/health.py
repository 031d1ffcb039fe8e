"""Health snapshot of a home: its newest turns, verdicts, steps and log lines. `diagnose` evaluates it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import verdict_from_row
from openclaw_rl.store.version_stats import judge_user_agreement
from openclaw_rl.train.tracking import METRICS_FILE
from openclaw_rl.train.worker import make_method
from openclaw_rl.types import Kind, TurnState, Verdict

MAX_ITEMS = 50  # number of turns, verdicts and steps in a snapshot
LOG_WINDOW = 3600.0  # seconds: older log lines are ignored
_TAIL_BYTES = 2**18  # bytes that are read at the end of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a worker's log."""

    file: str
    message: str
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """State of a home at one moment."""

    config: Config
    now: float  # seconds since the epoch
    log_lines: Sequence[LogLine]  # of the last hour, oldest first
    steps: Sequence[Mapping[str, Any]]  # newest rows of metrics.jsonl, oldest first
    heartbeat_notes: Mapping[str, str]  # worker -> the note of its last heartbeat
    verdicts: Sequence[Verdict]  # newest verdicts of the judge, newest first
    empty_reactions: int  # number of these verdicts whose reaction has no text and no feedback
    main_turns: int  # number of the newest main turns
    unlinked_reasons: Sequence[str]  # of those main turns: why no earlier turn was found in a history that has replies
    isolated_turns: int  # number of those main turns that have neither an earlier turn nor a reaction
    waiting_turns: int  # turns that wait for their verdict
    longest_wait: float  # seconds that the first of them has waited
    trainable_turns: int  # turns that the method can train on and that no version has used
    agreement: tuple[int, int]  # (turns on which judge and user feedback agree, turns that have both)


def take_snapshot(config: Config, conn: Connection, now: float) -> HealthSnapshot:
    """Take the snapshot of a home. `now`: seconds since the epoch."""
    verdicts = _judge_verdicts(conn)
    placed = _newest_main_turns(conn)
    unjudged, since = _waiting_turns(conn)
    return HealthSnapshot(
        config=config,
        now=now,
        log_lines=_recent_log_lines(config.logs_dir, now),
        steps=[line for line in _json_lines(config.logs_dir / METRICS_FILE) if "version" in line][-MAX_ITEMS:],
        heartbeat_notes={beat.name: beat.note for beat in heartbeats.read_heartbeats(conn)},
        verdicts=verdicts,
        empty_reactions=sum(_is_empty_reaction(conn, v.turn) for v in verdicts),
        main_turns=len(placed),
        unlinked_reasons=[row.unlinked for row in placed if row.unlinked],
        isolated_turns=sum(row.parent is None and not row.revision for row in placed),
        waiting_turns=unjudged,
        longest_wait=0.0 if since is None else now - since,
        trainable_turns=_count_trainable(config, conn),
        agreement=judge_user_agreement(conn),
    )


def _judge_verdicts(conn: Connection) -> list[Verdict]:
    """Return the newest verdicts of the judge, without those from user feedback."""
    query = select(t.verdicts).join(t.turns, t.turns.c.id == t.verdicts.c.turn).where(t.verdicts.c.explicit == 0)
    rows = conn.execute(query.order_by(t.turns.c.seq.desc(), t.verdicts.c.revision.desc()).limit(MAX_ITEMS))
    return [verdict_from_row(row) for row in rows]


def _is_empty_reaction(conn: Connection, turn: str) -> bool:
    reaction = turns.current_reaction(conn, turn)
    return (
        reaction is not None and not any(message_text(m).strip() for m in reaction.messages) and not reaction.feedback
    )


def _newest_main_turns(conn: Connection) -> Sequence[Any]:
    query = select(t.turns.c.parent, t.turns.c.unlinked, t.turns.c.revision)
    query = query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    main = t.equals_literal(t.turns.c.kind, Kind.MAIN), t.exchanges.c.origin.is_(None)
    return conn.execute(query.where(*main).order_by(t.turns.c.seq.desc()).limit(MAX_ITEMS)).all()


def _waiting_turns(conn: Connection) -> tuple[int, float | None]:
    """Return the number of turns without a verdict, and the time since which the first of them waits."""
    here = (t.reactions.c.turn == t.turns.c.id) & (t.reactions.c.revision == t.turns.c.revision)
    query = select(func.count(), func.min(t.reactions.c.at)).select_from(t.turns.join(t.reactions, here))
    count, since = conn.execute(query.where(t.equals_literal(t.turns.c.state, TurnState.CLOSED))).one()
    return int(count), since


def _count_trainable(config: Config, conn: Connection) -> int:
    method = make_method(config.train)
    wanted = (turns.SCORE_SIGNAL if method.uses_reward else 0) | (turns.HINT_SIGNAL if method.uses_hints else 0)
    ready = (
        *(t.equals_literal(t.turns.c.state, TurnState.JUDGED), t.equals_literal(t.turns.c.kind, Kind.MAIN)),
        *(t.turns.c.untrainable.is_(None), t.turns.c.uses == 0, t.turns.c.signal.op("&")(wanted) > 0),
    )
    return int(conn.execute(select(func.count()).select_from(t.turns).where(*ready)).scalar_one())


def _recent_log_lines(logs: Path, now: float) -> list[LogLine]:
    found = [
        LogLine(file=path.name, message=str(line["message"]), at=float(line["at"]))
        for path in sorted(logs.glob("*.log"))
        for line in _json_lines(path)
        if "message" in line and isinstance(line.get("at"), int | float) and now - line["at"] <= LOG_WINDOW
    ]
    return sorted(found, key=lambda line: line.at)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects at the end of a file, one per line. Other lines are skipped."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        raw = file.read().decode(errors="replace")
    return [line for line in map(_parse_object, raw.splitlines()) if line]


def _parse_object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
