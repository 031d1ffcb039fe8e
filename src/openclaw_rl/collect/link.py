"""Decide which earlier turns a new request reacts to. Pure: hashes in, decisions out.

A turn is recognised by its reply in a later history, in this order: the reply that the client named
(`previous_response_id`), an equal hash chain (the same history up to and including the reply), or a distinctive reply
that only one exchange gave. A wrong link causes a wrong gradient, a missing one only loses a sample: an ambiguous reply
stays unlinked, and the reason is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common.message_hash import reaction_signature, visible_text
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.store.turn_states import DropReason
from openclaw_rl.types import Capture, ExchangeStatus, Kind, Mark, Request, TurnState

EXACT, DISTINCTIVE = "exact", "distinctive"
REOPENED_BY_REACTION = frozenset({DropReason.TIMEOUT, DropReason.SESSION_DONE, DropReason.SUPERSEDED})
"""Reasons of turns that were dropped because they had no reaction: a late reaction reopens them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionLink:
    """Link from an earlier turn to the messages of this request that react to it."""

    turn: str
    messages: tuple[int, ...]  # positions in the request's messages
    signature: bytes  # 16 bytes, of these messages' marks; equal messages have equal signatures
    how: str  # EXACT | DISTINCTIVE
    superseded: tuple[str, ...] = ()  # other replies to the same history, which the conversation did not continue
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplyMatch:
    """Result of looking up one assistant message of the history."""

    past: ExchangeSummary | None = None
    how: str = EXACT
    has_new_reaction: bool = False  # the reaction that follows it is new to the turn
    unlinked_reason: str | None = None  # reason if it was not found


def link_request(request: Request, seq: int, index: ExchangeIndex, sides: TrafficClassifier) -> RequestLink:
    """Look up the assistant messages in the history of exchange number `seq`, and decide its links. No side effects."""
    kind, why_side = sides.classify_request(request)
    ours = [at for at, mark in enumerate(request.marks) if mark.role == "assistant"]
    candidates = _ReplyCandidates(request, [request.marks[at] for at in ours], index)
    reactions = {at: _reaction_marks(request, at, sides, candidates) for at in ours}
    found = {
        at: candidates.find_match(
            request.marks[at], reaction_signature(reactions[at]), may_be_main=_may_be_main(request, at, sides)
        )
        for at in ours
    }
    known = [f.past for f in found.values() if f.past is not None]
    parent = known[-1] if known else None
    relation, relation_of = _relation_to_same_history(request, seq, index, parent)
    answers = () if kind is Kind.SIDE else _find_reaction_links(request, seq, found, reactions, index)
    return RequestLink(
        session=request.session or _infer_session(request, parent, index),
        kind=kind,
        why_side=why_side,
        parent=parent.id if parent else None,
        relation=relation,
        relation_of=relation_of,
        unlinked=_unlinked_reason(found) if ours and parent is None else None,
        reaction_links=answers,
    )


def is_compatible(request: Request, past: ExchangeSummary) -> bool:
    """Return False if request and exchange name different sessions, users or agents."""
    pairs = (request.session, past.session_header), (request.user, past.user), (request.agent, past.agent)
    return all(not a or not b or a == b for a, b in pairs)


def _was_delivered(request: Request, past: ExchangeSummary) -> bool:
    """Return whether the exchange's reply had ended before the request, and both are compatible."""
    return past.finished_at is not None and past.finished_at <= request.admitted_at and is_compatible(request, past)


def _infer_session(request: Request, parent: ExchangeSummary | None, index: ExchangeIndex) -> str:
    """Return the parent's session, or a new one. The replies of one call (`n`) share it; their ids are ID, ID.1, ..."""
    if parent is not None:
        return parent.session
    stem, _, number = request.id.rpartition(".")
    first = index.by_id(request.scope, stem) if number.isdecimal() else None
    together = first is not None and first.admitted_at == request.admitted_at
    return first.session if first is not None and together else request.id


def _named_replies(request: Request, index: ExchangeIndex) -> Mapping[bytes, ExchangeSummary]:
    """Return the replies that the client named (`previous_response_id`) in this request or its ancestors, by chain.

    The gateway put the named conversation before the new messages; omitted instructions change only the chain.
    """
    out: dict[bytes, ExchangeSummary] = {}
    past = index.by_id(request.scope, request.previous) if request.previous else None
    for mark in reversed([m for m in request.marks if m.role == "assistant"]):
        if past is None:
            break
        if past.reply_own == mark.own and _was_delivered(request, past):
            out[mark.chain] = past
            past = index.by_id(request.scope, past.previous) if past.previous else None
    return out


class _ReplyCandidates:
    """Earlier exchanges whose replies may be the assistant messages of one request."""

    def __init__(self, request: Request, marks: Sequence[Mark], index: ExchangeIndex) -> None:
        self._request = request
        owns = {m.own for m in marks if m.distinctive}
        self._by_chain = self._group_delivered(index.by_chain(request.scope, {m.chain for m in marks}), "reply_chain")
        self._by_chain |= {chain: [past] for chain, past in _named_replies(request, index).items()}
        self._by_own = self._group_delivered(index.by_own(request.scope, owns), "reply_own")
        self._reply_counts = Counter(m.own for m in marks)

    def _group_delivered(self, pasts: Sequence[ExchangeSummary], key: str) -> dict[bytes, list[ExchangeSummary]]:
        out: dict[bytes, list[ExchangeSummary]] = {}
        for past in pasts:
            if _was_delivered(self._request, past):
                out.setdefault(getattr(past, key), []).append(past)
        return out

    def is_declared_side(self, mark: Mark) -> bool:
        """Return whether the client declared the reply to be side traffic (its text alone is not certain)."""
        exact = self._by_chain.get(mark.chain, ())
        return bool(exact) and all(past.declared_kind is Kind.SIDE for past in exact)

    def find_match(self, mark: Mark, signature: bytes | None, *, may_be_main: bool = False) -> _ReplyMatch:
        """Return the exchange whose reply is `mark`, and whether the reaction with this signature is new to its turn.

        `may_be_main`: if the turn was dropped as apparent side traffic, this reaction shows that it was main.
        """
        exact = self._by_chain.get(mark.chain, [])
        if exact:
            return self._choose_equal(exact, signature, may_be_main)
        if not mark.distinctive:
            return _ReplyMatch(unlinked_reason="a reply under 24 characters is only matched in an unchanged history")
        same = self._by_own.get(mark.own, [])
        if len(same) > 1 or (same and self._reply_counts[mark.own] > 1):
            times = max(len(same), self._reply_counts[mark.own])
            return _ReplyMatch(unlinked_reason=f"ambiguous: {times} replies have the same text")
        if not same:
            return _ReplyMatch(unlinked_reason="its replies are not from this gateway")
        return _ReplyMatch(
            past=same[0],
            how=DISTINCTIVE,
            has_new_reaction=signature is not None and _awaits_reaction(same[0], signature),
        )

    def _choose_equal(
        self, exact: Sequence[ExchangeSummary], signature: bytes | None, may_be_main: bool
    ) -> _ReplyMatch:
        """Choose among equal replies to equal histories: one that has the reaction, else the first that awaits one."""
        ranked = sorted(exact, key=lambda p: (p.session_header != self._request.session, p.seq))
        if signature is None:
            return _ReplyMatch(past=ranked[0])
        knows = next((p for p in ranked if signature in p.signatures), None)
        if knows is not None:
            return _ReplyMatch(past=knows)
        waits = next(
            (p for p in ranked if _awaits_reaction(p, signature) or (may_be_main and _is_apparent_side(p))), None
        )
        if waits is not None:
            return _ReplyMatch(past=waits, has_new_reaction=True)
        # The user went back and wrote something else: the newer text counts, if there is only one candidate.
        revised = len(ranked) == 1 and ranked[0].state in (TurnState.CLOSED, TurnState.JUDGED)
        return _ReplyMatch(past=ranked[0], has_new_reaction=revised)


def _awaits_reaction(past: ExchangeSummary, signature: bytes) -> bool:
    """Return whether the turn has no reaction from a conversation yet, and may still get this one."""
    if signature in past.signatures:
        return False
    if past.state is TurnState.DROPPED:
        return past.cause in REOPENED_BY_REACTION
    return past.state is TurnState.SERVED or not past.signatures


def _is_apparent_side(past: ExchangeSummary) -> bool:
    """Return whether only its text made the turn side traffic, and its reply is complete."""
    return past.cause is DropReason.SIDE and past.declared_kind is None and past.status is ExchangeStatus.DONE


def _may_be_main(request: Request, at: int, sides: TrafficClassifier) -> bool:
    """Return whether the prompt of mark `at` is no client prompt (a heartbeat). False if the text was not stored."""
    before = request.messages[: request.marks[at].index]  # includes ephemeral messages, e.g. the rest of a heartbeat
    prompt = next((m for m in reversed(before) if m.get("role") == "user"), None)
    return bool(request.messages) and not (prompt is not None and sides.is_client_prompt(prompt))


def _reaction_marks(
    request: Request, at: int, sides: TrafficClassifier, candidates: _ReplyCandidates
) -> tuple[Mark, ...]:
    """Return the marks of the reaction to mark `at`: everything up to the next reply of the main conversation.

    Side calls that some clients leave in the history (a heartbeat and its reply) are skipped, because their prompt is
    not a reaction. The reaction ends at the reply to a message that only resembles a client prompt, and at the
    reply to a wake if the user saw text of it. The request's own last messages are never skipped: its kind is known.
    """
    kept: list[Mark] = []
    run: list[Mark] = []
    aside, since = False, request.marks[at].index
    for mark in request.marks[at + 1 :]:
        if mark.role != "assistant":
            run.append(mark)
            continue
        genuine = [m for m in run if not _is_client_prompt(request, m, sides)]
        used = aside and all(m.role == "tool" for m in genuine)  # tool results of a side call
        kept += [m for m in genuine if not (aside and m.role == "tool")]
        woken = _has_wake_between(request, since, mark.index, sides)
        aside = candidates.is_declared_side(mark) or (bool(run or woken) and (used or not genuine))
        if not aside or (woken and visible_text(request.messages[mark.index])):
            return tuple(kept)
        run, since = [], mark.index
    return (*kept, *run)


def _has_wake_between(request: Request, after: int, before: int, sides: TrafficClassifier) -> bool:
    """Return whether a wake was between these positions. Clients keep its reply only if they showed it to the user."""
    passing = {*range(after + 1, before)} - {m.index for m in request.marks}
    return bool(request.messages) and any(sides.is_client_prompt(request.messages[i]) for i in passing)


def _is_client_prompt(request: Request, mark: Mark, sides: TrafficClassifier) -> bool:
    return mark.role == "user" and bool(request.messages) and sides.is_client_prompt(request.messages[mark.index])


def _relation_to_same_history(
    request: Request, seq: int, index: ExchangeIndex, parent: ExchangeSummary | None
) -> tuple[str, str | None]:
    """Return the relation to the newest earlier request with the same history (by its status then), and its id."""
    if request.marks:
        same = index.by_context(request.scope, request.marks[-1].chain)
        earlier = [p for p in same if p.seq < seq and is_compatible(request, p)]
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
    found: Mapping[int, _ReplyMatch],
    reactions: Mapping[int, tuple[Mark, ...]],
    index: ExchangeIndex,
) -> tuple[ReactionLink, ...]:
    out = []
    for at, f in found.items():
        signature = reaction_signature(reactions[at])
        if f.past is None or signature is None or not f.has_new_reaction:
            continue
        redacted = Capture.REDACTED in (request.capture, f.past.capture)
        if redacted and f.past.state is not TurnState.SERVED:
            continue
        out.append(
            ReactionLink(
                turn=f.past.id,
                messages=tuple(m.index for m in reactions[at]),
                signature=signature,
                how=f.how,
                superseded=_superseded_turns(request, seq, f.past, index),
                redacted=redacted,
                was_side=f.past.cause is DropReason.SIDE,
            )
        )
    return tuple(out)


def _superseded_turns(request: Request, seq: int, chosen: ExchangeSummary, index: ExchangeIndex) -> tuple[str, ...]:
    """Return the other turns without a reaction that have the same history as `chosen`."""
    if chosen.context_chain is None:
        return ()
    return tuple(
        p.id
        for p in index.by_context(request.scope, chosen.context_chain)
        if p.id != chosen.id and p.seq < seq and p.state is TurnState.SERVED and is_compatible(request, p)
    )


def _unlinked_reason(found: Mapping[int, _ReplyMatch]) -> str:
    reasons = dict.fromkeys(f.unlinked_reason for f in found.values() if f.unlinked_reason)
    return f"no reply in its history ({len(found)}) could be linked: " + "; ".join(reasons)
