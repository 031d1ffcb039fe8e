"""Pass 1 of linking: the earlier exchanges that may have given each assistant message of a request.

The candidates, from the most certain: the exchange that made the message's tool calls, the reply that the client named
(`previous_response_id`), those with an equal hash chain (the same history up to and including the reply), those with
the same history whose reply the client ended with a stop string that it had requested, and those that gave a
distinctive reply with the same text after any history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from openclaw_rl.collect.reply_slot import ReplySlot, mismatch
from openclaw_rl.common.message_hash import (
    CHAIN_ROOT,
    canonical_calls,
    message_text,
    own_hash,
    tool_call_ids,
)
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Kind, Message, Request


def find_candidates(request: Request, index: ExchangeIndex) -> list[ReplySlot]:
    """Return a slot for each assistant message, in order, with the exchanges that may have given it."""
    scope = request.scope
    slots = [
        ReplySlot(at=at, mark=mark, history=request.marks[at - 1].chain if at else CHAIN_ROOT)
        for at, mark in enumerate(request.marks)
        if mark.role == "assistant"
    ]
    # Own hash of a reply -> what an exchange with this reply names differently.
    differences: dict[bytes, str] = {}

    same_chain = index.by_chain(scope, {slot.mark.chain for slot in slots})
    by_chain = _group_delivered(same_chain, "reply_chain", request, differences)
    if request.previous is not None:
        by_chain |= {chain: [past] for chain, past in _named_replies(request, index)}
    callers = _find_callers(slots, request, index, differences)

    unsure = [s for s in slots if not callers.get(s.at) and s.mark.chain not in by_chain]
    same_history = index.by_context(scope, {slot.history for slot in unsure})
    by_history = _group_delivered(same_history, "context_chain", request, differences)
    # In an episode replies are few, and no others are searched.
    is_any_searched = request.episode is not None
    owns = {slot.mark.own for slot in unsure if slot.mark.distinctive or is_any_searched}
    by_text = _group_delivered(index.by_own(scope, owns), "reply_own", request, differences)

    out = []
    for slot in slots:
        same_reply = by_chain.get(slot.mark.chain, [])
        earlier = by_history.get(slot.history, [])
        stopped = _without_stop_string(slot, earlier, request, index) if earlier else []
        declared = {past.declared_kind for past in same_reply}
        with_candidates = replace(
            slot,
            callers=tuple(callers.get(slot.at, ())),
            equal=tuple(same_reply or stopped),
            same_history=tuple(earlier),
            same_text=tuple(by_text.get(slot.mark.own, [])),
            is_declared_side=declared == {Kind.SIDE},
            difference=differences.get(slot.mark.own),
        )
        out.append(with_candidates)
    return out


def _group_delivered(
    pasts: Iterable[ExchangeSummary],
    hash_name: str,
    request: Request,
    differences: dict[bytes, str],
) -> dict[bytes, list[ExchangeSummary]]:
    """Return the exchanges whose reply ended before the request, which names no other session, user or agent.

    What the others name differently is added to `differences`.
    """
    out: dict[bytes, list[ExchangeSummary]] = {}
    for past in pasts:
        if not past.ended_by(request.admitted_at):
            continue
        difference = mismatch(request, past)
        if difference is None:
            out.setdefault(getattr(past, hash_name), []).append(past)
        elif past.reply_own is not None:
            differences[past.reply_own] = difference
    return out


def _find_callers(
    slots: Sequence[ReplySlot],
    request: Request,
    index: ExchangeIndex,
    differences: dict[bytes, str],
) -> dict[int, list[ExchangeSummary]]:
    """Return the exchanges that made the tool calls of an assistant message, by position: the only one that has these
    ids, or one for each of the replies whose calls the client merged, in their order. The agent may differ, as agents
    hand conversations over to each other."""
    if not request.messages:
        # The request is redacted.
        return {}
    calls = [tool_call_ids(request.messages[slot.mark.index]) for slot in slots]
    owners = index.by_tool_call(request.scope, {id_ for ids in calls for id_ in ids})
    out: dict[int, list[ExchangeSummary]] = {}
    for slot, ids in zip(slots, calls, strict=True):
        message = request.messages[slot.mark.index]
        callers = {past.id: past for id_ in ids for past in owners.get(id_, ())}
        if len(callers) != 1:
            pasts = [owners.get(id_, []) for id_ in ids]
            out[slot.at] = _merged_callers(pasts, message, request, index) if callers else []
            continue
        (past,) = callers.values()
        is_equal = past.reply_own == slot.mark.own
        if not is_equal and not _made_calls([past], message, index):
            continue
        difference = mismatch(request, past, any_agent=True)
        if difference is not None:
            differences[slot.mark.own] = difference
        elif past.ended_by(request.admitted_at):
            out[slot.at] = [past]
    return out


def _merged_callers(
    pasts_by_id: Sequence[Sequence[ExchangeSummary]],
    message: Message,
    request: Request,
    index: ExchangeIndex,
) -> list[ExchangeSummary]:
    """Return the exchanges that made the calls of a message, in their order; none if a call may be of two of them.

    `pasts_by_id`: those with the id of each call.
    """
    if any(len(pasts) != 1 for pasts in pasts_by_id):
        return []
    callers = {past.id: past for (past,) in pasts_by_id}
    allowed = [
        past
        for past in callers.values()
        if past.ended_by(request.admitted_at) and mismatch(request, past, any_agent=True) is None
    ]
    if len(allowed) != len(callers) or not _made_calls(allowed, message, index):
        return []
    return sorted(allowed, key=lambda past: past.seq)


def _made_calls(pasts: Sequence[ExchangeSummary], message: Message, index: ExchangeIndex) -> bool:
    """Return whether the exchanges together made all calls of the message, with the same names and arguments."""
    all_calls: dict[str, tuple[str, str]] = {}
    for reply in index.reply_messages(pasts).values():
        all_calls |= canonical_calls(reply)
    return canonical_calls(message).items() <= all_calls.items()


def _without_stop_string(
    slot: ReplySlot, earlier: Sequence[ExchangeSummary], request: Request, index: ExchangeIndex
) -> list[ExchangeSummary]:
    """Return the exchanges with this history whose reply is the message without one of their stop strings.

    Behind it may follow what the client writes under another stop string (smolagents: "Calling tools:").
    """
    if not request.messages:
        return []
    message = request.messages[slot.mark.index]
    text = message_text(message)
    stop_strings = index.stop_strings(earlier)
    out = []
    for past in earlier:
        stops = [stop.rstrip() for stop in stop_strings.get(past.id, ())]
        hashes = {
            own_hash({**message, "content": before}, index.secret)
            for before in _cut_at_stop_strings(text, [stop for stop in stops if stop])
        }
        if past.reply_own in hashes:
            out.append(past)
    return out


def _cut_at_stop_strings(text: str, stops: Sequence[str]) -> Iterator[str]:
    """Yield the text before each stop string, if nothing or another stop string follows it."""
    for stop in stops:
        before, separator, after = text.partition(stop)
        if separator and (not after.strip() or after.lstrip().startswith(tuple(stops))):
            yield before


def _named_replies(
    request: Request, index: ExchangeIndex
) -> Iterator[tuple[bytes, ExchangeSummary]]:
    """Yield the replies that the client named (`previous_response_id`) in this request or its ancestors, by chain.

    The gateway put the named conversation before the new messages; omitted instructions change only the chain.
    """
    previous = request.previous
    replies = [mark for mark in request.marks if mark.role == "assistant"]
    while previous:
        past = index.by_id(request.scope, previous)
        if past is None or not past.ended_by(request.admitted_at):
            return
        if mismatch(request, past) is not None:
            return
        # The message with its reply, behind any that the client added.
        while replies and replies[-1].own != past.reply_own:
            replies.pop()
        if not replies:
            return
        yield replies.pop().chain, past
        previous = past.previous
