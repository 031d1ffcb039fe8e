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
        _close_turn(conn, row, has_step_rewards=bool(episode.steps), at=at)
    _insert_steps(conn, episode, chain_to_last(rows))
    conn.execute(update(t.episodes).where(t.episodes.c.id == id).values(settled_at=at))
    complete_group(conn, episode.group, at)


def _close_turn(conn: Connection, row: Row[Any], *, has_step_rewards: bool, at: float) -> None:
    if row.status == ExchangeStatus.RUNNING:
        turn_states.drop(conn, row.id, ReasonCode.EPISODE_ENDED, TOO_LATE, at=at)
    elif row.state == TurnState.SERVED or row.cause in REOPENABLE_REASONS:
        reactions.record_outcome(conn, row.id, at=at)
        _add_verdict(conn, row.id, row.revision + 1, at)
    elif row.state == TurnState.CLOSED and has_step_rewards:
        # The environment's rewards count, so no judge is needed.
        _add_verdict(conn, row.id, row.revision, at)


def set_aside_episode(conn: Connection, id: str, reason: str, *, at: float) -> None:
    """Make an episode void that is damaged, or on which a worker died again and again."""
    changes = {"outcome": "void", "reward": None, "reason": reason, "settled_at": at}
    episode = t.episodes.c
    conn.execute(update(t.episodes).where(episode.id == id).values(changes))
    group = conn.execute(select(episode.group_id).where(episode.id == id)).scalar_one()
    complete_group(conn, group, at)


def is_settled(conn: Connection, id: str) -> bool:
    """Return whether the episode is settled, so that a reply in it is too late."""
    query = select(t.episodes.c.settled_at).where(t.episodes.c.id == id)
    return conn.execute(query).scalar() is not None


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
    complete = {row.id: row for row in rows if row.status == ExchangeStatus.DONE}
    # Turn -> its row, from the last one back; a circle of parents ends the chain.
    chain: dict[str, Row[Any]] = {}
    row = _last_main(list(complete.values()))
    while row is not None and row.id not in chain:
        chain[row.id] = row
        row = complete.get(row.parent)
    return [id for id in reversed(chain) if chain[id].kind == Kind.MAIN]


def _last_main(rows: Sequence[Row[Any]]) -> Row[Any] | None:
    return next((row for row in reversed(rows) if row.kind == Kind.MAIN), None)


def _insert_steps(conn: Connection, episode: Episode, chain: Sequence[str]) -> None:
    by_turn: dict[str, float] = {}
    by_index: dict[int, float] = {}
    for step in episode.steps:
        if step.turn is not None:
            by_turn[step.turn] = step.reward
        if step.index is not None:
            by_index[step.index] = step.reward
    rows = []
    for index, turn in enumerate(chain):
        reward = by_turn.get(turn, by_index.get(index))
        rows.append({"turn": turn, "episode": episode.id, "step": index, "reward": reward})
    if rows:
        conn.execute(insert(t.episode_steps), rows)
