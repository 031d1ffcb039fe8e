"""Groups of episodes: when one is complete, and whether its turns enter the training queue."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, select, update

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
    is_settled = all(row.settled_at is not None for row in members)
    if (
        group.completed_at is not None
        or not is_settled
        or not (len(members) >= group.size or group.expires_at <= now)
    ):
        return False
    known = [row.id for row in members if row.reward is not None]
    reason = None
    if group.split == "held_out":
        reason = HELD_OUT
    elif len(known) < MIN_KNOWN_REWARDS:
        counts = f"its group {id} has {len(known)} known rewards of {group.size}, and {MIN_KNOWN_REWARDS} are compared"
        reason = Reason(ReasonCode.FEW_REWARDS, counts)
    values = {"completed_at": now, "reason": reason.detail if reason else None}
    conn.execute(update(t.episode_groups).where(t.episode_groups.c.id == id).values(values))
    for row in members:
        void = Reason(
            ReasonCode.VOID_EPISODE,
            f"its episode is void: {row.reason or 'the environment failed'}",
        )
        turn_reason = reason if row.outcome == "done" else void
        if turn_reason is not None:
            turns.mark_untrainable(
                conn, dict.fromkeys(conn.execute(_turns_of(row.id)).scalars(), turn_reason)
            )
        else:
            own = t.turns.c.id.in_(_turns_of(row.id))
            conn.execute(update(t.turns).where(own).values(signal=turns.EPISODE_SIGNAL))
    return True


def open_groups(conn: Connection, now: float) -> list[str]:
    """Return the groups that have expired and are not complete."""
    group = t.episode_groups.c
    query = select(group.id).where(group.completed_at.is_(None), group.expires_at <= now)
    return list(conn.execute(query).scalars())


def _turns_of(episode: str) -> Select[Any]:
    return select(t.exchanges.c.id).where(t.exchanges.c.episode == episode)
