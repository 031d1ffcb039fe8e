"""Decide which earlier turns a new request reacts to. Pure: hashes in, decisions out.

Four passes over the replies in the request's history (`ReplySlot`): `candidates.py` looks up the exchanges that may
have given each, `reaction_finder.py` finds the messages that react to it, `reply_match.py` chooses the exchange, and
this module decides. A wrong link causes a wrong gradient, a missing one only loses a sample: an ambiguous reply stays
unlinked, and the reason is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.collect.candidates import find_candidates
from openclaw_rl.collect.episode_history import find_continued_turn
from openclaw_rl.collect.quoted_replies import quotation_reason
from openclaw_rl.collect.reaction_finder import find_reactions
from openclaw_rl.collect.reply_match import match_replies
from openclaw_rl.collect.reply_slot import (
    DISTINCTIVE,
    ReactionEffect,
    ReactionMessages,
    ReplySlot,
    mismatch,
    reaction_effect,
)
from openclaw_rl.collect.summary_match import (
    NOT_REPLACED,
    ReplacedHistory,
    find_replaced_history,
    turn_before_summary,
)
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.collect.transcript_match import find_transcript
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Capture, ExchangeStatus, Kind, Request, TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionLink:
    """Link from an earlier turn to the messages of this request that react to it."""

    turn: str
    messages: tuple[int, ...]  # positions in the request's messages
    signature: bytes  # 16 bytes, of these messages' marks; equal messages have equal signatures
    how: str  # EXACT | TOOL_CALL | SEQUENCE | DISTINCTIVE
    # Other replies to the same history, which the conversation did not continue.
    superseded: tuple[str, ...] = ()
    # The text of turn or reaction was not stored, so it cannot be judged.
    redacted: bool = False
    # What the person said, if it is only a part of the message.
    spoken: str | None = None
    # It was taken for side traffic, but the conversation continued after it, so it is main.
    was_side: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLink:
    """Position of a request in its conversation, and the turns that it reacts to."""

    session: str
    kind: Kind
    why_side: str | None
    parent: str | None
    relation: str  # fresh | continuation | regeneration | retry | sibling
    relation_of: str | None
    unlinked: Reason | None
    reaction_links: tuple[ReactionLink, ...]


def link_request(
    request: Request, seq: int, index: ExchangeIndex, sides: TrafficClassifier
) -> RequestLink:
    """Look up the assistant messages in the history of exchange number `seq`, and decide its links. No side effects."""
    kind, why_side = sides.classify_request(request)
    slots = find_candidates(request, index)
    slots = find_reactions(slots, request, sides)
    slots = match_replies(slots, request, index)

    replaced = NOT_REPLACED
    if kind is not Kind.SIDE and all(slot.past is None for slot in slots):
        replaced = find_replaced_history(request, index, sides)
        if replaced is NOT_REPLACED:
            replaced = find_transcript(request, seq, index)
    parent = _find_parent(slots, replaced, request, seq, index)
    links: Sequence[ReactionLink] = ()
    if kind is not Kind.SIDE:
        links = _decide_links(slots, replaced, request, seq, index)
    session = request.session
    if session is None:
        session = parent.session if parent is not None else _new_session(request, index)
    relation, relation_of = _relation_to_same_history(request, seq, index, parent)
    unlinked = replaced.unlinked
    if unlinked is None and parent is None:
        unlinked = _unlinked_reason(slots, kind, request, seq, index)
    elif slots and slots[-1].unlinked is not None and replaced is NOT_REPLACED:
        unlinked = _last_words_unlinked(slots)
    return RequestLink(
        session=session,
        kind=kind,
        why_side=why_side,
        parent=parent.id if parent is not None else None,
        relation=relation,
        relation_of=relation_of,
        unlinked=unlinked,
        reaction_links=tuple(links),
    )


def _find_parent(
    slots: Sequence[ReplySlot],
    replaced: ReplacedHistory,
    request: Request,
    seq: int,
    index: ExchangeIndex,
) -> ExchangeSummary | None:
    """Return the turn that the request continues."""
    if request.episode is not None and (not slots or slots[-1].past is None):
        continued = find_continued_turn(request, seq, index)
        if continued is not None:
            return continued
    for slot in reversed(slots):
        if slot.past is not None:
            return slot.past
    return replaced.turn


def _decide_links(
    slots: Sequence[ReplySlot],
    replaced: ReplacedHistory,
    request: Request,
    seq: int,
    index: ExchangeIndex,
) -> Sequence[ReactionLink]:
    """Return the links to the turns that get a new reaction, one for each."""
    matched = {slot.past.id for slot in slots if slot.past is not None}
    links: dict[str, ReactionLink] = {}
    for slot in slots:
        past = slot.past
        if past is None:
            continue
        if not slot.has_new_reaction:
            if past.kind is not Kind.SIDE:
                continue
            past = _open_turn_before_summary(past, slot.reaction, index)
            if past is None or past.id in matched:
                continue
        if past.id in links:
            continue
        link = _make_link(request, seq, past, slot.reaction, slot.how, index)
        if link is not None:
            links[past.id] = link
    if links or replaced.turn is None:
        return list(links.values())
    # Only the first words after the summary are a reaction to the turn before it: without a history, later words may
    # react to a later reply.
    if reaction_effect(replaced.turn, replaced.reaction) is not ReactionEffect.FIRST:
        return ()
    link = _make_link(request, seq, replaced.turn, replaced.reaction, DISTINCTIVE, index)
    return (link,) if link is not None else ()


def _open_turn_before_summary(
    side: ExchangeSummary, reaction: ReactionMessages, index: ExchangeIndex
) -> ExchangeSummary | None:
    """Return the turn before a summary that stands as the last reply of the history, if this reaction is new to it."""
    if not reaction.is_last or not reaction.from_person:
        return None
    past = turn_before_summary(side, index)
    if past is None:
        return None
    if reaction_effect(past, reaction) in (ReactionEffect.FIRST, ReactionEffect.REVISION):
        return past
    return None


def _make_link(
    request: Request,
    seq: int,
    past: ExchangeSummary,
    reaction: ReactionMessages,
    how: str,
    index: ExchangeIndex,
) -> ReactionLink | None:
    """Return the link to a turn. None if it is redacted and has had its reaction, or if there is no reaction."""
    redacted = Capture.REDACTED in (request.capture, past.capture)
    has_reaction = past.state is not TurnState.SERVED
    if reaction.signature is None or (redacted and has_reaction):
        return None
    # The other turns without a reaction that have the same history.
    beside: list[ExchangeSummary] = []
    if past.context_chain is not None:
        beside = index.by_context(request.scope, {past.context_chain})
    superseded = [
        other.id
        for other in beside
        if other.seq < seq and other.id != past.id and other.state is TurnState.SERVED
        if mismatch(request, other) is None
    ]
    return ReactionLink(
        turn=past.id,
        messages=tuple(mark.index for mark in reaction.marks),
        signature=reaction.signature,
        how=how,
        superseded=tuple(superseded),
        redacted=redacted,
        spoken=reaction.spoken,
        was_side=past.cause is ReasonCode.SIDE,
    )


def _relation_to_same_history(
    request: Request, seq: int, index: ExchangeIndex, parent: ExchangeSummary | None
) -> tuple[str, str | None]:
    """Return the relation to the newest earlier request with the same history, and the id of that request."""
    newest = None
    history = {mark.chain for mark in request.marks[-1:]}
    for past in index.by_context(request.scope, history):
        if past.seq < seq and mismatch(request, past) is None:
            newest = past
    if newest is None:
        return "fresh" if parent is None else "continuation", None
    if not newest.ended_by(request.admitted_at):
        return "sibling", newest.id
    if newest.status is ExchangeStatus.DONE:
        return "regeneration", newest.id
    return "retry", newest.id


def _new_session(request: Request, index: ExchangeIndex) -> str:
    """Return a new session. The replies of one call (`n`) share it; their ids are ID, ID.1, ..."""
    stem, _, number = request.id.rpartition(".")
    first = index.by_id(request.scope, stem) if number.isdecimal() else None
    if first is not None and first.admitted_at == request.admitted_at:
        return first.session
    return request.id


def _last_words_unlinked(slots: Sequence[ReplySlot]) -> Reason | None:
    """Return why no turn is known for what stands at the end of a history, although an earlier turn is."""
    reacting = [slot for slot in slots if slot.reaction.is_last and slot.past is not None]
    if any(slot.unlinked is None for slot in reacting):
        return None
    return slots[-1].unlinked


def _unlinked_reason(
    slots: Sequence[ReplySlot], kind: Kind, request: Request, seq: int, index: ExchangeIndex
) -> Reason | None:
    """Return why no earlier turn was found for a history; None if it has no reply."""
    # The last reply is the one that the request reacts to.
    code = None
    details: dict[str, None] = {}
    may_be_quoted = kind is Kind.MAIN
    for slot in slots:
        if slot.unlinked is not None:
            code = slot.unlinked.code
            details[slot.unlinked.detail] = None
            # Only if no message of the history is known to be a reply of this gateway.
            may_be_quoted = may_be_quoted and code is ReasonCode.NOT_OURS
    if may_be_quoted:
        quoted = quotation_reason(request, seq, index)
        if quoted is not None:
            return quoted
    if code is None:
        return None
    reasons = "; ".join(details)
    return Reason(code, f"no reply in its history ({len(slots)}) could be linked: {reasons}")
