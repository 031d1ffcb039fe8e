"""The newest groups of episodes with their counts and rewards, for lists."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Integer, literal_column, select

from openclaw_rl.store import schema as t

_POSITION = literal_column("episode_groups.rowid", Integer)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group in a list. `position`: its place in the store; `rewards`: of episodes that are done."""

    position: int
    id: str
    task: str
    split: str
    agent: str
    size: int
    completed_at: float | None
    reason: str | None
    started_at: float
    rewards: tuple[float, ...]
    void: int
    running: int

    @property
    def mean_reward(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None


def newest_groups(
    conn: Connection, limit: int, *, before: int | None = None, task: str = "", agent: str = ""
) -> list[GroupSummary]:
    """Return the newest groups, newest first. `before`: only those before this position.

    `task` and `agent`: only those of this task and agent.
    """
    groups = t.episode_groups.c
    query = select(t.episode_groups, _POSITION.label("position")).order_by(_POSITION.desc())
    if before is not None:
        query = query.where(before > _POSITION)
    if task:
        query = query.where(groups.task == task)
    if agent:
        query = query.where(groups.agent == agent)
    rows = conn.execute(query.limit(limit)).all()
    members = _members(conn, [row.id for row in rows])
    summaries = []
    for row in rows:
        own = members.get(row.id, [])
        summaries.append(
            GroupSummary(
                position=row.position,
                id=row.id,
                task=row.task,
                split=row.split,
                agent=row.agent,
                size=row.size,
                completed_at=row.completed_at,
                reason=row.reason,
                started_at=min((started for started, _, _ in own), default=row.expires_at),
                rewards=tuple(reward for _, _, reward in own if reward is not None),
                void=sum(outcome == "void" for _, outcome, _ in own),
                running=sum(outcome is None for _, outcome, _ in own),
            )
        )
    return summaries


def _members(
    conn: Connection, groups: list[str]
) -> dict[str, list[tuple[float, str | None, float | None]]]:
    """Return the start, the outcome and the reward of each episode, by group."""
    episode = t.episodes.c
    query = select(episode.group_id, episode.started_at, episode.outcome, episode.reward)
    members: dict[str, list[tuple[float, str | None, float | None]]] = {}
    for row in conn.execute(query.where(episode.group_id.in_(groups))):
        members.setdefault(row.group_id, []).append((row.started_at, row.outcome, row.reward))
    return members


def newest_tasks(conn: Connection, groups: int) -> list[str]:
    """Return the tasks of the newest groups, in alphabetical order."""
    newest = select(t.episode_groups.c.task).order_by(_POSITION.desc()).limit(groups).subquery()
    return list(conn.execute(select(newest.c.task).distinct().order_by(newest.c.task)).scalars())
