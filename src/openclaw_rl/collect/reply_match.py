"""Recognise the assistant messages of a request as replies of earlier exchanges.

The ways, from the most certain: the reply that the client named (`previous_response_id`), a tool call id of this
gateway, an equal hash chain (the same history up to and including the reply), the same history and a reply to which
the client added a stop string that it had requested, the only short reply with this text that continued the linked
reply before it, and a distinctive reply that only one exchange gave. The last one also needs a tie: the same message
before the reply, a session, user or agent that both name, another reply of the same session in the request, or a
summary by this gateway in front of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.common.message_hash import (
    CHAIN_ROOT,
    DISTINCTIVE_CHARS,
    canonical_calls,
    message_text,
    own_hash,
)
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import ExchangeStatus, Kind, Mark, Request, TurnState

EXACT = "exact"
TOOL_CALL = "tool_call"
SEQUENCE = "sequence"
DISTINCTIVE = "distinctive"
REOPENED_BY_REACTION = frozenset(
    {ReasonCode.TIMEOUT, ReasonCode.SESSION_DONE, ReasonCode.SUPERSEDED}
)
"""Reasons of turns that were dropped because they had no reaction: a late reaction reopens them."""
NOT_OURS = "its replies are not from this gateway, or were given under another API key"
MAX_REACTIONS = 2
"""Reactions from the conversation that a turn records: the first, and one revision by the person. Without the bound,
one reply with twenty continuations (an evaluation, a branching client) would be judged twenty times."""

_NO_TIE = (
    "the message before the reply is another one, and the requests share no session, user or agent"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionMessages:
    """The messages that follow one assistant message of a request. `signature` None: there is no reaction."""

    marks: tuple[Mark, ...] = ()
    signature: bytes | None = None  # 16 bytes
    is_last: bool = False  # no assistant message follows it
    from_person: bool = False  # it includes a user message, not only tool results
    may_be_main: bool = False  # the prompt before the reply is no client prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMatch:
    """Result of the search for one assistant message."""

    past: ExchangeSummary | None = None
    how: str = EXACT
    # The reaction that follows it is new to the turn, and is recorded.
    has_new_reaction: bool = False
    unlinked_reason: str | None = None  # reason if no exchange was found


def mismatch(request: Request, past: ExchangeSummary, *, any_agent: bool = False) -> str | None:
    """Return "session", "user" or "agent" if request and exchange name different ones, else None."""
    pairs = {
        "session": (request.session, past.session_header),
        "user": (request.user, past.user),
        "agent": (request.agent, "" if any_agent else past.agent),
    }
    return next((name for name, (a, b) in pairs.items() if a and b and a != b), None)


def awaits_reaction(past: ExchangeSummary, reaction: ReactionMessages) -> bool:
    """Return whether the turn has no reaction from a conversation yet, and may still get this one."""
    if reaction.signature is None or reaction.signature in past.signatures:
        return False
    if past.state is TurnState.DROPPED:
        return past.cause in REOPENED_BY_REACTION
    return past.state is TurnState.SERVED or not past.signatures


def revises_reaction(past: ExchangeSummary, reaction: ReactionMessages) -> bool:
    """Return whether the person went back and wrote something else. Clients change old messages, too: those do not
    count, and neither do tool results, which a client repeats, shortens or clears."""
    return (
        past.state in (TurnState.CLOSED, TurnState.JUDGED)
        and reaction.is_last
        and reaction.from_person
        and reaction.signature not in past.signatures
        and len(past.signatures) < MAX_REACTIONS
    )


class ReplyMatcher:
    """The earlier exchanges whose replies may be the assistant messages of one request."""

    def __init__(self, request: Request, index: ExchangeIndex) -> None:
        self._request = request
        self._index = index
        self.positions = [at for at, mark in enumerate(request.marks) if mark.role == "assistant"]
        marks = [request.marks[at] for at in self.positions]
        # Own hash -> what an exchange with this reply names differently.
        self._refused: dict[bytes, str] = {}
        scope = request.scope
        self._by_chain = self._group_delivered(
            index.by_chain(scope, {m.chain for m in marks}), "reply_chain"
        )
        self._by_chain |= {chain: [past] for chain, past in _named_replies(request, index).items()}
        self._by_call = self._find_by_tool_call()
        unsure = [at for at in self.positions if not self._certain_candidates(at)]
        self._by_context = self._group_delivered(
            index.by_context(scope, {self._chain_before(at) for at in unsure}), "context_chain"
        )
        # Its replies are few, and no others are searched.
        in_episode = request.episode is not None
        owns = {
            request.marks[at].own for at in unsure if request.marks[at].distinctive or in_episode
        }
        self._by_own = self._group_delivered(index.by_own(scope, owns), "reply_own")
        self._reply_counts = Counter(m.own for m in marks)

    def is_declared_side(self, mark: Mark) -> bool:
        """Return whether the client declared the reply to be side traffic (its text alone is not certain)."""
        exact = self._by_chain.get(mark.chain, ())
        return bool(exact) and all(past.declared_kind is Kind.SIDE for past in exact)

    def find_matches(self, reactions: Mapping[int, ReactionMessages]) -> dict[int, ReplyMatch]:
        """Return the match of each assistant message, by its position in the request's marks."""
        certain: dict[int, ReplyMatch | None] = {}
        for number, at in enumerate(self.positions):
            before = self.positions[number - 1] if number else None
            earlier = certain[before] if before is not None else None
            certain[at] = self._match_certain(at, reactions[at])
            if (
                certain[at] is None
                and before is not None
                and earlier is not None
                and earlier.past is not None
            ):
                certain[at] = self._match_next(earlier.past, before, at, reactions[at])
        open_ = [at for at, match in certain.items() if match is None]
        last = self._index.last_messages([p for at in open_ for p in self._same_text(at)])
        tied = {at: [p for p in self._same_text(at) if self._has_tie(at, p, last)] for at in open_}
        sessions = {
            match.past.session
            for match in certain.values()
            if match is not None and match.past is not None
        }
        sessions |= {past.session for pasts in tied.values() for past in pasts}
        out = {}
        for at, match in certain.items():
            if match is None:
                candidates = tied[at] or [
                    p for p in self._same_text(at) if p.session in sessions or p.kind is Kind.SIDE
                ]
                match = self._match_distinctive(at, candidates, reactions[at])
            out[at] = match
        return out

    def _match_distinctive(
        self, at: int, candidates: Sequence[ExchangeSummary], reaction: ReactionMessages
    ) -> ReplyMatch:
        """Match a distinctive reply to the only candidate. A summary that repeats a reply is not that reply."""
        mark = self._request.marks[at]
        main = [p for p in candidates if p.kind is not Kind.SIDE] or candidates
        if len(main) == 1 and self._reply_counts[mark.own] == 1:
            return _match_one(main[0], DISTINCTIVE, reaction)
        count = max(len(self._same_text(at)), self._reply_counts[mark.own])
        if mark.own in self._refused and not self._same_text(at):
            reason = f"its reply was given under another {self._refused[mark.own]}"
        elif self._by_context.get(self._chain_before(at)) and not self._same_text(at):
            reason = "the client sends another text in place of the reply to the same history"
        elif not mark.distinctive:
            reason = "a reply under 24 characters is only matched in an unchanged history"
        elif self._same_text(at) and count > 1:
            reason = f"ambiguous: {count} replies have the same text"
        elif self._same_text(at):
            reason = _NO_TIE
        else:
            reason = NOT_OURS
        return ReplyMatch(unlinked_reason=reason)

    # ----------------------------------------------------------------------------- the candidates

    def _is_delivered(self, past: ExchangeSummary, *, any_agent: bool = False) -> bool:
        """Return whether the reply ended before the request, which names no other session, user or agent."""
        if past.finished_at is None or past.finished_at > self._request.admitted_at:
            return False
        different = mismatch(self._request, past, any_agent=any_agent)
        if different is not None and past.reply_own is not None:
            self._refused[past.reply_own] = different
        return different is None

    def _group_delivered(
        self, pasts: Sequence[ExchangeSummary], key: str
    ) -> dict[bytes, list[ExchangeSummary]]:
        out: dict[bytes, list[ExchangeSummary]] = {}
        for past in filter(self._is_delivered, pasts):
            out.setdefault(getattr(past, key), []).append(past)
        return out

    def _find_by_tool_call(self) -> dict[int, ExchangeSummary]:
        """Return the exchange that made the tool calls of an assistant message, by position: the only one that has
        these ids. The agent may differ, as agents hand conversations over to each other."""
        calls = {at: ids for at in self.positions if (ids := self._tool_call_ids(at))}
        owners = self._index.by_tool_call(
            self._request.scope, {id_ for ids in calls.values() for id_ in ids}
        )
        out: dict[int, ExchangeSummary] = {}
        for at, ids in calls.items():
            known = {past.id: past for id_ in ids for past in owners.get(id_, ())}
            past = next(iter(known.values()), None)
            if len(known) == 1 and past is not None and self._made_calls(at, past):
                if self._is_delivered(past, any_agent=True):
                    out[at] = past
                elif different := mismatch(self._request, past, any_agent=True):
                    self._refused[self._request.marks[at].own] = different
        return out

    def _made_calls(self, at: int, past: ExchangeSummary) -> bool:
        """Return whether the exchange made all calls of the message, with the same names and arguments."""
        mark = self._request.marks[at]
        if past.reply_own == mark.own:
            return True
        made = canonical_calls(self._index.reply_messages([past]).get(past.id, {}))
        return canonical_calls(self._request.messages[mark.index]).items() <= made.items()

    def _tool_call_ids(self, at: int) -> Collection[str]:
        # None if redacted.
        messages = self._request.messages
        return canonical_calls(messages[self._request.marks[at].index]).keys() if messages else ()

    def _chain_before(self, at: int) -> bytes:
        return self._request.marks[at - 1].chain if at else CHAIN_ROOT

    def _certain_candidates(self, at: int) -> Sequence[ExchangeSummary]:
        owner = self._by_call.get(at)
        return (
            (owner,) if owner is not None else self._by_chain.get(self._request.marks[at].chain, ())
        )

    def _without_stop_string(self, at: int) -> list[ExchangeSummary]:
        """Return the exchanges with this history whose reply is the message without one of their stop strings.

        Behind it may follow what the client writes under another stop string (smolagents: "Calling tools:").
        """
        past = self._by_context.get(self._chain_before(at), []) if self._request.messages else []
        if not past:
            return []
        message = self._request.messages[self._request.marks[at].index]
        text = message_text(message)
        out = []
        stops = self._index.stop_strings(past)
        for exchange in past:
            cut = _cut_at_stop_strings(
                text, [s for stop in stops.get(exchange.id, ()) if (s := stop.rstrip())]
            )
            if any(
                own_hash({**message, "content": c}, self._index.secret) == exchange.reply_own
                for c in cut
            ):
                out.append(exchange)
        return out

    def _same_text(self, at: int) -> Sequence[ExchangeSummary]:
        """Return the exchanges with the same distinctive reply, after any history."""
        return self._by_own.get(self._request.marks[at].own, ())

    def _has_tie(self, at: int, past: ExchangeSummary, before: Mapping[str, bytes]) -> bool:
        named = (
            (self._request.session, past.session_header),
            (self._request.user, past.user),
            (self._request.agent, past.agent),
        )
        same_message = at > 0 and before.get(past.id) == self._request.marks[at - 1].own
        return (
            same_message or any(a and a == b for a, b in named) or self._follows_summary(at, past)
        )

    def _follows_summary(self, at: int, past: ExchangeSummary) -> bool:
        """Return whether the message before contains the reply of a side call that came after `past`: a summary that
        the client has put in place of the history before that reply."""
        if not at or not self._request.messages:
            return False
        text = message_text(self._request.messages[self._request.marks[at - 1].index])
        return any(
            len(said) >= DISTINCTIVE_CHARS and said in text
            for said in self._index.side_replies_after(past)
        )

    # --------------------------------------------------------------------------------- the choice

    def _match_certain(self, at: int, reaction: ReactionMessages) -> ReplyMatch | None:
        owner = self._by_call.get(at)
        if owner is not None:
            same = owner.reply_chain == self._request.marks[at].chain
            return _match_one(owner, EXACT if same else TOOL_CALL, reaction)
        equal = self._certain_candidates(at) or self._without_stop_string(at)
        return self._choose_equal(equal, reaction) if equal else None

    def _match_next(
        self, earlier: ExchangeSummary, before: int, at: int, reaction: ReactionMessages
    ) -> ReplyMatch | None:
        """Match a short reply that continued `earlier`, the linked reply at `before`, if only one such reply has this
        text. The message that it answered must stand between the two. Earlier parts of the history may have changed."""
        own = self._request.marks[at].own
        if self._request.marks[at].distinctive:
            return None
        same = [
            past
            for past in self._index.by_own_in_session(self._request.scope, earlier.session, own)
            if past.parent == earlier.id and past.kind is not Kind.SIDE and self._is_delivered(past)
        ]
        last = self._index.last_messages(same)
        between = {mark.own for mark in self._request.marks[before + 1 : at]}
        same = [past for past in same if last.get(past.id) in between]
        return _match_one(same[0], SEQUENCE, reaction) if len(same) == 1 else None

    def _choose_equal(
        self, equal: Sequence[ExchangeSummary], reaction: ReactionMessages
    ) -> ReplyMatch:
        """Choose among equal replies to equal histories: the one that has the reaction, else the one that was
        delivered last of those that await one; of the same session first, then of the same version.

        Replies to requests that name the same session, user and agent as this one exclude the others: those may be
        another person's, who asked and said the same.
        """
        ranked = sorted([p for p in equal if self._has_same_names(p)] or equal, key=self._rank)
        knows = next((p for p in ranked if reaction.signature in p.signatures), None)
        if reaction.signature is None or knows is not None:
            return ReplyMatch(past=knows or ranked[0])
        waits = next((p for p in ranked if _accepts(p, reaction)), None)
        if waits is not None:
            return ReplyMatch(past=waits, has_new_reaction=True)
        return ReplyMatch(
            past=ranked[0],
            has_new_reaction=len(ranked) == 1 and revises_reaction(ranked[0], reaction),
        )

    def _has_same_names(self, past: ExchangeSummary) -> bool:
        request = self._request
        names = past.session_header, past.user, past.agent
        return names == (request.session, request.user, request.agent)

    def _rank(self, past: ExchangeSummary) -> tuple[bool, bool, float, int]:
        other_session = past.session_header != self._request.session
        return (
            other_session,
            past.version != self._request.version,
            -(past.finished_at or 0.0),
            -past.seq,
        )


def _cut_at_stop_strings(text: str, stops: Sequence[str]) -> Iterator[str]:
    """Yield the text before each stop string, if nothing or another stop string follows it."""
    for stop in stops:
        before, found, after = text.partition(stop)
        if found and (not after.strip() or after.lstrip().startswith(tuple(stops))):
            yield before


def _match_one(past: ExchangeSummary, how: str, reaction: ReactionMessages) -> ReplyMatch:
    new = _accepts(past, reaction) if how != DISTINCTIVE else awaits_reaction(past, reaction)
    return ReplyMatch(past=past, how=how, has_new_reaction=new or revises_reaction(past, reaction))


def _accepts(past: ExchangeSummary, reaction: ReactionMessages) -> bool:
    """Return whether the turn awaits this reaction, or was dropped as side traffic by its text alone and continues."""
    apparent = (
        past.cause is ReasonCode.SIDE
        and past.declared_kind is None
        and past.status is ExchangeStatus.DONE
    )
    return awaits_reaction(past, reaction) or (
        apparent and reaction.may_be_main and reaction.signature is not None
    )


def _named_replies(request: Request, index: ExchangeIndex) -> Mapping[bytes, ExchangeSummary]:
    """Return the replies that the client named (`previous_response_id`) in this request or its ancestors, by chain.

    The gateway put the named conversation before the new messages; omitted instructions change only the chain.
    """
    return dict(_walk_named(request, index))


def _walk_named(request: Request, index: ExchangeIndex) -> Iterator[tuple[bytes, ExchangeSummary]]:
    past = index.by_id(request.scope, request.previous) if request.previous else None
    for mark in reversed([m for m in request.marks if m.role == "assistant"]):
        if past is None:
            return
        delivered = past.finished_at is not None and past.finished_at <= request.admitted_at
        if past.reply_own == mark.own and delivered and mismatch(request, past) is None:
            yield mark.chain, past
            past = index.by_id(request.scope, past.previous) if past.previous else None
