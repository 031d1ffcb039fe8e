"""Origin of an act, and its row in the audit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sqlalchemy import Connection

from openclaw_rl.store.acts import ActActor, ActKind, record_act


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOrigin:
    """Who asks for an act. `id`: of the form on the page, under which the act is carried out once."""

    actor: ActActor = ActActor.COMMAND
    id: str | None = None
    at: float = field(default_factory=time.time)

    def record(self, conn: Connection, kind: ActKind, target: str, outcome: str) -> None:
        """Record the act in the transaction that carries it out."""
        record_act(conn, kind, target, actor=self.actor, outcome=outcome, at=self.at, id=self.id)
