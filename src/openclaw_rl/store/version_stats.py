"""Statistics of policy versions: satisfaction and number of turns, computed from the store without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.turns import VERDICT_PRECEDENCE, count_rows, count_unjudged
from openclaw_rl.types import FinishReason, Kind, TurnState


def satisfaction_metrics(conn: Connection, versions: Sequence[int]) -> dict[str, float]:
    """Return metrics of the main turns that these versions answered here; shares with a zero denominator are omitted.

    `eval/satisfaction`: share of +1 among scores of +1 or -1. `eval/truncated`: share cut at the token limit.
    `eval/untrainable`: share of the judged turns. `eval/agreement`: share of equal scores by judge and users, of all
    turns. `eval/turns`: number of turns. `eval/waiting`: turns of all versions that wait for a verdict.
    """
    rows = _answered_turns(conn, versions)
    scored = [score for _, score in _version_scores(conn, versions) if score]
    judged = [row for row in rows if row.state == TurnState.JUDGED]
    same, both = judge_user_agreement(conn)
    shares = {
        "eval/satisfaction": (sum(score > 0 for score in scored), len(scored)),
        "eval/truncated": (sum(row.finish_reason == FinishReason.LENGTH for row in rows), len(rows)),
        "eval/untrainable": (sum(row.untrainable is not None for row in judged), len(judged)),
        "eval/agreement": (same, both),
    }
    counts = {"eval/turns": float(len(rows)), "eval/waiting": float(count_unjudged(conn)[0])}
    return counts | {name: part / whole for name, (part, whole) in shares.items() if whole}


def _answered_turns(conn: Connection, versions: Sequence[int]) -> Sequence[Any]:
    query = select(t.turns.c.state, t.turns.c.untrainable, t.exchanges.c.finish_reason)
    return conn.execute(
        query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq).where(*_of_versions(versions))
    ).all()


def satisfaction_by_version(conn: Connection, versions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return (turns scored +1, turns scored +1 or -1) of each version that has any."""
    out: dict[int, tuple[int, int]] = {}
    for version, score in _version_scores(conn, versions):
        if score:
            good, scored = out.get(version, (0, 0))
            out[version] = good + (score > 0), scored + 1
    return out


def _version_scores(conn: Connection, versions: Sequence[int]) -> list[tuple[int, int | None]]:
    """Return (version, score of the current verdict) of each turn that has one."""
    query = select(t.verdicts.c.turn, t.exchanges.c.version, t.verdicts.c.score)
    query = query.join(t.turns, t.turns.c.id == t.verdicts.c.turn)
    query = (
        query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
        .where(*_of_versions(versions))
        .order_by(*VERDICT_PRECEDENCE)
    )
    first: dict[str, tuple[int, int | None]] = {}
    for row in conn.execute(query):
        first.setdefault(row.turn, (row.version, row.score))
    return list(first.values())


def turns_by_version(conn: Connection, versions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return (turns that it was trained on, exchanges that it answered) of each version."""
    used = count_rows(conn, t.uses.c.policy, t.uses.c.policy.in_(versions))
    served = count_rows(conn, t.exchanges.c.version, t.exchanges.c.version.in_(versions))
    return {version: (used.get(version, 0), served.get(version, 0)) for version in versions}


def _of_versions(versions: Sequence[int]) -> tuple[ColumnElement[bool], ...]:
    return (
        t.exchanges.c.version.in_(list(versions)),
        t.exchanges.c.origin.is_(None),
        t.equals_literal(t.turns.c.kind, Kind.MAIN),
    )


def judge_user_agreement(conn: Connection) -> tuple[int, int]:
    """Return (turns to which judge and user gave the same score, turns that both scored).

    Of several verdicts by the same side, the one on the newest revision of the reaction counts. Abstaining does not
    count as a score.
    """
    said = select(t.verdicts.c.turn).where(t.verdicts.c.explicit != 0, t.verdicts.c.score.is_not(None))
    rows = conn.execute(
        select(t.verdicts.c.turn, t.verdicts.c.explicit, t.verdicts.c.score)
        .where(t.verdicts.c.turn.in_(said), t.verdicts.c.score.is_not(None))
        .order_by(t.verdicts.c.revision, t.verdicts.c.at)
    )
    newest: dict[tuple[str, bool], int] = {(turn, bool(explicit)): score for turn, explicit, score in rows}
    both = [
        (score, newest[turn, False])
        for (turn, explicit), score in newest.items()
        if explicit and (turn, False) in newest
    ]
    return sum(user == judge for user, judge in both), len(both)
