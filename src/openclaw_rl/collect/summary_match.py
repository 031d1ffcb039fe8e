"""Find the turn before a summary that has replaced the history of a conversation.

A summary is the reply of a side call. What the person writes next reacts to the last turn before that call. The summary
stands in a later request as an assistant message (`reply_match.py` finds it), or in a system or user message behind
words by which a known client introduces it, or as the whole first user message (Crush, Gemini CLI).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from openclaw_rl.collect.reply_match import ReactionMessages, mismatch
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common.message_hash import (
    DISTINCTIVE_CHARS,
    own_hash,
    reaction_signature,
    visible_text,
)
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
    unlinked_reason: str | None = None  # reason if no turn was found


NOT_REPLACED = ReplacedHistory()


def find_replaced_history(
    request: Request, index: ExchangeIndex, sides: TrafficClassifier
) -> ReplacedHistory:
    """Find the turn before a summary in place of the request's history. An assistant message after the summary is what
    the person reacts to: then this returns `NOT_REPLACED`, unless the client itself wrote that message."""
    for at, mark in reversed(list(enumerate(request.marks)) if request.messages else []):
        if mark.role == "assistant":
            if not sides.is_acknowledgement(request.messages[mark.index]):
                break
            continue
        summary = sides.introduced_summary(request.messages[mark.index]) or _side_reply(
            request, at, index, sides
        )
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
    earlier = request.marks[:at]
    if mark.role != "user" or not mark.distinctive or at > _MAX_CLIENT_MESSAGES:
        return None
    if not all(
        m.role == "system" or _is_client_message(request.messages[m.index], sides) for m in earlier
    ):
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
    return sides.is_client_text(message) or (
        message.get("role") == "user" and sides.is_client_prompt(message)
    )


def _find_turn(
    summary: str, reaction: ReactionMessages, request: Request, index: ExchangeIndex
) -> ReplacedHistory:
    """Find the turn before the exchange that wrote the summary, if all that wrote it are of one conversation."""
    if len(summary) < DISTINCTIVE_CHARS:
        return ReplacedHistory(
            unlinked_reason=f"{_SUMMARY} has under {DISTINCTIVE_CHARS} characters"
        )
    equal = index.by_own(request.scope, {_reply_hash(summary, index)})
    wrote = [p for p in equal if _ended_by(p, request.admitted_at) and mismatch(request, p) is None]
    turns = {
        turn.session: turn
        for past in wrote
        if (turn := turn_before_summary(past, index)) is not None
    }
    if len(turns) == 1:
        return ReplacedHistory(turn=next(iter(turns.values())), reaction=reaction)
    if turns:
        reason = f"ambiguous: {len(turns)} conversations have the same summary"
    elif wrote:
        reason = f"the turn before {_SUMMARY} is not known"
    elif different := next((d for p in equal if (d := mismatch(request, p))), None):
        reason = f"{_SUMMARY} was given under another {different}"
    else:
        reason = f"{_SUMMARY} is no reply of this gateway"
    return ReplacedHistory(unlinked_reason=reason)


def _ended_by(past: ExchangeSummary, at: float) -> bool:
    return past.finished_at is not None and past.finished_at <= at


def turn_before_summary(side: ExchangeSummary, index: ExchangeIndex) -> ExchangeSummary | None:
    """Return the last turn before the call that wrote a summary: its parent if its request has the conversation as
    messages, else the turn whose reply its prompt quotes. None if that was a side call, too, whose reply is no draft
    of the summary."""
    past = index.by_id(side.scope, side.parent) if side.parent else _quoted_turn(side, index)
    if past is not None and past.kind is Kind.SIDE and past.parent and _is_draft(past, side, index):
        past = index.by_id(side.scope, past.parent)
    return past if past is not None and past.kind is not Kind.SIDE else None


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
    newest: dict[str, tuple[ExchangeSummary, str]] = {}
    for past, reply in index.main_replies_before(side.scope, side.seq):
        differs = _differ(side.session_header, past.session_header) or _differ(side.user, past.user)
        if _ended_by(past, side.admitted_at) and not differs:
            newest.setdefault(past.session, (past, reply))
    quoted = [
        past
        for past, reply in newest.values()
        if len(reply) >= DISTINCTIVE_CHARS and reply in prompt
    ]
    return quoted[0] if len(quoted) == 1 else None


def _differ(a: str | None, b: str | None) -> bool:
    return bool(a and b and a != b)
