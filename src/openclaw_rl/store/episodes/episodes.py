"""Episodes: opened and ended by the gateway, in the order of its other writes."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, not_, select, update

from openclaw_rl.errors import DamagedRow, RequestError
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.episodes.groups import get_group
from openclaw_rl.store.episodes.records import Episode, EpisodeEnd, EpisodeGroup, StepReward
from openclaw_rl.store.rows import from_json, from_row, naming_damage, to_json, to_row
from openclaw_rl.types import ExchangeStatus

log = logging.getLogger("openclaw_rl.store")

_select_episode = select(t.episodes, t.episode_groups.c.size).join(
    t.episode_groups, t.episode_groups.c.id == t.episodes.c.group_id
)
ENDED_EVENT = "episode.ended"
EXPIRED = "it expired without an outcome"
_OPENED = ("task", "group", "size", "split", "agent", "sampling", "max_steps", "versions")
_RESULT = ("outcome", "reward", "parts", "steps", "reason")


def open_episode(conn: Connection, episode: Episode) -> None:
    """Insert an episode that is running, and its group with the first of its episodes. The same again does nothing.

    The time to live is part of the request, so that it must be the same as well. Raises `RequestError` (409) if the id
    stands for another episode, the group is complete, or its episodes differ from this one.
    """
    known = get_episode(conn, episode.id)
    if known is not None:
        _check_same(known, episode)
        return
    _enter_group(conn, episode)
    conn.execute(insert(t.episodes), _episode_row(episode))


def unknown_episode(id: str) -> RequestError:
    """Return the error for an episode that the API key does not have."""
    return RequestError(
        f"there is no episode {id[:80]!r} under this API key.", code="not_found", status=404
    )


def _conflict(message: str, code: str = "episode_conflict") -> RequestError:
    return RequestError(message, code=code, status=409)


def _check_same(known: Episode, episode: Episode) -> None:
    if known.scope != episode.scope:
        raise _conflict(f"the id {episode.id} is in use by another API key. Choose another id.")
    differing = [name for name in _OPENED if getattr(known, name) != getattr(episode, name)]
    known_ttl = round(known.expires_at - known.started_at)
    ttl = round(episode.expires_at - episode.started_at)
    if known_ttl != ttl:
        differing.append("ttl")
    if not differing:
        return
    names = ", ".join(differing)
    raise _conflict(
        f"episode {episode.id} was opened with another {names}. Send the same, or choose another id."
    )


def _enter_group(conn: Connection, episode: Episode) -> None:
    group = get_group(conn, episode.group)
    wanted = EpisodeGroup(id=episode.group, completed_at=None, **_group_fields(episode))
    if group is None:
        conn.execute(insert(t.episode_groups), to_row(t.episode_groups, wanted))
        return
    if group.scope != episode.scope:
        raise _conflict(f"the group {group.id} is in use by another API key. Choose another id.")
    differences = []
    for name in ("task", "split", "agent", "size"):
        value = getattr(group, name)
        if value != getattr(wanted, name):
            differences.append(f"{name} {value!r}")
    if differences:
        listed = ", ".join(differences)
        raise _conflict(f"the group {group.id} has {listed}. All its episodes must have the same.")
    if group.completed_at is not None:
        reason = group.reason or "its episodes are trained on"
        raise _conflict(f"the group {group.id} is complete: {reason}.", "group_complete")
    conn.execute(
        update(t.episode_groups)
        .where(t.episode_groups.c.id == group.id)
        .values(expires_at=max(group.expires_at, episode.expires_at))
    )


def _group_fields(episode: Episode) -> dict[str, Any]:
    return {
        name: getattr(episode, name)
        for name in ("scope", "task", "split", "agent", "size", "expires_at")
    }


def end_episode(conn: Connection, end: EpisodeEnd) -> None:
    """Store the outcome, with an event "episode.ended". The same outcome again changes nothing.

    Raises `RequestError` for an unknown episode (404), for a step reward of a turn that it does not have (400), and if
    it has ended with another outcome or has expired (409): its last requests may have been refused.
    """
    before = get_episode(conn, end.id)
    if before is None or before.scope != end.scope:
        raise unknown_episode(end.id)
    if before.outcome is not None:
        if _has_result(before, end):
            return
        raise _conflict(
            f"episode {end.id} has ended with another outcome: {_describe_outcome(before)}."
        )
    if end.outcome == "done" and end.at >= before.expires_at:
        raise _conflict(f"episode {end.id} has ended: {EXPIRED}.")
    _check_steps(conn, end)
    changes = {
        "outcome": end.outcome,
        "reward": end.reward,
        "ended_at": end.at,
        "parts": to_json(end.parts) if end.parts else None,
        "steps": to_json(end.steps) if end.steps else None,
        "reason": end.reason,
    }
    conn.execute(update(t.episodes).where(t.episodes.c.id == end.id).values(changes))
    events.append(conn, ENDED_EVENT, end.id, {}, end.at)


def _has_result(episode: Episode, end: EpisodeEnd) -> bool:
    return all(getattr(episode, name) == getattr(end, name) for name in _RESULT)


def _describe_outcome(episode: Episode) -> str:
    description = str(episode.outcome)
    if episode.reward is not None:
        description += f", reward {episode.reward:g}"
    if episode.reason:
        description += f" ({episode.reason})"
    return description


def _check_steps(conn: Connection, end: EpisodeEnd) -> None:
    turns_of_episode = select(t.exchanges.c.id).where(t.exchanges.c.episode == end.id)
    turn_ids = set(conn.execute(turns_of_episode).scalars())
    for step in end.steps:
        if not _has_one_name(step):
            raise RequestError(
                "steps: expected either turn or index (from 0) with each reward.", param="steps"
            )
        if step.turn is not None and step.turn not in turn_ids:
            raise RequestError(
                f"steps: episode {end.id} has no reply {step.turn[:80]!r}.", param="steps"
            )


def _has_one_name(step: StepReward) -> bool:
    """Return whether a step reward has either a turn or an index from 0."""
    if step.index is None:
        return step.turn is not None
    return step.turn is None and step.index >= 0


def void_expired(conn: Connection, now: float, *, limit: int) -> int:
    """End up to `limit` episodes that expired without an outcome as void; return their number."""
    query = select(t.episodes.c.id, t.episodes.c.scope).where(t.episodes.c.outcome.is_(None))
    expired = conn.execute(query.where(t.episodes.c.expires_at <= now).limit(limit)).all()
    for row in expired:
        end_episode(
            conn, EpisodeEnd(id=row.id, scope=row.scope, outcome="void", reason=EXPIRED, at=now)
        )
    return len(expired)


def has_expired(conn: Connection, now: float) -> bool:
    """Return whether an episode without an outcome, or a group that is not complete, has expired."""
    running = select(t.episodes.c.id).where(
        t.episodes.c.outcome.is_(None), t.episodes.c.expires_at <= now
    )
    group = t.episode_groups.c
    waiting = select(group.id).where(group.completed_at.is_(None), group.expires_at <= now)
    return any(conn.execute(query.limit(1)).first() is not None for query in (running, waiting))


def get_episode(conn: Connection, id: str) -> Episode | None:
    row = conn.execute(_select_episode.where(t.episodes.c.id == id)).one_or_none()
    return None if row is None else _episode_from_row(row)


def episodes_of_group(conn: Connection, group: str) -> list[Episode]:
    """Return the episodes of a group, in the order in which they were opened."""
    query = _select_episode.where(t.episodes.c.group_id == group)
    rows = conn.execute(query.order_by(t.episodes.c.started_at, t.episodes.c.id))
    return [_episode_from_row(row) for row in rows]


def running_episodes(conn: Connection) -> list[tuple[Episode, int]]:
    """Return the episodes without an outcome, each with its number of replies.

    Those that failed, or that were cancelled before their first token, do not count. Damaged episodes are logged and
    left out.
    """
    x = t.exchanges.c
    failed = ExchangeStatus.FAILED.value
    cancelled = ExchangeStatus.CANCELLED.value
    is_empty = and_(x.status == cancelled, t.replies.c.first_token_at.is_(None))
    replies = (
        select(func.count())
        .select_from(t.exchanges)
        .outerjoin(t.replies, t.replies.c.seq == x.seq)
        .where(x.episode == t.episodes.c.id, x.status != failed, not_(is_empty))
    )
    query = _select_episode.add_columns(
        replies.correlate(t.episodes).scalar_subquery().label("replies")
    )
    running = []
    for row in conn.execute(query.where(t.episodes.c.outcome.is_(None))):
        try:
            running.append((_episode_from_row(row), int(row.replies)))
        except DamagedRow as error:
            log.warning("episode %s is left out: %s", row.id, error)
    return running


def _episode_row(episode: Episode) -> dict[str, Any]:
    sampling = to_json(episode.sampling) if episode.sampling else None
    versions = to_json(episode.versions) if episode.versions else None
    return to_row(
        t.episodes,
        episode,
        group_id=episode.group,
        sampling=sampling,
        versions=versions,
        parts=None,
        steps=None,
    )


def _episode_from_row(row: Row[Any]) -> Episode:
    with naming_damage(row.id, "episode"):
        read = {name: from_json(getattr(row, name) or b"{}") for name in ("sampling", "parts")}
        steps = tuple(StepReward(**step) for step in from_json(row.steps or b"[]"))
        versions = tuple(from_json(row.versions or b"[]"))
        return from_row(Episode, row, group=row.group_id, steps=steps, versions=versions, **read)
