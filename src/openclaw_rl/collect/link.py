"""Decide which earlier turns a new request reacts to. Pure: hashes in, decisions out.

`reply_match.py` recognises earlier replies in the request's history; what follows each is its reaction. A wrong link
causes a wrong gradient, a missing one only loses a sample: an ambiguous reply stays unlinked, and the reason is
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openclaw_rl.collect.episode_history import find_continued_turn
from openclaw_rl.collect.quoted_replies import quotation_reason
from openclaw_rl.collect.reaction_finder import ReactionFinder
from openclaw_rl.collect.reply_match import (
    DISTINCTIVE,
    NOT_OURS,
    ReactionMessages,
    ReplyMatch,
    ReplyMatcher,
    awaits_reaction,
    mismatch,
    revises_reaction,
)
from openclaw_rl.collect.summary_match import (
    NOT_REPLACED,
    ReplacedHistory,
    find_replaced_history,
    turn_before_summary,
)
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Capture, ExchangeStatus, Kind, Request, TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionLink:
    """Link from an earlier turn to the messages of this request that react to it."""

    turn: str
    messages: tuple[int, ...]  # positions in the request's messages
    signature: bytes  # 16 bytes, of these messages' marks; equal messages have equal signatures
    how: str  # EXACT | TOOL_CALL | SEQUENCE | DISTINCTIVE
    superseded: tuple[
        str, ...
    ] = ()  # other replies to the same history, which the conversation did not continue
    redacted: bool = False  # the text of turn or reaction was not stored, so it cannot be judged
    was_side: bool = False  # it was taken for side traffic, but the conversation continued after it, so it is main


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLink:
    """Position of a request in its conversation, and the turns that it reacts to."""

    session: str
    kind: Kind
    why_side: str | None
    parent: str | None
    relation: str  # fresh | continuation | regeneration | retry | sibling
    relation_of: str | None
    unlinked: str | None
    reaction_links: tuple[ReactionLink, ...]


def link_request(
    request: Request, seq: int, index: ExchangeIndex, sides: TrafficClassifier
) -> RequestLink:
    """Look up the assistant messages in the history of exchange number `seq`, and decide its links. No side effects."""
    kind, why_side = sides.classify_request(request)
    matcher = ReplyMatcher(request, index)
    finder = ReactionFinder(request, sides, matcher)
    reactions = {at: finder.find_reaction(at) for at in matcher.positions}
    found = matcher.find_matches(reactions)
    known = [match.past for _, match in sorted(found.items()) if match.past is not None]
    replaced = (
        NOT_REPLACED if known or kind is Kind.SIDE else find_replaced_history(request, index, sides)
    )
    continued = None
    if request.episode is not None and (not found or found[matcher.positions[-1]].past is None):
        continued = find_continued_turn(request, seq, index)
    parent = continued or (known[-1] if known else replaced.turn)
    relation, relation_of = _relation_to_same_history(request, seq, index, parent)
    links = () if kind is Kind.SIDE else _find_reaction_links(request, seq, found, reactions, index)
    unlinked = replaced.unlinked_reason
    if parent is None and unlinked is None:
        quoted = (
            kind is Kind.MAIN and _may_be_quoted(found) and quotation_reason(request, seq, index)
        )
        unlinked = quoted or _unlinked_reason(found)
    return RequestLink(
        session=request.session or _infer_session(request, parent, index),
        kind=kind,
        why_side=why_side,
        parent=parent.id if parent else None,
        relation=relation,
        relation_of=relation_of,
        unlinked=unlinked,
        reaction_links=links or _link_turn_before_summary(request, seq, replaced, index),
    )


def _infer_session(request: Request, parent: ExchangeSummary | None, index: ExchangeIndex) -> str:
    """Return the parent's session, or a new one. The replies of one call (`n`) share it; their ids are ID, ID.1, ..."""
    if parent is not None:
        return parent.session
    stem, _, number = request.id.rpartition(".")
    first = index.by_id(request.scope, stem) if number.isdecimal() else None
    together = first is not None and first.admitted_at == request.admitted_at
    return first.session if first is not None and together else request.id


def _relation_to_same_history(
    request: Request, seq: int, index: ExchangeIndex, parent: ExchangeSummary | None
) -> tuple[str, str | None]:
    """Return the relation to the newest earlier request with the same history, and the id of that request."""
    if request.marks:
        same = index.by_context(request.scope, {request.marks[-1].chain})
        earlier = [p for p in same if p.seq < seq and mismatch(request, p) is None]
        if earlier:
            return _relation_kind(earlier[-1], request.admitted_at), earlier[-1].id
    return ("continuation" if parent else "fresh"), None


def _relation_kind(past: ExchangeSummary, at: float) -> str:
    if past.finished_at is None or past.finished_at > at:
        return "sibling"
    return "regeneration" if past.status is ExchangeStatus.DONE else "retry"


def _find_reaction_links(
    request: Request,
    seq: int,
    found: Mapping[int, ReplyMatch],
    reactions: Mapping[int, ReactionMessages],
    index: ExchangeIndex,
) -> tuple[ReactionLink, ...]:
    out: dict[str, ReactionLink] = {}
    seen = {match.past.id for match in found.values() if match.past is not None}
    for at, match in found.items():
        past = match.past
        new = match.has_new_reaction
        if past is not None and past.kind is Kind.SIDE and not new:
            past = _open_turn_before_summary(past, reactions[at], index)
            new = past is not None and past.id not in seen
        if past is None or reactions[at].signature is None or not new or past.id in out:
            continue
        link = _make_link(request, seq, past, reactions[at], match.how, index)
        if link is not None:
            out[past.id] = link
    return tuple(out.values())


def _open_turn_before_summary(
    side: ExchangeSummary, reaction: ReactionMessages, index: ExchangeIndex
) -> ExchangeSummary | None:
    """Return the turn before a summary that stands as the last reply of the history, if this reaction is new to it."""
    past = turn_before_summary(side, index) if reaction.is_last and reaction.from_person else None
    new = past is not None and (awaits_reaction(past, reaction) or revises_reaction(past, reaction))
    return past if new else None


def _make_link(
    request: Request,
    seq: int,
    past: ExchangeSummary,
    reaction: ReactionMessages,
    how: str,
    index: ExchangeIndex,
) -> ReactionLink | None:
    """Return the link to a turn. None if it is redacted and has had its reaction."""
    assert reaction.signature is not None, "only a reaction is linked"
    redacted = Capture.REDACTED in (request.capture, past.capture)
    if redacted and past.state is not TurnState.SERVED:
        return None
    return ReactionLink(
        turn=past.id,
        messages=tuple(m.index for m in reaction.marks),
        signature=reaction.signature,
        how=how,
        superseded=_superseded_turns(request, seq, past, index),
        redacted=redacted,
        was_side=past.cause is ReasonCode.SIDE,
    )


def _link_turn_before_summary(
    request: Request, seq: int, replaced: ReplacedHistory, index: ExchangeIndex
) -> tuple[ReactionLink, ...]:
    """Return the link to the turn before a summary. Only the first words after it are its reaction: without a history,
    later words may react to a later reply."""
    past = replaced.turn
    reaction = replaced.reaction
    if past is None or not awaits_reaction(past, reaction):
        return ()
    link = _make_link(request, seq, past, reaction, DISTINCTIVE, index)
    return (link,) if link is not None else ()


def _superseded_turns(
    request: Request, seq: int, chosen: ExchangeSummary, index: ExchangeIndex
) -> tuple[str, ...]:
    """Return the other turns without a reaction that have the same history as `chosen`."""
    if chosen.context_chain is None:
        return ()
    return tuple(
        p.id
        for p in index.by_context(request.scope, {chosen.context_chain})
        if p.id != chosen.id
        and p.seq < seq
        and p.state is TurnState.SERVED
        and mismatch(request, p) is None
    )


def _may_be_quoted(found: Mapping[int, ReplyMatch]) -> bool:
    """Return whether no assistant message of the history is known to be a reply of this gateway."""
    return {match.unlinked_reason for match in found.values()} <= {NOT_OURS}


def _unlinked_reason(found: Mapping[int, ReplyMatch]) -> str | None:
    if not found:
        return None
    reasons = dict.fromkeys(f.unlinked_reason for f in found.values() if f.unlinked_reason)
    return f"no reply in its history ({len(found)}) could be linked: " + "; ".join(reasons)
