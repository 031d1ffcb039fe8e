"""The turns of episodes as training takes them: which complete groups can be trained on, and what is compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from openclaw_rl.reasons import TAKEN_BACK_CODES
from openclaw_rl.store import schema as t
from openclaw_rl.store import turns
from openclaw_rl.store.trust.judge_trust import JudgeTrust
from openclaw_rl.types import EpisodeStep, TurnState


def episode_steps(
    conn: Connection, ids: Collection[str], trust: JudgeTrust
) -> dict[str, EpisodeStep]:
    """Return the place of each turn in its episode and group, for those turns that have an episode with a known reward.

    The episode must be of a complete group of the train split, and must not have a turn that was taken back: such an
    episode counts as void. The rewards of the steps are those of the environment if it gave any in the group, else the
    current verdicts of the judges that are trusted in common.
    """
    query = select(t.exchanges.c.id, t.episodes.c.id.label("episode"), t.episodes.c.group_id)
    query = query.join(t.episodes, t.episodes.c.id == t.exchanges.c.episode)
    rows = conn.execute(query.where(t.exchanges.c.id.in_(list(ids)))).all()
    rows_by_group: dict[str, list[Any]] = {}
    for row in rows:
        rows_by_group.setdefault(row.group_id, []).append(row)
    steps: dict[str, EpisodeStep] = {}
    for group, rows_of_group in rows_by_group.items():
        steps |= _steps_of_group(conn, group, rows_of_group, trust)
    return steps


def _steps_of_group(
    conn: Connection, group: str, rows: Sequence[Row[Any]], trust: JudgeTrust
) -> dict[str, EpisodeStep]:
    rewards = _known_rewards(conn, group)
    steps = conn.execute(
        select(t.episode_steps).where(t.episode_steps.c.episode.in_(list(rewards)))
    ).all()
    step_rewards = {row.turn: row.reward for row in steps}
    if all(reward is None for reward in step_rewards.values()):
        step_rewards = _scores(conn, list(step_rewards), trust)
    indices: dict[str, int] = {}
    compared: dict[int, list[float]] = defaultdict(list)
    for row in steps:
        indices[row.turn] = row.step
        reward = step_rewards.get(row.turn)
        if reward is not None:
            compared[row.step].append(reward)
    places = {}
    for row in rows:
        if row.episode not in rewards:
            continue
        step = indices.get(row.id)
        places[row.id] = EpisodeStep(
            group=group,
            episode=row.episode,
            step=step,
            reward=rewards[row.episode],
            step_reward=step_rewards.get(row.id),
            rewards=tuple(rewards.values()),
            step_rewards=() if step is None else tuple(compared[step]),
        )
    return places


def _known_rewards(conn: Connection, group: str) -> dict[str, float]:
    """Return episode -> reward of the episodes that are compared, in a fixed order."""
    taken_back = (
        select(t.exchanges.c.episode)
        .join(t.turns, t.turns.c.seq == t.exchanges.c.seq)
        .where(
            t.exchanges.c.episode == t.episodes.c.id, t.turns.c.cause.in_(sorted(TAKEN_BACK_CODES))
        )
    )
    query = (
        select(t.episodes.c.id, t.episodes.c.reward)
        .join(t.episode_groups, t.episode_groups.c.id == t.episodes.c.group_id)
        .where(
            t.episodes.c.group_id == group, t.episodes.c.reward.is_not(None), ~taken_back.exists()
        )
        .where(t.episode_groups.c.completed_at.is_not(None), t.episode_groups.c.reason.is_(None))
    )
    return {row.id: row.reward for row in conn.execute(query.order_by(t.episodes.c.id))}


def _scores(conn: Connection, ids: Sequence[str], trust: JudgeTrust) -> dict[str, float | None]:
    verdicts = turns.current_verdicts(conn, ids)
    return {
        id_: float(verdict.score)
        for id_, verdict in verdicts.items()
        if verdict.score is not None and trust.is_trusted(verdict.judge, None)
    }


def with_group(query: Select[Any]) -> Select[Any]:
    """Return a query for turns with the group of the turn's episode as `group_id`; turns without an episode go."""
    joined = query.join(t.exchanges, t.exchanges.c.seq == t.turns.c.seq)
    return joined.join(t.episodes, t.episodes.c.id == t.exchanges.c.episode).add_columns(
        t.episodes.c.group_id
    )


def groups_before_judge(conn: Connection) -> set[str]:
    """Return the complete groups with a turn that waits for the judge."""
    query = (
        select(t.episodes.c.group_id)
        .distinct()
        .join(t.exchanges, t.exchanges.c.episode == t.episodes.c.id)
        .join(t.turns, t.turns.c.seq == t.exchanges.c.seq)
        .where(
            t.equals_literal(t.turns.c.state, TurnState.CLOSED),
            t.turns.c.signal == turns.EPISODE_SIGNAL,
        )
    )
    return set(conn.execute(query).scalars())
