"""Recognise replies of this gateway that stand in a request only inside other messages.

Some agents put the conversation before a hand-off into one message, or drop the messages with the tool calls. Such
replies are not linked, because a quotation does not show what the model saw. The reason is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from openclaw_rl.collect.reply_slot import mismatch
from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, message_text, visible_text
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Request

# As `render/tool_calls.py` makes them.
_CALL_ID = re.compile(r"\bcall_[0-9a-f]{24}\b")
_MAX_CALL_IDS = 100


def quotation_reason(request: Request, seq: int, index: ExchangeIndex) -> Reason | None:
    """Return why exchange number `seq` has no link although it has tool calls or texts of earlier replies, or None.

    In a conversation's first message the text of a reply counts only beside its question, because people quote replies
    there.
    """
    owners = index.by_tool_call(request.scope, _named_call_ids(request))
    for past in chain.from_iterable(owners.values()):
        if mismatch(request, past, any_agent=True) is None:
            detail = "its history names tool calls of this gateway, but has no assistant message with them"
            return Reason(ReasonCode.QUOTED, detail)
    if not request.messages:
        # The request is redacted.
        return None
    texts = [message_text(request.messages[mark.index]).strip() for mark in request.marks]
    is_first = sum(mark.role != "system" for mark in request.marks) < 2
    for past, reply in index.main_replies_before(request.scope, seq):
        if mismatch(request, past, any_agent=True) is not None or not _is_quoted(reply, texts):
            continue
        if not is_first or _is_question_quoted(past, texts, index):
            detail = "its history has a reply of this gateway only inside another message"
            return Reason(ReasonCode.QUOTED, detail)
    return None


def _is_question_quoted(past: ExchangeSummary, texts: Sequence[str], index: ExchangeIndex) -> bool:
    """Return whether the question of a turn stands in one of these texts, too: then it is the conversation."""
    asked = [visible_text(m) for m in index.messages(past) if m.get("role") == "user"]
    return (
        bool(asked) and len(asked[-1]) >= DISTINCTIVE_CHARS and any(asked[-1] in t for t in texts)
    )


def _is_quoted(reply: str, texts: Sequence[str]) -> bool:
    """Return whether a distinctive reply stands in one of these texts, beside other words."""
    if len(reply) < DISTINCTIVE_CHARS:
        return False
    return any(reply in text and reply != text for text in texts)


def _named_call_ids(request: Request) -> list[str]:
    """Return the first ids of tool calls of this gateway that stand in the messages."""
    ids: dict[str, None] = {}
    for message in request.messages:
        for text in (str(message.get("tool_call_id") or ""), message_text(message)):
            ids |= dict.fromkeys(_CALL_ID.findall(text))
    return list(ids)[:_MAX_CALL_IDS]
