"""Feedback that the owner gives on a reply, and takes back: the same rows as `POST /v1/feedback` writes.

It is written in the transaction of the audit, so that after a crash it is certain whether it was given.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.settings.load import Config
from openclaw_rl.store.acts import ActKind
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.types import Feedback, Retraction

GIVEN_BY = "page"
SCORE_WORDS = {1: "good", 0: "neither good nor bad", -1: "not good"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerScore:
    """Opinion on a reply. `comment`: what a reaction meant; `correction`: how the reply should have been."""

    turn: str
    score: int | None = None
    comment: str = ""
    correction: str = ""

    def describe(self) -> str:
        """Return the opinion in words."""
        opinion = SCORE_WORDS[self.score] if self.score is not None else "what was meant"
        if self.correction:
            return f"{opinion}, with how it should have been"
        return f"{opinion}, with a comment" if self.comment and self.score is not None else opinion


def score_reply(store: Store, config: Config, opinion: OwnerScore, origin: ActOrigin) -> str:
    """Record the opinion, which the judge reads next. Return what was noted.

    Raises `OpenClawError` for an unknown reply, without an opinion, or for words alone where none are stored.
    """
    if opinion.score is None and not opinion.comment and not opinion.correction:
        raise OpenClawError("expected good, not good, neither, or a text; got none of them")
    with store.write() as conn:
        scope = records.scope_of_reply(conn, opinion.turn)
        if scope is None:
            raise OpenClawError(f"there is no reply {opinion.turn[:60]!r} any more")
        stored = opinion
        if config.serve.capture == "redacted" or not records.keeps_words(conn, opinion.turn):
            stored = replace(opinion, comment="", correction="")
        if stored.score is None:
            _require_words(stored)
        outcome = f"noted: {stored.describe()}"
        item = Feedback(
            id="fb-" + secrets.token_hex(12),
            scope=scope,
            target=opinion.turn,
            score=stored.score,
            comment=stored.comment or None,
            correction=stored.correction or None,
            given_at=origin.at,
            given_by=GIVEN_BY,
            idempotency_key=origin.id,
        )
        records.add_feedback(conn, [item])
        origin.record(conn, ActKind.SCORE, opinion.turn, outcome)
    return outcome


def _require_words(stored: OwnerScore) -> None:
    """Raise `OpenClawError` if nothing of an opinion without a score is stored."""
    if not stored.comment and not stored.correction:
        raise OpenClawError(
            "the words of this reply are not stored (serve.capture: redacted), so what was meant is not stored either. "
            "Say instead whether the reply was good, not good or neither"
        )


def retract_scores(store: Store, turn: str, origin: ActOrigin) -> str:
    """Take back all that was given on the page on a reply. Return what was done. Raises `OpenClawError`."""
    with store.write() as conn:
        scope = records.scope_of_reply(conn, turn)
        feedback = [item for item in records.feedback_on(conn, turn) if item.given_by == GIVEN_BY]
        if scope is None or not feedback:
            raise OpenClawError("nothing was given on this reply here that could be taken back")
        ids = tuple(item.id for item in feedback)
        records.retract_feedback(conn, Retraction(ids=ids, scope=scope, at=origin.at))
        outcome = "taken back: the reply is judged by the reaction alone again"
        origin.record(conn, ActKind.RETRACT_SCORE, turn, outcome)
    return outcome
