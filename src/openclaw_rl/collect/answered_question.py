"""Find the exchanges that gave a distinctive reply to the question that stands in front of it.

The message right before a reply is a weak witness: programs leave out the calls and results of a tool loop, put
documents, memories or tasks around the newest question and take them away again, and merge or split messages. The
question itself stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from openclaw_rl.collect.reply_slot import ReplySlot
from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, visible_text
from openclaw_rl.store.exchange_index import ExchangeIndex, ExchangeSummary
from openclaw_rl.types import Mark, Message, Request

MAX_QUESTION_MESSAGES = 4
MAX_CANDIDATES = 8
"""Messages of the person in one question, and exchanges with the same reply whose questions are read."""


def find_askers(slot: ReplySlot, request: Request, index: ExchangeIndex) -> list[ExchangeSummary]:
    """Return the exchanges with this distinctive reply that answered the question in front of it.

    Their question is one of its messages. If nobody asked these: one of the two contains the other, with
    `DISTINCTIVE_CHARS` or more.
    """
    candidates = slot.same_text
    if len(candidates) > MAX_CANDIDATES:
        # Of so many, several may fit.
        return []
    marks = index.marks(candidates)
    asked = {past.id: _last_question(marks.get(past.id, ())) for past in candidates}
    question = _last_question(request.marks[: slot.at])
    equal = [past for past in candidates if _hashes(question) & _hashes(asked[past.id])]
    if equal:
        return equal
    texts = _texts(question, request.messages)
    return [
        past
        for past in candidates
        if _is_contained(texts, _texts(asked[past.id], index.messages(past)))
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


def _hashes(marks: Iterable[Mark]) -> set[bytes]:
    return {mark.own for mark in marks}


def _texts(marks: Iterable[Mark], messages: Sequence[Message]) -> list[str]:
    """Return the texts with single spaces: clients that merge messages put their own white space between them.

    Without those that are not stored.
    """
    stored = [messages[mark.index] for mark in marks if mark.index < len(messages)]
    return [" ".join(visible_text(message).split()) for message in stored]


def _is_contained(texts: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether one of the texts contains one of the others, or the other way round."""
    for pair in product(texts, others):
        shorter, longer = sorted(pair, key=len)
        if len(shorter) >= DISTINCTIVE_CHARS and shorter in longer:
            return True
    return False
