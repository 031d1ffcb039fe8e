"""Groups of episodes: when one is complete, and whether its turns enter the training queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, select, update

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import schema as t
from openclaw_rl.store import turns
from openclaw_rl.store.episodes.records import EpisodeGroup
from openclaw_rl.store.rows import from_row

HELD_OUT = Reason(ReasonCode.HELD_OUT, "its task is held out")
MIN_KNOWN_REWARDS = 2


def get_group(conn: Connection, id: str) -> EpisodeGroup | None:
    row = conn.execute(select(t.episode_groups).where(t.episode_groups.c.id == id)).one_or_none()
    return None if row is None else from_row(EpisodeGroup, row)


def complete_group(conn: Connection, id: str, now: float) -> bool:
    """Complete a group if `size` of its episodes have ended and none is running, or if it has expired.

    The turns of the episodes with a known reward then enter the training queue; all others get the reason why they do
    not. Returns whether the group was completed now.
    """
    group = get_group(conn, id)
    assert group is not None, f"the group {id} has an episode"
    members = conn.execute(select(t.episodes).where(t.episodes.c.group_id == id)).all()
    if group.completed_at is not None or not _has_ended(group, members, now):
        return False
    reason = _group_reason(group, members)
    values = {"completed_at": now, "reason": None if reason is None else reason.detail}
    conn.execute(update(t.episode_groups).where(t.episode_groups.c.id == id).values(values))
    for row in members:
        if row.outcome == "done":
            _enter_queue(conn, row.id, reason)
        else:
            _enter_queue(conn, row.id, _void_reason(row.reason))
    return True


def _enter_queue(conn: Connection, episode: str, reason: Reason | None) -> None:
    """Let the turns of an episode enter the training queue, unless there is a reason why they do not train."""
    turns_of_episode = _turns_of(episode)
    if reason is not None:
        ids = conn.execute(turns_of_episode).scalars()
        turns.mark_untrainable(conn, dict.fromkeys(ids, reason))
        return
    of_episode = t.turns.c.id.in_(turns_of_episode)
    conn.execute(update(t.turns).where(of_episode).values(signal=turns.EPISODE_SIGNAL))


def _has_ended(group: EpisodeGroup, members: Sequence[Row[Any]], now: float) -> bool:
    if any(row.settled_at is None for row in members):
        return False
    return len(members) >= group.size or group.expires_at <= now


def _group_reason(group: EpisodeGroup, members: Sequence[Row[Any]]) -> Reason | None:
    """Return why a complete group is not trained on, or None."""
    if group.split == "held_out":
        return HELD_OUT
    known = sum(row.reward is not None for row in members)
    if known >= MIN_KNOWN_REWARDS:
        return None
    counts = f"its group {group.id} has {known} known rewards of {group.size}, and {MIN_KNOWN_REWARDS} are compared"
    return Reason(ReasonCode.FEW_REWARDS, counts)


def _void_reason(cause: str | None) -> Reason:
    detail = f"its episode is void: {cause or 'the environment failed'}"
    return Reason(ReasonCode.VOID_EPISODE, detail)


def open_groups(conn: Connection, now: float) -> list[str]:
    """Return the groups that have expired and are not complete."""
    group = t.episode_groups.c
    query = select(group.id).where(group.completed_at.is_(None), group.expires_at <= now)
    return list(conn.execute(query).scalars())


def _turns_of(episode: str) -> Select[Any]:
    return select(t.exchanges.c.id).where(t.exchanges.c.episode == episode)
