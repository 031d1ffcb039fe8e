"""Match the replies of tool loops that a client sends back without their calls and results, or with its texts joined.

Most programs keep only the question and the final answer once a loop has ended. The loop is then found by the history
in front of it: the first step answered the same history, each further step continued the one before, and the last step
gave the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openclaw_rl.collect.reply_slot import (
    SEQUENCE,
    ReactionEffect,
    ReactionMessages,
    ReplySlot,
    mismatch,
    reaction_effect,
)
from openclaw_rl.common.message_hash import reaction_signature, tool_call_ids, visible_text
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import ExchangeStatus, Kind, Message, Request

MAX_LOOPS = 8
MAX_STEPS = 64
"""Loops behind one history that are followed, and all their steps. Each is looked up; of more, several may fit."""


def match_loop(slot: ReplySlot, request: Request, index: ExchangeIndex) -> ReplySlot:
    """Match a reply without calls to the only last step, behind the same history, of a loop that gave this text."""
    if not request.messages:
        # The request is redacted.
        return slot
    message = request.messages[slot.mark.index]
    if tool_call_ids(message) or len(slot.same_history) > MAX_LOOPS:
        return slot
    ends = _find_ends(message, slot.same_history, request, index)
    if len(ends) > 1:
        detail = f"ambiguous: {len(ends)} tool loops behind the same history ended with this text"
        return replace(slot, unlinked=Reason(ReasonCode.AMBIGUOUS, detail))
    if not ends:
        return slot
    (past,) = ends
    is_new = reaction_effect(past, slot.reaction) is not ReactionEffect.NONE
    return replace(slot, past=past, how=SEQUENCE, has_new_reaction=is_new)


def _find_ends(
    message: Message, first_steps: Sequence[ExchangeSummary], request: Request, index: ExchangeIndex
) -> list[ExchangeSummary]:
    """Return the last steps of loops whose texts, from any of the steps on, are the text of the message.

    A client keeps the words beside a call, or leaves them out with it. White space is not compared: clients put their
    own between the texts.
    """
    # Each step with the texts that may be left for it and the later ones.
    steps = [(past, frozenset({_letters(message)})) for past in first_steps]
    ends = []
    # The list grows while it is read.
    for number, (past, lefts) in enumerate(steps):
        if number >= MAX_STEPS:
            return []
        reply = index.reply_messages([past]).get(past.id, {})
        part = _letters(reply)
        if reply.get("tool_calls"):
            lefts |= {left.removeprefix(part) for left in lefts if left.startswith(part)}
            later = _continuations(past, request, index)
            steps += [(next_step, lefts) for next_step in later]
        elif part and part in lefts and past not in first_steps:
            ends.append(past)
    return ends


def _letters(message: Message) -> str:
    """Return the text of a message without any white space."""
    return "".join(visible_text(message).split())


def _continuations(
    past: ExchangeSummary, request: Request, index: ExchangeIndex
) -> list[ExchangeSummary]:
    """Return the delivered main turns that continued a turn, and name no other session, user or agent."""
    return [
        later
        for later in index.by_parent(request.scope, past.session, past.id)
        if later.kind is Kind.MAIN
        if later.status is ExchangeStatus.DONE
        if later.ended_by(request.admitted_at) and mismatch(request, later, any_agent=True) is None
    ]


def answers_to_tools(
    pasts: Sequence[ExchangeSummary], index: ExchangeIndex
) -> list[ExchangeSummary]:
    """Return the exchanges whose request ends with a tool result."""
    marks = index.marks(pasts)
    return [past for past in pasts if [mark.role for mark in marks[past.id][-1:]] == ["tool"]]


def pass_words_on(slot: ReplySlot, request: Request, index: ExchangeIndex) -> ReplySlot:
    """Return the slot with the turn that a person's words behind tool calls or their results are about.

    If the turn of the calls was continued with a reply to its results, the person has read that reply: a client that
    sends it elsewhere, or not at all, must not put the words on the call. If several replies continued it, none gets
    them. If none did (the person stopped it), they are about the call.
    """
    past = slot.past
    if past is None or not slot.reaction.is_last:
        return slot
    answers = answers_to_tools(_continuations(past, request, index), index)
    if not answers:
        return slot
    if len(answers) > 1:
        detail = f"ambiguous: {len(answers)} replies to the tool results in front of the words"
        reason = Reason(ReasonCode.AMBIGUOUS, detail)
        return replace(slot, has_new_reaction=False, unlinked=reason)
    (answer,) = answers
    roles = [mark.role for mark in slot.reaction.marks]
    spoken = slot.reaction.marks[roles.index("user") :]
    reaction = ReactionMessages(
        marks=spoken,
        signature=reaction_signature(spoken),
        is_last=True,
        from_person=True,
    )
    is_new = reaction_effect(answer, reaction) is not ReactionEffect.NONE
    return replace(
        slot, past=answer, how=SEQUENCE, reaction=reaction, has_new_reaction=is_new, unlinked=None
    )
