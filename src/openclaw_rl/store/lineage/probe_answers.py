"""The answers of the head and of a candidate to the probes of the gate, as far as both have answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select

from openclaw_rl.store import schema as t


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """One probe, answered by the head and by the candidate.

    The row of a probe that was made from a person's turn is erased with that turn.
    """

    version: int  # of the candidate
    probe: str  # name of the probe; unique for the candidate
    head: int  # version that the candidate was compared with
    # The person's turn whose prompt was asked again; None: a probe of the probe set.
    turn: str | None = None
    question: str  # last message of the prompt
    head_answer: str
    candidate_answer: str
    verdict: float  # from -1, the candidate's answer is worse, to 1, it is better
    reason: str = ""

    @property
    def has_changed(self) -> bool:
        return self.head_answer != self.candidate_answer


def record_answers(conn: Connection, answers: Sequence[ProbeAnswer]) -> None:
    """Store the answers of a candidate; a probe that was answered before is overwritten."""
    if answers:
        conn.execute(
            insert(t.probe_answers).prefix_with("OR REPLACE"),
            [asdict(answer) for answer in answers],
        )


def answers_of_version(conn: Connection, version: int) -> list[ProbeAnswer]:
    """Return the probe answers of a version of any state, sorted by the name of the probe."""
    query = (
        select(t.probe_answers)
        .where(t.probe_answers.c.version == version)
        .order_by(t.probe_answers.c.probe)
    )
    return [ProbeAnswer(**row._mapping) for row in conn.execute(query)]


def changed_answers(conn: Connection, version: int) -> list[ProbeAnswer]:
    """Return those probe answers of a version that differ from the answers of its head."""
    return [answer for answer in answers_of_version(conn, version) if answer.has_changed]
