"""Episodes of environments: start, outcome, and the judged turns that a group of them has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from openclaw_rl.store import exchanges, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.rows import from_row, to_row, turn_from_row
from openclaw_rl.types import Episode, EpisodeOutcome, ExchangeStatus, JudgedTurn, Kind, TurnState


def start_episode(conn: Connection, episode: Episode) -> None:
    """Insert an episode that is running."""
    conn.execute(insert(t.episodes), to_row(t.episodes, episode, group_id=episode.group))


def get_episode(conn: Connection, id: str) -> Episode | None:
    row = conn.execute(select(t.episodes).where(t.episodes.c.id == id)).one_or_none()
    return None if row is None else _episode_from_row(row)


def assign_exchanges(conn: Connection, episode: str, ids: Collection[str]) -> None:
    """Make these exchanges part of the episode."""
    conn.execute(update(t.exchanges).where(t.exchanges.c.id.in_(list(ids))).values(episode=episode))


def end_episode(conn: Connection, id: str, *, outcome: EpisodeOutcome, reward: float | None, at: float) -> Episode:
    """Store the outcome and return the episode. The same outcome again changes nothing.

    Raises `KeyError` for an unknown episode, `ValueError` if it has ended with another outcome, or for a reward that
    does not fit the outcome.
    """
    before = get_episode(conn, id)
    if before is None:
        raise KeyError(id)
    if before.outcome is not None:
        if (before.outcome, before.reward) != (outcome, reward):
            raise ValueError(f"episode {id}: it has ended: {before.outcome}, {before.reward}; got {outcome}, {reward}")
        return before
    ended = replace(before, outcome=outcome, reward=reward, ended_at=at)
    changes = {"outcome": outcome, "reward": reward, "ended_at": at}
    conn.execute(update(t.episodes).where(t.episodes.c.id == id).values(changes))
    return ended


def judged_turns_of_group(conn: Connection, group: str) -> list[JudgedTurn]:
    """Return the trainable judged turns of the group's episodes, each with its episode and its step.

    Raises `DamagedRow`.
    """
    query = select(t.episodes).where(t.episodes.c.group_id == group)
    episodes = {row.id: _episode_from_row(row) for row in conn.execute(query)}
    rows = _turn_rows(conn, episodes)
    steps = {id_: step for _, found in groupby(rows, lambda row: row.episode) for id_, step in _steps(list(found))}
    ready = [row for row in rows if row.state == TurnState.JUDGED and row.untrainable is None]
    ids = [row.id for row in ready]
    found, verdicts = exchanges.get_many(conn, ids), turns.current_verdicts(conn, ids)
    return [
        JudgedTurn(
            exchange=found[row.id],
            turn=turn_from_row(row),
            verdict=verdicts[row.id],
            earlier_uses=row.uses,
            episode=episodes[row.episode],
            step=steps.get(row.id),
        )
        for row in ready
    ]


def _turn_rows(conn: Connection, episodes: Collection[str]) -> Sequence[Row[Any]]:
    """Return the main turns of the episodes whose reply is complete, sorted by episode and then by time."""
    query = select(t.turns, t.exchanges.c.episode).join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    main = t.equals_literal(t.turns.c.kind, Kind.MAIN), t.exchanges.c.status == ExchangeStatus.DONE
    return conn.execute(
        query.where(t.exchanges.c.episode.in_(list(episodes)), *main).order_by(t.exchanges.c.episode, t.turns.c.seq)
    ).all()


def _steps(rows: Sequence[Row[Any]]) -> list[tuple[str, int]]:
    """Return (turn, step) along the chain of parents that leads to the last turn of an episode."""
    parents = {row.id: row.parent for row in rows}
    chain: list[str] = []
    at = rows[-1].id
    while at in parents:
        chain.append(at)
        at = parents[at]
    return [(turn, step) for step, turn in enumerate(reversed(chain))]


def _episode_from_row(row: Row[Any]) -> Episode:
    return from_row(Episode, row, group=row.group_id)
