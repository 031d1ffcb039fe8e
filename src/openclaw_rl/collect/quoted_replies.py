"""Recognise replies of this gateway that stand in a request only inside other messages.

Some agents put the conversation before a hand-off into one message, or drop the messages with the tool calls. Such
replies are not linked, because a quotation does not show what the model saw. The reason is recorded.
"""

from __future__ import annotations

import re

from openclaw_rl.collect.reply_slot import mismatch
from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, message_text
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex
from openclaw_rl.types import Request

# As `render/tool_calls.py` makes them.
_CALL_ID = re.compile(r"\bcall_[0-9a-f]{24}\b")
_MAX_CALL_IDS = 100


def quotation_reason(request: Request, seq: int, index: ExchangeIndex) -> Reason | None:
    """Return why exchange number `seq` has no link although it has tool calls or texts of earlier replies, or None.

    The text of a reply does not count in a conversation's first message, because people quote replies there.
    """
    owners = index.by_tool_call(request.scope, _named_call_ids(request))
    callers = [past for pasts in owners.values() for past in pasts]
    if any(mismatch(request, past, any_agent=True) is None for past in callers):
        detail = (
            "its history names tool calls of this gateway, but has no assistant message with them"
        )
        return Reason(ReasonCode.QUOTED, detail)
    # No messages: redacted.
    if not request.messages or sum(mark.role != "system" for mark in request.marks) < 2:
        return None
    texts = [message_text(request.messages[mark.index]).strip() for mark in request.marks]
    for past, reply in index.main_replies_before(request.scope, seq):
        is_distinctive = len(reply) >= DISTINCTIVE_CHARS
        is_quoted = is_distinctive and any(reply in text and reply != text for text in texts)
        if is_quoted and mismatch(request, past, any_agent=True) is None:
            detail = "its history has a reply of this gateway only inside another message"
            return Reason(ReasonCode.QUOTED, detail)
    return None


def _named_call_ids(request: Request) -> list[str]:
    """Return the first ids of tool calls of this gateway that stand in the messages."""
    ids: dict[str, None] = {}
    for message in request.messages:
        for text in (str(message.get("tool_call_id") or ""), message_text(message)):
            ids |= dict.fromkeys(_CALL_ID.findall(text))
    return list(ids)[:_MAX_CALL_IDS]
