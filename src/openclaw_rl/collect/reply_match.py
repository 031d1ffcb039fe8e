"""Pass 3 of linking: which of the candidates gave each reply of a request's history.

The ways, from the most certain: the reply that the client named (`previous_response_id`), a tool call id of this
gateway, an equal hash chain (the same history up to and including the reply), the same history and a reply to which
the client added a stop string that it had requested, the only short reply with this text that continued the linked
reply before it, the last step of a tool loop that began behind the same history (`tool_loop.py`), and a distinctive
reply that only one exchange gave. The last one also needs a tie: the same message before the reply, a session, user or
agent that both name, a summary by this gateway in front of it, another reply of the same session in the request, or
the question that the reply answered (`answered_question.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from openclaw_rl.collect.answered_question import find_askers
from openclaw_rl.collect.reply_slot import (
    DISTINCTIVE,
    EXACT,
    SEQUENCE,
    TOOL_CALL,
    ReactionEffect,
    ReplySlot,
    mismatch,
    reaction_effect,
)
from openclaw_rl.collect.tool_loop import answers_to_tools, match_loop, pass_words_on
from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, message_text
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Kind, Request

_NEW = (ReactionEffect.FIRST, ReactionEffect.REVISION)
_ACCEPTED = (ReactionEffect.FIRST, ReactionEffect.CONTINUATION)
"""Effects for which a turn is chosen among several that gave the same reply to the same history."""


def match_replies(
    slots: Sequence[ReplySlot], request: Request, index: ExchangeIndex
) -> list[ReplySlot]:
    """Return the slots with their matches."""
    out: list[ReplySlot] = []
    for slot in slots:
        matched = _match_certain(slot, request)
        if matched.past is None and out:
            matched = _match_next(slot, out[-1], request, index)
        if matched.past is None and slot.same_history:
            matched = match_loop(slot, request, index)
        if matched.reaction.is_behind_calls:
            matched = pass_words_on(matched, request, index)
        out.append(matched)
    return _match_by_text(out, request, index)


def _match_certain(slot: ReplySlot, request: Request) -> ReplySlot:
    """Match a reply by its tool calls, or among equal replies to equal histories.

    Of these it is the one that has the reaction, else the one that was delivered last of those that await one; of the
    same session first, then of the same version. Replies to requests that name the same session, user and agent as this
    one exclude the others: those may be another person's, who asked and said the same.
    """
    reaction = slot.reaction
    if len(slot.callers) > 1:
        # Whose results are whose is not looked at: the mixed results are no reaction.
        detail = f"the client merged the tool calls of {len(slot.callers)} replies into one message"
        reason = Reason(ReasonCode.MERGED_CALLS, detail)
        return replace(slot, past=slot.callers[-1], how=TOOL_CALL, unlinked=reason)
    if slot.callers:
        (caller,) = slot.callers
        is_new = reaction_effect(caller, reaction) is not ReactionEffect.NONE
        how = EXACT if caller.reply_chain == slot.mark.chain else TOOL_CALL
        return replace(slot, past=caller, how=how, has_new_reaction=is_new)
    if not slot.equal:
        return slot
    names = (request.session, request.user, request.agent)
    same_names = [p for p in slot.equal if (p.session_header, p.user, p.agent) == names]
    ranked = sorted(
        same_names or slot.equal,
        key=lambda past: (
            past.session_header != request.session,
            past.version != request.version,
            -(past.finished_at or 0.0),
            -past.seq,
        ),
    )
    knows = [past for past in ranked if reaction.signature in past.signatures]
    accepts = [past for past in ranked if reaction_effect(past, reaction) in _ACCEPTED]
    best = ranked[0]
    is_new = False
    if knows:
        best = knows[0]
    elif accepts:
        best = accepts[0]
        is_new = True
    elif len(ranked) == 1:
        is_new = reaction_effect(best, reaction) is ReactionEffect.REVISION
    return replace(slot, past=best, how=EXACT, has_new_reaction=is_new)


def _match_next(
    slot: ReplySlot, before: ReplySlot, request: Request, index: ExchangeIndex
) -> ReplySlot:
    """Match a short reply that continued the linked reply before it, if only one such reply has this text.

    The message that it answered must stand between the two; only tool results may be left out. Earlier parts of the
    history may have changed.
    """
    earlier = before.past
    if slot.mark.distinctive or earlier is None:
        return slot
    pasts = []
    difference = slot.difference
    for past in index.by_own_in_session(request.scope, earlier.session, slot.mark.own):
        continues = past.parent == earlier.id and past.kind is not Kind.SIDE
        if not continues or not past.ended_by(request.admitted_at):
            continue
        different = mismatch(request, past)
        if different is None:
            pasts.append(past)
        else:
            difference = different
    last = index.last_messages(pasts)
    between = {mark.own for mark in request.marks[before.at + 1 : slot.at]}
    answering = [past for past in pasts if last.get(past.id) in between]
    pasts = answering if between else answers_to_tools(pasts, index)
    if len(pasts) != 1:
        return replace(slot, difference=difference)
    (past,) = pasts
    is_new = reaction_effect(past, slot.reaction) is not ReactionEffect.NONE
    return replace(slot, past=past, how=SEQUENCE, has_new_reaction=is_new)


def _match_by_text(
    slots: Sequence[ReplySlot], request: Request, index: ExchangeIndex
) -> list[ReplySlot]:
    """Match the distinctive replies that are not matched yet, by their ties to this request."""
    unmatched = [slot for slot in slots if slot.past is None]
    same_texts = chain.from_iterable(slot.same_text for slot in unmatched)
    last = index.last_messages(list(same_texts))
    # By the position of a reply: the candidates with a tie to this request.
    tied = {slot.at: _find_tied(slot, request, index, last) for slot in unmatched}
    # The sessions of matched replies and of these candidates.
    pasts = [slot.past for slot in slots if slot.past is not None]
    pasts.extend(chain.from_iterable(tied.values()))
    sessions = {past.session for past in pasts}
    counts = Counter(slot.mark.own for slot in slots)
    out = {slot.at: slot for slot in slots}
    for slot in unmatched:
        candidates = tied[slot.at]
        if not candidates:
            candidates = [
                past
                for past in slot.same_text
                if past.kind is Kind.SIDE or past.session in sessions
            ]
        if slot.same_text and not candidates:
            candidates = find_askers(slot, request, index)
        count = counts[slot.mark.own]
        out[slot.at] = _match_distinctive(slot, candidates, count)
    return list(out.values())


def _find_tied(
    slot: ReplySlot, request: Request, index: ExchangeIndex, last: Mapping[str, bytes]
) -> list[ExchangeSummary]:
    """Return the candidates with the same distinctive reply that have a tie to this request.

    `last`: own hash of the last message of each candidate's request, by exchange id.
    """
    before = request.marks[slot.at - 1] if slot.at else None
    out = []
    for past in slot.same_text:
        pairs = (
            (request.session, past.session_header),
            (request.user, past.user),
            (request.agent, past.agent),
        )
        same_name = any(value and value == past_value for value, past_value in pairs)
        same_message = before is not None and last.get(past.id) == before.own
        if same_name or same_message or _follows_summary(slot, past, request, index):
            out.append(past)
    return out


def _follows_summary(
    slot: ReplySlot, past: ExchangeSummary, request: Request, index: ExchangeIndex
) -> bool:
    """Return whether the message before contains the reply of a side call that came after `past`: a summary that
    the client has put in place of the history before that reply."""
    if not slot.at or not request.messages:
        return False
    text = message_text(request.messages[request.marks[slot.at - 1].index])
    summaries = [s for s in index.side_replies_after(past) if len(s) >= DISTINCTIVE_CHARS]
    return any(summary in text for summary in summaries)


def _match_distinctive(
    slot: ReplySlot, candidates: Sequence[ExchangeSummary], count: int
) -> ReplySlot:
    """Match a distinctive reply to the only candidate. A summary that repeats a reply is not that reply.

    `count`: replies with this text in the request.
    """
    main = [past for past in candidates if past.kind is not Kind.SIDE] or candidates
    if len(main) == 1 and count == 1:
        past = main[0]
        is_new = reaction_effect(past, slot.reaction) in _NEW
        return replace(slot, past=past, how=DISTINCTIVE, has_new_reaction=is_new)
    return replace(slot, unlinked=_unlinked_reason(slot, count))


def _unlinked_reason(slot: ReplySlot, count: int) -> Reason:
    """Return why no exchange is known to have given a reply. `count`: replies with this text in the request."""
    if slot.unlinked is not None:
        return slot.unlinked
    same_text = max(len(slot.same_text), count)
    if slot.same_text and slot.mark.distinctive:
        if same_text > 1:
            detail = f"ambiguous: {same_text} replies have the same text"
            return Reason(ReasonCode.AMBIGUOUS, detail)
        detail = "the message before the reply is another one, and the requests share no session, user or agent"
        return Reason(ReasonCode.NO_TIE, detail)
    if slot.difference is not None and not slot.same_text:
        detail = f"its reply was given under another {slot.difference}"
        return Reason(ReasonCode.OTHER_NAME, detail)
    if slot.same_history and not slot.same_text:
        detail = "the client sends another text in place of the reply to the same history"
        return Reason(ReasonCode.OTHER_TEXT, detail)
    if not slot.mark.distinctive:
        detail = "a reply under 24 characters is only matched in an unchanged history"
        return Reason(ReasonCode.SHORT_TEXT, detail)
    detail = "its replies are not from this gateway, or were given under another API key"
    return Reason(ReasonCode.NOT_OURS, detail)
