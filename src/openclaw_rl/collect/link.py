"""Which earlier turns does a new request answer? Pure: hashes in, decisions out (decision 6 of the design).

A turn is found again by our own reply standing in a later history: the one that the client itself named, else by the
exact chain (the same history up to and including the reply), else by a distinctive reply that only one exchange ever
gave. A wrong link is a wrong gradient, a missing one is only a lost sample: whatever is not clear stays unlinked, with
its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.collect.traffic import Sides
from openclaw_rl.common.message_hash import signature_of, visible_text
from openclaw_rl.store.exchange_index import Past
from openclaw_rl.store.turn_states import Cause
from openclaw_rl.types import Capture, ExchangeStatus, Kind, Mark, Request, TurnState

EXACT, DISTINCTIVE = "exact", "distinctive"
WAITING = frozenset({Cause.TIMEOUT, Cause.SESSION_DONE, Cause.SUPERSEDED})
"""Dropped for want of a reaction: one that comes late reopens the turn."""


class Index(Protocol):
    """Where earlier exchanges are looked up. Each answer is in order of admission."""

    def by_chain(self, scope: str, chains: Collection[bytes]) -> Sequence[Past]: ...

    def by_own(self, scope: str, owns: Collection[bytes]) -> Sequence[Past]: ...

    def by_context(self, scope: str, chain: bytes) -> Sequence[Past]: ...

    def by_id(self, scope: str, id: str) -> Past | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An earlier turn and what this request says to it."""

    turn: str
    messages: tuple[int, ...]  # positions in the request's messages
    signature: bytes  # 16 bytes: of these messages' marks; the same words again have the same one
    how: str  # EXACT | DISTINCTIVE
    superseded: tuple[str, ...] = ()  # other replies to the same history: the conversation went on without them
    redacted: bool = False  # the words of turn or reaction were not kept, so there is nothing to judge
    was_side: bool = False  # it only looked like side traffic: the talk went on after it, so it is main


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Where a request stands, and what it answers."""

    session: str
    kind: Kind
    why_side: str | None
    parent: str | None
    relation: str  # fresh | continuation | regeneration | retry | sibling
    relation_of: str | None
    unlinked: str | None
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one assistant message of the history turned out to be."""

    past: Past | None = None
    how: str = EXACT
    closes: bool = False  # the reaction that follows it is news to the turn
    why_not: str | None = None


def link(request: Request, seq: int, index: Index, sides: Sides) -> Link:
    """Looks up the assistant messages of the history of exchange number `seq`, and decides. Changes nothing."""
    kind, why_side = sides.of(request)
    ours = [at for at, mark in enumerate(request.marks) if mark.role == "assistant"]
    candidates = _Candidates(request, [request.marks[at] for at in ours], index)
    reactions = {at: _reaction(request, at, sides, candidates) for at in ours}
    found = {
        at: candidates.find(
            request.marks[at], signature_of(reactions[at]), may_be_main=_may_be_main(request, at, sides)
        )
        for at in ours
    }
    known = [f.past for f in found.values() if f.past is not None]
    parent = known[-1] if known else None
    relation, relation_of = _relation(request, seq, index, parent)
    answers = () if kind is Kind.SIDE else _answers(request, seq, found, reactions, index)
    return Link(
        session=request.session or _session(request, parent, index),
        kind=kind,
        why_side=why_side,
        parent=parent.id if parent else None,
        relation=relation,
        relation_of=relation_of,
        unlinked=_unlinked(found) if ours and parent is None else None,
        answers=answers,
    )


def compatible(request: Request, past: Past) -> bool:
    """False where both sides name a session, user or agent, and not the same one."""
    pairs = (request.session, past.header), (request.user, past.user), (request.agent, past.agent)
    return all(not a or not b or a == b for a, b in pairs)


def _delivered(request: Request, past: Past) -> bool:
    """Its reply may stand in the history of the request."""
    return past.finished_at is not None and past.finished_at <= request.admitted_at and compatible(request, past)


def _session(request: Request, parent: Past | None, index: Index) -> str:
    """Of several replies to one call (`n`) that begin a conversation, the first one's; its id is the others' stem."""
    if parent is not None:
        return parent.session
    stem, _, number = request.id.rpartition(".")
    first = index.by_id(request.scope, stem) if number.isdecimal() else None
    together = first is not None and first.admitted_at == request.admitted_at
    return first.session if first is not None and together else request.id


def _named(request: Request, index: Index) -> Mapping[bytes, Past]:
    """By the chain of its mark: each reply that the client named (`previous_response_id`), here or on the way here.

    The named conversation was put before what is new, so instructions that were left out change no more than the chain.
    """
    out: dict[bytes, Past] = {}
    past = index.by_id(request.scope, request.previous) if request.previous else None
    for mark in reversed([m for m in request.marks if m.role == "assistant"]):
        if past is None:
            break
        if past.reply_own == mark.own and _delivered(request, past):
            out[mark.chain] = past
            past = index.by_id(request.scope, past.previous) if past.previous else None
    return out


class _Candidates:
    """The earlier exchanges that may have given the assistant messages of one request."""

    def __init__(self, request: Request, marks: Sequence[Mark], index: Index) -> None:
        self._request = request
        owns = {m.own for m in marks if m.distinctive}
        self._by_chain = self._group(index.by_chain(request.scope, {m.chain for m in marks}), "reply_chain")
        self._by_chain |= {chain: [past] for chain, past in _named(request, index).items()}
        self._by_own = self._group(index.by_own(request.scope, owns), "reply_own")
        self._times = Counter(m.own for m in marks)

    def _group(self, pasts: Sequence[Past], key: str) -> dict[bytes, list[Past]]:
        out: dict[bytes, list[Past]] = {}
        for past in pasts:
            if _delivered(self._request, past):
                out.setdefault(getattr(past, key), []).append(past)
        return out

    def is_side(self, mark: Mark) -> bool:
        """Its client has said so: words alone only look like it."""
        exact = self._by_chain.get(mark.chain, ())
        return bool(exact) and all(past.told is Kind.SIDE for past in exact)

    def find(self, mark: Mark, signature: bytes | None, *, may_be_main: bool = False) -> _Found:
        """The exchange whose reply `mark` is, and whether the reaction with this signature is news to its turn.

        `may_be_main`: were it dropped for looking like side traffic, this reaction shows that it was none.
        """
        exact = self._by_chain.get(mark.chain, [])
        if exact:
            return self._among_equals(exact, signature, may_be_main)
        if not mark.distinctive:
            return _Found(why_not="a reply under 24 characters is only found in an unchanged history")
        same = self._by_own.get(mark.own, [])
        if len(same) > 1 or (same and self._times[mark.own] > 1):
            times = max(len(same), self._times[mark.own])
            return _Found(why_not=f"ambiguous: {times} replies have the very same words")
        if not same:
            return _Found(why_not="its replies are none of ours")
        return _Found(past=same[0], how=DISTINCTIVE, closes=signature is not None and _waits(same[0], signature))

    def _among_equals(self, exact: Sequence[Past], signature: bytes | None, may_be_main: bool) -> _Found:
        """Same history, same reply: they are exchangeable. One that knows the reaction has it, else the first open."""
        ranked = sorted(exact, key=lambda p: (p.header != self._request.session, p.seq))
        if signature is None:
            return _Found(past=ranked[0])
        knows = next((p for p in ranked if signature in p.signatures), None)
        if knows is not None:
            return _Found(past=knows)
        waits = next((p for p in ranked if _waits(p, signature) or (may_be_main and _only_looked_side(p))), None)
        if waits is not None:
            return _Found(past=waits, closes=True)
        # The person went back and said something else: the newer words count. Whose they are must be clear.
        revised = len(ranked) == 1 and ranked[0].state in (TurnState.CLOSED, TurnState.JUDGED)
        return _Found(past=ranked[0], closes=revised)


def _waits(past: Past, signature: bytes) -> bool:
    """The turn has no reaction from a conversation yet, and may still get one."""
    if signature in past.signatures:
        return False
    if past.state is TurnState.DROPPED:
        return past.cause in WAITING
    return past.state is TurnState.SERVED or not past.signatures


def _only_looked_side(past: Past) -> bool:
    """Its words alone made it side, and its reply was delivered whole."""
    return past.cause is Cause.SIDE and past.told is None and past.status is ExchangeStatus.DONE


def _may_be_main(request: Request, at: int, sides: Sides) -> bool:
    """The prompt of mark `at` is not certainly the client's own (a heartbeat). Without words nothing is known."""
    before = request.messages[: request.marks[at].index]  # with passing messages: what is left of a heartbeat is one
    prompt = next((m for m in reversed(before) if m.get("role") == "user"), None)
    return bool(request.messages) and not (prompt is not None and sides.certain(prompt))


def _reaction(request: Request, at: int, sides: Sides, candidates: _Candidates) -> tuple[Mark, ...]:
    """Everything after mark `at` up to the next reply of the main conversation.

    Side calls that some clients leave in the history (a heartbeat and its answer) are stepped over: their prompt is
    nobody's reaction. Only certain ones: after words that merely look like one, the next words are about its reply.
    So they are after a wake that told the person something. The request's own last words are never taken for a side
    call: its kind has been decided.
    """
    kept: list[Mark] = []
    run: list[Mark] = []
    aside, since = False, request.marks[at].index
    for mark in request.marks[at + 1 :]:
        if mark.role != "assistant":
            run.append(mark)
            continue
        genuine = [m for m in run if not _is_interlude(request, m, sides)]
        used = aside and all(m.role == "tool" for m in genuine)  # tools that a side call used
        kept += [m for m in genuine if not (aside and m.role == "tool")]
        woken = _woken(request, since, mark.index, sides)
        aside = candidates.is_side(mark) or (bool(run or woken) and (used or not genuine))
        if not aside or (woken and visible_text(request.messages[mark.index])):
            return tuple(kept)
        run, since = [], mark.index
    return (*kept, *run)


def _woken(request: Request, after: int, before: int, sides: Sides) -> bool:
    """Between these positions stands what is left of a wake. Its answer is kept only where the person was told it."""
    passing = {*range(after + 1, before)} - {m.index for m in request.marks}
    return bool(request.messages) and any(sides.certain(request.messages[i]) for i in passing)


def _is_interlude(request: Request, mark: Mark, sides: Sides) -> bool:
    return mark.role == "user" and bool(request.messages) and sides.certain(request.messages[mark.index])


def _relation(request: Request, seq: int, index: Index, parent: Past | None) -> tuple[str, str | None]:
    """What the request is to the newest earlier one with the same history, by how that one stood at the time."""
    if request.marks:
        same = index.by_context(request.scope, request.marks[-1].chain)
        earlier = [p for p in same if p.seq < seq and compatible(request, p)]
        if earlier:
            return _relation_to(earlier[-1], request.admitted_at), earlier[-1].id
    return ("continuation" if parent else "fresh"), None


def _relation_to(past: Past, at: float) -> str:
    if past.finished_at is None or past.finished_at > at:
        return "sibling"
    return "regeneration" if past.status is ExchangeStatus.DONE else "retry"


def _answers(
    request: Request, seq: int, found: Mapping[int, _Found], reactions: Mapping[int, tuple[Mark, ...]], index: Index
) -> tuple[Answer, ...]:
    out = []
    for at, f in found.items():
        signature = signature_of(reactions[at])
        if f.past is None or signature is None or not f.closes:
            continue
        redacted = Capture.REDACTED in (request.capture, f.past.capture)
        if redacted and f.past.state is not TurnState.SERVED:
            continue
        out.append(
            Answer(
                turn=f.past.id,
                messages=tuple(m.index for m in reactions[at]),
                signature=signature,
                how=f.how,
                superseded=_superseded(request, seq, f.past, index),
                redacted=redacted,
                was_side=f.past.cause is Cause.SIDE,
            )
        )
    return tuple(out)


def _superseded(request: Request, seq: int, chosen: Past, index: Index) -> tuple[str, ...]:
    """The other open replies to the history that `chosen` replied to."""
    if chosen.context_chain is None:
        return ()
    return tuple(
        p.id
        for p in index.by_context(request.scope, chosen.context_chain)
        if p.id != chosen.id and p.seq < seq and p.state is TurnState.SERVED and compatible(request, p)
    )


def _unlinked(found: Mapping[int, _Found]) -> str:
    reasons = dict.fromkeys(f.why_not for f in found.values() if f.why_not)
    return f"no reply in its history ({len(found)}) could be linked: " + "; ".join(reasons)
