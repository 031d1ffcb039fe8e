"""Find the turn that a request continues if its client writes the whole conversation into one user message.

Such a message grows from request to request: it is the message of the request before, its reply, and what the person
said then. Nothing less is enough, because people quote conversations, too.
"""

from __future__ import annotations

import re

from openclaw_rl.collect.reply_slot import ReactionMessages, mismatch
from openclaw_rl.collect.summary_match import NOT_REPLACED, ReplacedHistory
from openclaw_rl.common.message_hash import mark_message, reaction_signature, visible_text
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Request

# The name of a speaker at the start of a line, as in "User: " or "**Human**: ".
_SPEAKER = re.compile(r"\s*[*#<\[(|]{0,4}\w{1,20}[*>\])|]{0,4}:[*]{0,2}\s*")


def find_transcript(request: Request, seq: int, index: ExchangeIndex) -> ReplacedHistory:
    """Return the turn whose message and reply are the beginning of the only user message, and the words behind them."""
    marks = [mark for mark in request.marks if mark.role != "system"]
    if len(marks) != 1 or marks[0].role != "user" or not request.messages:
        return NOT_REPLACED
    (mark,) = marks
    text = visible_text(request.messages[mark.index])
    if "\n" not in text:
        return NOT_REPLACED
    turns = []
    words = ""
    for past, reply in index.main_replies_before(request.scope, seq):
        if reply and reply in text and past.ended_by(request.admitted_at):
            behind = _words_behind(text, past, reply, index)
            if behind and mismatch(request, past) is None:
                turns.append(past)
                words = behind
    if not turns:
        return NOT_REPLACED
    if len(turns) > 1:
        detail = f"ambiguous: its only message begins with {len(turns)} equal turns"
        return ReplacedHistory(unlinked=Reason(ReasonCode.AMBIGUOUS, detail))
    message = {"role": "user", "content": words}
    said = mark_message(message, index=mark.index, chain=mark.chain, key=index.secret)
    reaction = ReactionMessages(
        marks=(said,),
        signature=reaction_signature([said]),
        is_last=True,
        from_person=True,
        words=words,
    )
    return ReplacedHistory(turn=turns[0], reaction=reaction)


def _words_behind(text: str, past: ExchangeSummary, reply: str, index: ExchangeIndex) -> str:
    """Return what stands behind a reply, without the names of the speakers, if all before it is the past message.

    Empty if the assistant has spoken again since: the words are about a later reply.
    """
    messages = [m for m in index.messages(past) if m.get("role") not in ("system", "developer")]
    if len(messages) != 1:
        return ""
    asked = visible_text(messages[0])
    begins_at = text.rindex(reply)
    if "".join(text[:begins_at].split()) != "".join(asked.split()):
        return ""
    words = text[begins_at + len(reply) :].strip()
    # Where the assistant should speak, the message ends with its name.
    assistant = asked.rpartition("\n")[2].strip()
    if assistant and _SPEAKER.fullmatch(assistant):
        words = words.removesuffix(assistant).strip()
        if assistant in words:
            return ""
    speaker = _SPEAKER.match(words)
    # Another word with a colon, such as "No: ...", is the person's.
    if speaker is not None and speaker[0].strip() in asked:
        words = words[speaker.end() :]
    return words
