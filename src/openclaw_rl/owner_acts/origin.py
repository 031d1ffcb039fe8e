"""Origin of an act, and its row in the audit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.store.acts import ActActor, ActKind, record_act


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOrigin:
    """Who asks for an act. `id`: of the form on the page, under which the act is carried out once."""

    actor: ActActor = ActActor.COMMAND
    id: str | None = None
    at: float = field(default_factory=time.time)

    def record(
        self,
        conn: Connection,
        kind: ActKind,
        target: str,
        outcome: str,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the act in the transaction that carries it out. `details`: what it changed, for a receipt."""
        record_act(
            conn,
            kind,
            target,
            actor=self.actor,
            outcome=outcome,
            at=self.at,
            id=self.id,
            details=details,
        )
