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
from openclaw_rl.types import Mark, Request

# The name of a speaker at the start of a line, as in "User: " or "**Human**: ".
_SPEAKER = re.compile(r"\s*[*#<\[(|]{0,4}\w{1,20}[*>\])|]{0,4}:[*]{0,2}\s*")


def find_transcript(request: Request, seq: int, index: ExchangeIndex) -> ReplacedHistory:
    """Return the turn whose message and reply are the beginning of the only user message, and what is said behind."""
    mark = _only_message(request)
    if mark is None:
        return NOT_REPLACED
    text = visible_text(request.messages[mark.index])
    turns = {
        past: _text_behind(text, past, reply, index)
        for past, reply in index.main_replies_before(request.scope, seq)
        if reply and reply in text
    }
    continued = [
        past
        for past, rest in turns.items()
        if rest and past.ended_by(request.admitted_at) and mismatch(request, past) is None
    ]
    if not continued:
        return NOT_REPLACED
    if len(continued) > 1:
        detail = f"ambiguous: its only message begins with {len(continued)} equal turns"
        return ReplacedHistory(unlinked=Reason(ReasonCode.AMBIGUOUS, detail))
    (turn,) = continued
    message = {"role": "user", "content": turns[turn]}
    spoken = mark_message(message, index=mark.index, chain=mark.chain, key=index.secret)
    reaction = ReactionMessages(
        marks=(spoken,),
        signature=reaction_signature([spoken]),
        is_last=True,
        from_person=True,
        spoken=turns[turn],
    )
    return ReplacedHistory(turn=turn, reaction=reaction)


def _only_message(request: Request) -> Mark | None:
    """Return the user message of a request that has no other message but instructions, if it has several lines."""
    marks = [mark for mark in request.marks if mark.role != "system"]
    is_only = [mark.role for mark in marks] == ["user"]
    if not is_only or not request.messages or request.episode is not None:
        return None
    return marks[0] if "\n" in visible_text(request.messages[marks[0].index]) else None


def _text_behind(text: str, past: ExchangeSummary, reply: str, index: ExchangeIndex) -> str:
    """Return what stands behind a reply, without the names of the speakers, if all before it is the past message.

    Empty if the assistant has spoken again since: then it is about a later reply.
    """
    before, _, rest = text.rpartition(reply)
    messages = [m for m in index.messages(past) if m.get("role") not in ("system", "developer")]
    asked = "\n".join(map(visible_text, messages))
    if len(messages) != 1 or before.split() != asked.split():
        return ""
    rest = rest.strip()
    # Where the assistant should speak, the message ends with its name.
    assistant = asked.rpartition("\n")[2].strip()
    if _SPEAKER.fullmatch(assistant):
        rest = rest.removesuffix(assistant).strip()
        if assistant in rest:
            return ""
    speaker = _SPEAKER.match(rest)
    # Another word with a colon, such as "No: ...", is the person's.
    if speaker is not None and speaker[0].strip() in asked:
        rest = rest[speaker.end() :]
    return rest
