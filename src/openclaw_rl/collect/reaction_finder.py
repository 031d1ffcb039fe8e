"""Pass 2 of linking: the messages that react to each reply of a request's history.

A client may leave thousands of side calls (heartbeats) between a reply and its reaction in the history. The pass goes
from the last reply to the first and reads the messages between two replies once, so that the time grows with the number
of messages and not with its square.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from openclaw_rl.collect.reply_slot import ReactionMessages, ReplySlot
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common.message_hash import reaction_signature, visible_text
from openclaw_rl.types import Mark, Request

_NO_USER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClientPrompts:
    """The messages before the last reply that are prompts of a client, such as a heartbeat."""

    indices: frozenset[int]  # in the request's messages
    # Those that are no part of the history, in order: wakes.
    wakes: Sequence[int]
    # For each message before the last reply, and for that one: the last user message before it.
    last_user: Sequence[int]


def find_reactions(
    slots: Sequence[ReplySlot], request: Request, sides: TrafficClassifier
) -> list[ReplySlot]:
    """Return the slots with their reactions: messages of a person or a tool, without what only the client wrote."""
    if not slots:
        return []
    messages = request.messages
    prompts = _find_client_prompts(slots, request, sides)
    last = slots[-1].mark.index
    read: tuple[Mark, ...] | None = None
    written: tuple[Mark, ...] = ()
    signature: bytes | None = None
    out = []
    for slot, behind in zip(slots, _marks_behind(slots, request, prompts), strict=True):
        # Behind each of many side calls is the same tuple, which is read once.
        if behind is not read:
            read = behind
            written = behind
            if messages:
                written = tuple(m for m in behind if not sides.is_client_text(messages[m.index]))
            signature = reaction_signature(written)
        # A client prompt may be transient, e.g. the rest of a heartbeat. False if the text was not stored.
        may_be_main = bool(messages) and prompts.last_user[slot.mark.index] not in prompts.indices
        reaction = ReactionMessages(may_be_main=may_be_main)
        roles = [mark.role for mark in written]
        if "user" in roles or "tool" in roles:
            reaction = ReactionMessages(
                marks=written,
                signature=signature,
                is_last=slot.mark.index == last or written[-1].index > last,
                from_person="user" in roles,
                is_behind_calls="user" in roles and (bool(slot.callers) or roles[0] == "tool"),
                may_be_main=may_be_main,
            )
        out.append(replace(slot, reaction=reaction))
    return out


def _find_client_prompts(
    slots: Sequence[ReplySlot], request: Request, sides: TrafficClassifier
) -> _ClientPrompts:
    messages = request.messages[: slots[-1].mark.index]
    of_history = {mark.index for mark in request.marks}
    indices = []
    users = []
    for index, message in enumerate(messages):
        is_user = message.get("role") == "user"
        users.append(index if is_user else _NO_USER)
        if (is_user or index not in of_history) and sides.is_client_prompt(message):
            indices.append(index)
    return _ClientPrompts(
        indices=frozenset(indices),
        wakes=[index for index in indices if index not in of_history],
        last_user=[_NO_USER, *accumulate(users, max)],
    )


def _marks_behind(
    slots: Sequence[ReplySlot], request: Request, prompts: _ClientPrompts
) -> list[tuple[Mark, ...]]:
    """Return the marks behind each reply, up to the next reply of the main conversation.

    Side calls that some clients leave in the history (a heartbeat and its reply) are skipped, because their prompt is
    not a reaction. The reaction ends at the reply to a message that only resembles a client prompt, and at the reply to
    a wake if the user saw text of it. The request's own last messages are never skipped: its kind is known.
    """
    end = request.marks[slots[-1].at + 1 :]
    out = [end]
    # The marks behind the following reply, if that one is of a side call.
    behind_side = end
    for slot, following in reversed(list(pairwise(slots))):
        between = request.marks[slot.at + 1 : following.at]
        genuine = tuple(mark for mark in between if mark.index not in prompts.indices)
        # Tool results behind the reply of a side call are of that call.
        without_tools = tuple(mark for mark in genuine if mark.role != "tool")
        # Whether a wake was between them. Clients keep its reply only if they showed it.
        first_wake = bisect_right(prompts.wakes, slot.mark.index)
        is_woken = first_wake < bisect_left(prompts.wakes, following.mark.index)
        is_shown = is_woken and bool(visible_text(request.messages[following.mark.index]))
        is_called = bool(between) or is_woken
        # What follows if the next reply is of a side call. An empty tuple and another one make the other one,
        # however many side calls are between.
        rest = () if is_shown else behind_side
        is_side = following.is_declared_side or (is_called and not genuine)
        is_side_after_side = following.is_declared_side or (is_called and not without_tools)
        out.append(genuine + (rest if is_side else ()))
        behind_side = without_tools + (rest if is_side_after_side else ())
    return out[::-1]
