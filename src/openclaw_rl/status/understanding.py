"""Counts of the reactions that the judge has understood, by who reacted, with examples of the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text, strip_client_text
from openclaw_rl.common.printable import cut_text
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.status.readable_turns import readable_reactions
from openclaw_rl.store import turns
from openclaw_rl.types import Reaction, Verdict

COUNTED_VERDICTS = 200
"""Newest verdicts of judges that are counted."""
EXAMPLES = 3
"""Newest reactions of each kind that are quoted."""
QUOTED_CHARS = 80
"""Characters of a quoted reaction."""


class ReactionKind(StrEnum):
    """Who reacted to a reply."""

    PERSON = "person"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class QuotedReaction:
    """A reaction that was not understood. `turn`: id of the turn that it is about."""

    turn: str
    text: str


@dataclass(slots=True)
class Understanding:
    """Counts of the newest reactions of one kind."""

    judged: int = 0
    understood: int = 0
    not_understood: list[QuotedReaction] = field(default_factory=list)
    """The newest ones, at most `EXAMPLES`."""


def is_understood(verdict: Verdict) -> bool:
    """Return whether a judge got anything out of a reaction: a score, a hint, or that it says nothing of the reply."""
    is_no_evidence = verdict.reason_code is ReasonCode.NO_EVIDENCE
    return verdict.score is not None or bool(verdict.hints) or is_no_evidence


def count_understood(conn: Connection) -> dict[ReactionKind, Understanding]:
    """Return the counts of the newest reactions, by kind. Reactions that cannot be read are left out."""
    newest: dict[str, Verdict] = {}
    for verdict in turns.newest_judge_verdicts(conn, COUNTED_VERDICTS):
        newest.setdefault(verdict.turn, verdict)
    reactions = readable_reactions(conn, list(newest))
    counts: dict[ReactionKind, Understanding] = {}
    for turn, verdict in newest.items():
        reaction = reactions.get(turn)
        if reaction is None or not reaction.messages:
            continue
        counted = counts.setdefault(_kind(reaction), Understanding())
        counted.judged += 1
        if is_understood(verdict):
            counted.understood += 1
        elif len(counted.not_understood) < EXAMPLES:
            counted.not_understood.append(QuotedReaction(turn, _quote(reaction)))
    return counts


def _kind(reaction: Reaction) -> ReactionKind:
    roles = Counter(message.get("role") for message in reaction.messages)
    return ReactionKind.PERSON if roles["user"] else ReactionKind.TOOL


def _quote(reaction: Reaction) -> str:
    """Return the words of the person, else the tool's result, in one line, cut."""
    words = [message for message in reaction.messages if message.get("role") == "user"]
    texts = [strip_client_text(message_text(message)) for message in words or reaction.messages]
    return cut_text(" ".join(" ".join(texts).split()), QUOTED_CHARS)


def understanding_data(conn: Connection) -> dict[str, Any]:
    """Return `count_understood` as plain JSON."""
    return {
        kind.value: {
            "judged": counted.judged,
            "understood": counted.understood,
            "not_understood": [
                {"turn": quoted.turn, "text": quoted.text} for quoted in counted.not_understood
            ],
        }
        for kind, counted in count_understood(conn).items()
    }
