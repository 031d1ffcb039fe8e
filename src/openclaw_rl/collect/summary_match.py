"""Find the turn before a summary that has replaced the history of a conversation.

A summary is the reply of a side call. What the person writes next reacts to the last turn before that call. The summary
stands in a later request as an assistant message (`reply_match.py` finds it), or in a system or user message behind
words by which a known client introduces it, or as the whole first user message (Crush, Gemini CLI).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from openclaw_rl.collect.reply_slot import ReactionMessages, mismatch
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common.message_hash import (
    DISTINCTIVE_CHARS,
    own_hash,
    reaction_signature,
    visible_text,
)
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Kind, Message, Request

_SUMMARY = "the summary in place of its history"
_MAX_CLIENT_MESSAGES = 16
"""Messages of the client before a summary that opens a conversation. Each is read, and each place is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedHistory:
    """A history that is only a summary, and what the person wrote after it."""

    turn: ExchangeSummary | None = None  # the last turn before the summary
    reaction: ReactionMessages = field(default_factory=ReactionMessages)
    unlinked: Reason | None = None  # why no turn was found


NOT_REPLACED = ReplacedHistory()


def find_replaced_history(
    request: Request, index: ExchangeIndex, sides: TrafficClassifier
) -> ReplacedHistory:
    """Find the turn before a summary in place of the request's history. An assistant message after the summary is what
    the person reacts to: then this returns `NOT_REPLACED`, unless the client itself wrote that message."""
    if not request.messages:
        return NOT_REPLACED
    for at in range(len(request.marks) - 1, -1, -1):
        message = request.messages[request.marks[at].index]
        if request.marks[at].role == "assistant":
            if not sides.is_acknowledgement(message):
                break
            continue
        summary = sides.introduced_summary(message) or _side_reply(request, at, index, sides)
        if summary is not None:
            return _find_turn(summary, _reaction_after(request, at, sides), request, index)
    return NOT_REPLACED


def _side_reply(
    request: Request, at: int, index: ExchangeIndex, sides: TrafficClassifier
) -> str | None:
    """Return the text of the user message at mark `at` if it opens the conversation and is the reply of a side call.

    Only what the client itself wrote may stand before it. A system message does not count as the summary: clients put
    what they remember into those of other conversations.
    """
    mark = request.marks[at]
    if mark.role != "user" or not mark.distinctive or at > _MAX_CLIENT_MESSAGES:
        return None
    for earlier in request.marks[:at]:
        message = request.messages[earlier.index]
        if earlier.role != "system" and not _is_client_message(message, sides):
            return None
    text = visible_text(request.messages[mark.index]).strip()
    equal = index.by_own(request.scope, {_reply_hash(text, index)})
    return text if any(past.kind is Kind.SIDE for past in equal) else None


def _reply_hash(text: str, index: ExchangeIndex) -> bytes:
    return own_hash({"role": "assistant", "content": text}, index.secret)


def _reaction_after(request: Request, at: int, sides: TrafficClassifier) -> ReactionMessages:
    later = [
        m
        for m in request.marks[at + 1 :]
        if not _is_client_message(request.messages[m.index], sides)
    ]
    if not any(m.role == "user" for m in later):
        return ReactionMessages()
    return ReactionMessages(
        marks=tuple(later),
        signature=reaction_signature(later),
        is_last=True,
        from_person=True,
    )


def _is_client_message(message: Message, sides: TrafficClassifier) -> bool:
    if message.get("role") == "assistant":
        return sides.is_acknowledgement(message)
    is_prompt = message.get("role") == "user" and sides.is_client_prompt(message)
    return is_prompt or sides.is_client_text(message)


def _find_turn(
    summary: str, reaction: ReactionMessages, request: Request, index: ExchangeIndex
) -> ReplacedHistory:
    """Find the turn before the exchange that wrote the summary, if all that wrote it are of one conversation."""
    if len(summary) < DISTINCTIVE_CHARS:
        detail = f"{_SUMMARY} has under {DISTINCTIVE_CHARS} characters"
        return ReplacedHistory(unlinked=Reason(ReasonCode.SHORT_TEXT, detail))
    equal = index.by_own(request.scope, {_reply_hash(summary, index)})
    differences = [mismatch(request, past) for past in equal]
    delivered = [
        past
        for past, difference in zip(equal, differences, strict=True)
        if difference is None and past.ended_by(request.admitted_at)
    ]
    turns: dict[str, ExchangeSummary] = {}
    for past in delivered:
        turn = turn_before_summary(past, index)
        if turn is not None:
            turns[turn.session] = turn
    if len(turns) == 1:
        return ReplacedHistory(turn=next(iter(turns.values())), reaction=reaction)
    different = next(filter(None, differences), None)
    if turns:
        detail = f"ambiguous: {len(turns)} conversations have the same summary"
        reason = Reason(ReasonCode.AMBIGUOUS, detail)
    elif delivered:
        reason = Reason(ReasonCode.UNKNOWN_TURN, f"the turn before {_SUMMARY} is not known")
    elif different is not None:
        reason = Reason(ReasonCode.OTHER_NAME, f"{_SUMMARY} was given under another {different}")
    else:
        reason = Reason(ReasonCode.NOT_OURS, f"{_SUMMARY} is no reply of this gateway")
    return ReplacedHistory(unlinked=reason)


def turn_before_summary(side: ExchangeSummary, index: ExchangeIndex) -> ExchangeSummary | None:
    """Return the last turn before the call that wrote a summary: its parent if its request has the conversation as
    messages, else the turn whose reply its prompt quotes. None if that was a side call, too, whose reply is no draft
    of the summary."""
    past = index.by_id(side.scope, side.parent) if side.parent else _quoted_turn(side, index)
    if past is None or past.kind is not Kind.SIDE:
        return past
    turn = None
    if past.parent and _is_draft(past, side, index):
        turn = index.by_id(side.scope, past.parent)
    if turn is None or turn.kind is Kind.SIDE:
        return None
    return turn


def _is_draft(earlier: ExchangeSummary, side: ExchangeSummary, index: ExchangeIndex) -> bool:
    """Return whether the client had the reply of an earlier side call checked (Gemini CLI).

    It keeps that reply in the history, but not its prompt. Of a heartbeat, a client keeps both.
    """
    prompt = index.last_messages([earlier]).get(earlier.id)
    return prompt is not None and prompt not in index.message_hashes(side)


def _quoted_turn(side: ExchangeSummary, index: ExchangeIndex) -> ExchangeSummary | None:
    """Return the only turn that is the newest of its session and whose distinctive reply the side call's prompt quotes.

    An older turn of the session does not count: the conversation has gone on since, with a reply that is not quoted.
    """
    prompt = index.prompt_text(side)
    sessions = set()
    quoted = []
    for past, reply in index.main_replies_before(side.scope, side.seq):
        if not past.ended_by(side.admitted_at) or _names_another(side, past):
            continue
        is_newest = past.session not in sessions
        sessions.add(past.session)
        if is_newest and len(reply) >= DISTINCTIVE_CHARS and reply in prompt:
            quoted.append(past)
    return quoted[0] if len(quoted) == 1 else None


def _names_another(side: ExchangeSummary, past: ExchangeSummary) -> bool:
    """Return whether both name a session or a user, and not the same."""
    pairs = ((side.session_header, past.session_header), (side.user, past.user))
    return any(name and other and name != other for name, other in pairs)
