"""The replies in a request's history, as the four passes of linking fill them in, and what the passes share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeSummary
from openclaw_rl.types import ExchangeStatus, Mark, Request, TurnState

EXACT = "exact"
TOOL_CALL = "tool_call"
SEQUENCE = "sequence"
DISTINCTIVE = "distinctive"
REOPENED_BY_REACTION = frozenset(
    {ReasonCode.TIMEOUT, ReasonCode.SESSION_DONE, ReasonCode.SUPERSEDED}
)
"""Reasons of turns that were dropped because they had no reaction: a late reaction reopens them."""
MAX_REACTIONS = 2
"""Reactions from the conversation that a turn records: the first, and one revision by the person. Without the bound,
one reply with twenty continuations (an evaluation, a branching client) would be judged twenty times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionMessages:
    """The messages that follow one assistant message of a request. `signature` None: there is no reaction."""

    marks: tuple[Mark, ...] = ()
    signature: bytes | None = None  # 16 bytes
    is_last: bool = False  # no assistant message follows it
    from_person: bool = False  # it includes a user message, not only tool results
    # A user message stands behind tool calls or their results.
    is_behind_calls: bool = False
    may_be_main: bool = False  # the prompt before the reply is no client prompt
    # The part of the message that the person said now, if a client put the whole conversation into it.
    spoken: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySlot:
    """One assistant message of a request. Each pass returns the slots with what it has found out."""

    at: int  # position in the request's marks
    mark: Mark
    history: bytes  # 16 bytes: chain of the messages before it

    # Pass 1, candidates: earlier exchanges whose reply it may be.
    # Those that made its tool calls, in their order: several if the client merged the calls of some replies.
    callers: tuple[ExchangeSummary, ...] = ()
    # The same history and the same reply, or named by the client. Certain, if there are any.
    equal: tuple[ExchangeSummary, ...] = ()
    same_history: tuple[ExchangeSummary, ...] = ()  # whatever they replied
    same_text: tuple[ExchangeSummary, ...] = ()  # a distinctive reply, after any history
    # The client declared the reply to be side traffic. Its text alone is not certain.
    is_declared_side: bool = False
    # "session", "user" or "agent": what an exchange with this reply names differently.
    difference: str | None = None

    # Pass 2, reactions.
    reaction: ReactionMessages = ReactionMessages()

    # Pass 3, matches: the exchange that gave the reply, or the reason why none was found.
    past: ExchangeSummary | None = None
    how: str = EXACT  # EXACT | TOOL_CALL | SEQUENCE | DISTINCTIVE
    # The reaction is new to the turn, and is recorded.
    has_new_reaction: bool = False
    unlinked: Reason | None = None


class ReactionEffect(Enum):
    """Meaning of a reaction for a turn."""

    NONE = "none"  # the turn has it already, or may get no other
    FIRST = "first"  # the turn has none from a conversation yet
    CONTINUATION = "continuation"  # the turn was taken for side traffic by its text alone
    REVISION = "revision"  # the person went back and wrote something else


def reaction_effect(past: ExchangeSummary, reaction: ReactionMessages) -> ReactionEffect:
    """Return what a reaction means for a turn.

    Clients change old messages, too: those are no revision, and neither are tool results, which a client repeats,
    shortens or clears.
    """
    if reaction.signature is None:
        return ReactionEffect.NONE
    if past.state is TurnState.DROPPED:
        return _effect_on_dropped(past, reaction)
    if reaction.signature in past.signatures:
        return ReactionEffect.NONE
    if past.state is TurnState.SERVED:
        return ReactionEffect.FIRST
    count = len(past.signatures)
    if count == 0:
        return ReactionEffect.FIRST
    is_of_person = reaction.is_last and reaction.from_person
    if is_of_person and count < MAX_REACTIONS:
        return ReactionEffect.REVISION
    return ReactionEffect.NONE


def _effect_on_dropped(past: ExchangeSummary, reaction: ReactionMessages) -> ReactionEffect:
    if past.cause is ReasonCode.SIDE:
        # Its text alone made it side traffic. What failed has no reply to react to.
        is_apparent = past.declared_kind is None and past.status is ExchangeStatus.DONE
        if is_apparent and reaction.may_be_main:
            return ReactionEffect.CONTINUATION
        return ReactionEffect.NONE
    is_new = reaction.signature not in past.signatures
    if is_new and past.cause in REOPENED_BY_REACTION:
        return ReactionEffect.FIRST
    return ReactionEffect.NONE


def mismatch(request: Request, past: ExchangeSummary, *, any_agent: bool = False) -> str | None:
    """Return "session", "user" or "agent" if request and exchange name different ones, else None."""
    pairs = {
        "session": (request.session, past.session_header),
        "user": (request.user, past.user),
        "agent": (request.agent, "" if any_agent else past.agent),
    }
    for name, (value, past_value) in pairs.items():
        if value and past_value and value != past_value:
            return name
    return None
