"""Invariants of episodes over a store. Each check returns its violations as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.faults.client_log import EpisodeCut
from sqlalchemy import Connection, Row, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.episodes.episodes import ENDED_EVENT

# An outcome that was on its way when its runner was killed.
_POSTED_SECONDS = 1.0


def check_episodes(conn: Connection, cuts: Iterable[EpisodeCut]) -> list[str]:
    """Return the violations of what is promised about episodes at any time."""
    return [*_check_uses(conn), *_check_ends(conn), *_check_cuts(conn, cuts)]


def check_all_ended(conn: Connection) -> Iterator[str]:
    """No episode runs when no runner does."""
    for id_ in conn.execute(
        select(t.episodes.c.id).where(t.episodes.c.outcome.is_(None))
    ).scalars():
        yield f"the episode {id_} has no outcome, and no runner plays it"


def count_episodes(conn: Connection) -> Counter[str]:
    """Return the number of episodes that are done, and that are void."""
    query = select(t.episodes.c.outcome, func.count()).group_by(t.episodes.c.outcome)
    found = {row[0]: int(row[1]) for row in conn.execute(query)}
    return Counter({f"{name} episodes": found.get(name, 0) for name in ("done", "void")})


def _check_uses(conn: Connection) -> Iterator[str]:
    """Only turns of episodes of the train split that are done are trained on."""
    query = (
        select(
            t.uses.c.turn,
            t.uses.c.policy,
            t.episodes.c.id,
            t.episodes.c.outcome,
            t.episodes.c.split,
        )
        .join(t.exchanges, t.exchanges.c.id == t.uses.c.turn)
        .join(t.episodes, t.episodes.c.id == t.exchanges.c.episode)
    )
    for row in conn.execute(query):
        if row.outcome != "done" or row.split != "train":
            what = row.outcome or "running" if row.split == "train" else "held-out"
            yield f"version {row.policy} was trained on the turn {row.turn} of the {what} episode {row.id}"


def _check_ends(conn: Connection) -> Iterator[str]:
    """An outcome counts once: one event of its end, and a reward exactly if it is done."""
    query = (
        select(t.events.c.ref, func.count())
        .where(t.events.c.kind == ENDED_EVENT)
        .group_by(t.events.c.ref)
    )
    ends = {row[0]: int(row[1]) for row in conn.execute(query)}
    for row in conn.execute(select(t.episodes.c.id, t.episodes.c.outcome, t.episodes.c.reward)):
        expected = int(row.outcome is not None)
        if ends.get(row.id, 0) != expected:
            yield f"the episode {row.id} has ended {ends.get(row.id, 0)} times instead of {expected}"
        if (row.reward is not None) != (row.outcome == "done"):
            yield f"the episode {row.id} is {row.outcome or 'running'} with the reward {row.reward}"


def _check_cuts(conn: Connection, cuts: Iterable[EpisodeCut]) -> Iterator[str]:
    """An episode that was cut by a kill is void."""
    for cut in cuts:
        for row in conn.execute(select(t.episodes).where(t.episodes.c.started_at < cut.at)):
            if cut.process == "runner" and row.id.startswith(f"{cut.run}-"):
                yield from _check_orphan(row, cut)
            elif (
                cut.process == "gateway"
                and row.outcome == "done"
                and _has_later_turn(conn, row.id, cut.at)
            ):
                yield f"the episode {row.id} got replies before and after the gateway was killed, and is done"


def _check_orphan(row: Row[Any], cut: EpisodeCut) -> Iterator[str]:
    if row.outcome is None:
        yield f"the episode {row.id} has no outcome, and its runner was killed"
    elif row.outcome == "done" and row.ended_at > cut.at + _POSTED_SECONDS:
        yield f"the episode {row.id} is done {row.ended_at - cut.at:.1f} s after its runner was killed"


def _has_later_turn(conn: Connection, episode: str, at: float) -> bool:
    query = select(t.exchanges.c.seq).where(
        t.exchanges.c.episode == episode, t.exchanges.c.admitted_at > at
    )
    return conn.execute(query.limit(1)).first() is not None
