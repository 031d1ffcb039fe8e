"""Whether a policy answers one person alone: one API key and user."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons.practice_turns import PRACTICE_SCOPE
from openclaw_rl.store.lineage.policy_names import OwnerFilter
from openclaw_rl.types import Kind


class PeopleOfPolicies:
    """Remembers who has talked to each policy, so that only new turns are read."""

    def __init__(self) -> None:
        # Name -> the last turn that was read, and the people so far.
        self._known: dict[str, tuple[int, frozenset[tuple[str, str]]]] = {}

    def is_alone(self, conn: Connection, name: str, owner: OwnerFilter | None) -> bool:
        """Return whether at most one person has talked to the policy. `owner`: whose turns train it; None: all."""
        seq, people = self._known.get(name, (0, frozenset()))
        if len(people) > 1:
            return False
        newest = conn.execute(select(func.max(t.turns.c.seq))).scalar_one() or 0
        query = (
            select(t.exchanges.c.scope, t.exchanges.c.user)
            .join(t.turns, t.turns.c.seq == t.exchanges.c.seq)
            .where(
                t.turns.c.seq > seq,
                t.turns.c.kind == Kind.MAIN.value,
                t.exchanges.c.episode.is_(None),
                t.exchanges.c.origin.is_(None),
                t.exchanges.c.scope != PRACTICE_SCOPE,
            )
            .distinct()
            .limit(2)
        )
        if owner is not None:
            query = query.where(owner.condition())
        found = {(row.scope, row.user or "") for row in conn.execute(query)}
        self._known[name] = newest, people | found
        return len(people | found) <= 1
