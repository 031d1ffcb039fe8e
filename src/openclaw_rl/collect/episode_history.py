"""Find what a request of an episode continues if none of its messages is certainly an earlier reply.

The program may have replaced its history by a summary, may write it into one message, or may have dropped its begin
while its short replies are all equal. All earlier replies are of the same episode, so weak evidence is enough.
"""

from __future__ import annotations

from openclaw_rl.collect.summary_match import turn_before_summary
from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, visible_text
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Request


def find_continued_turn(request: Request, seq: int, index: ExchangeIndex) -> ExchangeSummary | None:
    """Return the turn that a request continues: the newest whose reply is its last assistant message or is quoted.

    If the newest quoted reply is a summary, the turn is the one before the summary.
    """
    last = None
    for mark in request.marks:
        if mark.role == "assistant":
            last = mark.own
    others = [message for message in request.messages if message.get("role") != "assistant"]
    text = "\n".join(map(visible_text, others))
    for past, reply in index.main_replies_before(request.scope, seq):
        if not past.ended_by(request.admitted_at):
            continue
        if past.reply_own == last:
            return past
        if len(reply) >= DISTINCTIVE_CHARS and reply in text:
            return _turn_of_summary(past, index) or past
    return None


def _turn_of_summary(past: ExchangeSummary, index: ExchangeIndex) -> ExchangeSummary | None:
    """Return the turn before `past` if its request has the history as messages, as the request for a summary has."""
    before = turn_before_summary(past, index)
    if before is None or before.reply_own not in index.message_hashes(past):
        return None
    return before
