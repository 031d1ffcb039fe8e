"""Settlement of an episode that has ended: its waiting turns are closed, and its steps are counted.

The collect worker does it when it has linked all requests that came before the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import reactions, turn_states, turns
from openclaw_rl.store import schema as t
from openclaw_rl.store.episodes.episodes import get_episode
from openclaw_rl.store.episodes.groups import complete_group
from openclaw_rl.store.episodes.records import Episode
from openclaw_rl.store.turn_states import REOPENABLE_REASONS
from openclaw_rl.types import ExchangeStatus, Kind, TurnState, Verdict

OUTCOME_JUDGE = "outcome"
"""Judge of turns that only the outcome of their episode closed; it has no opinion of them."""
TOO_LATE = "its episode ended before the reply was complete"


def settle_episode(conn: Connection, id: str, *, at: float) -> None:
    """Close the turns of an ended episode that wait for a reaction, store its steps, and complete its group.

    A reply that is not complete yet is dropped. Does nothing if the episode is settled.
    """
    episode = get_episode(conn, id)
    assert episode is not None, f"episode {id} has ended"
    assert episode.outcome is not None, f"episode {id} has ended"
    if episode.settled_at is not None:
        return
    rows = _turn_rows(conn, id)
    for row in rows:
        if row.status == ExchangeStatus.RUNNING:
            turn_states.drop(conn, row.id, ReasonCode.EPISODE_ENDED, TOO_LATE, at=at)
        elif row.state == TurnState.SERVED or row.cause in REOPENABLE_REASONS:
            reactions.record_outcome(conn, row.id, at=at)
            _add_verdict(conn, row.id, row.revision + 1, at)
        elif row.state == TurnState.CLOSED and episode.steps:
            # The environment's rewards count, so no judge is needed.
            _add_verdict(conn, row.id, row.revision, at)
    _insert_steps(conn, episode, chain_to_last(rows))
    conn.execute(update(t.episodes).where(t.episodes.c.id == id).values(settled_at=at))
    complete_group(conn, episode.group, at)


def set_aside_episode(conn: Connection, id: str, why: str, *, at: float) -> None:
    """Make an episode void that is damaged, or on which a worker died again and again."""
    changes = {"outcome": "void", "reward": None, "reason": why, "settled_at": at}
    conn.execute(update(t.episodes).where(t.episodes.c.id == id).values(changes))
    complete_group(
        conn,
        conn.execute(select(t.episodes.c.group_id).where(t.episodes.c.id == id)).scalar_one(),
        at,
    )


def is_settled(conn: Connection, id: str) -> bool:
    """Return whether the episode is settled, so that a reply in it is too late."""
    return (
        conn.execute(select(t.episodes.c.settled_at).where(t.episodes.c.id == id)).scalar()
        is not None
    )


def _add_verdict(conn: Connection, turn: str, revision: int, at: float) -> None:
    verdict = Verdict(turn=turn, revision=revision, judge=OUTCOME_JUDGE, score=None, at=at)
    added = turns.add_verdict(conn, verdict)
    assert added, f"turn {turn} has reaction {revision}"


def _turn_rows(conn: Connection, episode: str) -> Sequence[Row[Any]]:
    """Return the turns of an episode in the order of admission."""
    query = select(t.turns, t.exchanges.c.status).join(
        t.exchanges, t.exchanges.c.seq == t.turns.c.seq
    )
    return conn.execute(query.where(t.exchanges.c.episode == episode).order_by(t.turns.c.seq)).all()


def chain_to_last(rows: Sequence[Row[Any]]) -> list[str]:
    """Return the chain of parents that leads to the last complete main turn of these, first turn first.

    A side call on the way, such as the summary that replaced a history, is skipped.
    """
    done = {row.id: row for row in rows if row.status == ExchangeStatus.DONE}
    main = [row for row in done.values() if row.kind == Kind.MAIN]
    chain: list[str] = []
    at: str | None = main[-1].id if main else None
    while at is not None and at in done and at not in chain:
        chain.append(at)
        at = done[at].parent
    return [turn for turn in reversed(chain) if done[turn].kind == Kind.MAIN]


def _insert_steps(conn: Connection, episode: Episode, chain: Sequence[str]) -> None:
    by_turn = {s.turn: s.reward for s in episode.steps if s.turn is not None}
    by_index = {s.index: s.reward for s in episode.steps if s.index is not None}
    rows = [
        {
            "turn": turn,
            "episode": episode.id,
            "step": step,
            "reward": by_turn.get(turn, by_index.get(step)),
        }
        for step, turn in enumerate(chain)
    ]
    if rows:
        conn.execute(insert(t.episode_steps), rows)
