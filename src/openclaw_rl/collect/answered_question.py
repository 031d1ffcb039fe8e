"""Find the exchanges that gave a distinctive reply to the question that stands in front of it.

The message right before a reply is a weak witness: programs leave out the calls and results of a tool loop, put
documents, memories or tasks around the newest question and take them away again, and merge or split messages. The
question itself stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from openclaw_rl.collect.reply_slot import ReplySlot
from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, visible_text
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Mark, Message, Request

MAX_QUESTION_MESSAGES = 4
MAX_CANDIDATES = 8
"""Messages of the person in one question, and exchanges with the same reply whose questions are read."""


def find_askers(slot: ReplySlot, request: Request, index: ExchangeIndex) -> list[ExchangeSummary]:
    """Return the exchanges with this distinctive reply that answered the question in front of it.

    Their question is one of its messages. If there are none: one of the two contains the other, with
    `DISTINCTIVE_CHARS` or more.
    """
    candidates = slot.same_text[-MAX_CANDIDATES:]
    question = _last_question(request.marks[: slot.at])
    if not candidates or not question:
        return []
    hashes = {mark.own for mark in question}
    asked = {id_: _last_question(marks) for id_, marks in index.marks(candidates).items()}
    equal = [
        past for past in candidates if any(mark.own in hashes for mark in asked.get(past.id, ()))
    ]
    if equal or not request.messages:
        return equal
    texts = list(_texts(question, request.messages))
    return [
        past
        for past in candidates
        if _is_contained(texts, _texts(asked.get(past.id, ()), index.messages(past)))
    ]


def _last_question(marks: Sequence[Mark]) -> Sequence[Mark]:
    """Return the last user message, with the user messages right before it: programs write some themselves."""
    end = len(marks)
    while end and marks[end - 1].role != "user":
        end -= 1
    start = end
    while start and marks[start - 1].role == "user":
        start -= 1
    return marks[max(start, end - MAX_QUESTION_MESSAGES) : end]


def _texts(marks: Iterable[Mark], messages: Sequence[Message]) -> Iterator[str]:
    """Yield the texts with single spaces: clients that merge messages put their own white space between them."""
    for mark in marks:
        if mark.index < len(messages):
            yield " ".join(visible_text(messages[mark.index]).split())


def _is_contained(texts: Sequence[str], asked: Iterable[str]) -> bool:
    """Return whether a text contains one of the others, or the other way round."""
    for past_text in asked:
        for text in texts:
            shorter, longer = sorted((text, past_text), key=len)
            if len(shorter) >= DISTINCTIVE_CHARS and shorter in longer:
                return True
    return False
