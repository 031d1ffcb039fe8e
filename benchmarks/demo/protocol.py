"""The protocol: sessions of one person until three first replies in a row satisfy, and first replies before and after.

A session is one problem. The person reacts to each reply, and repeats the problem until a reply satisfies or the
session has `max_replies` replies. The last reaction is sent, too: a person does not leave without a word.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.evals.personalisation.people import PersonReaction, SimulatedPerson
from openclaw_rl.evals.toy_world import Question, draw_question
from openclaw_rl.types import Message

IN_A_ROW = 3
# Limit of the field's protocol.
MAX_SESSIONS = 72

AskReply = Callable[[Sequence[Message]], Awaitable[str]]
"""Returns the reply to a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLog:
    """A session: the reactions to its replies, in order."""

    question: Question
    reactions: tuple[PersonReaction, ...]

    @property
    def first(self) -> PersonReaction:
        """The reaction to the first reply, which alone counts."""
        return self.reactions[0]


async def run_session(
    send: AskReply,
    person: SimulatedPerson,
    question: Question,
    *,
    max_replies: int,
    heard: Callable[[str], None] = lambda text: None,
) -> SessionLog:
    """Run a session. `heard`: called with each reaction before the next reply is requested."""
    history: list[dict[str, str]] = [{"role": "user", "content": question.text}]
    reactions: list[PersonReaction] = []
    while True:
        reply = await send(history)
        if len(reactions) == max_replies or (reactions and reactions[-1].satisfied):
            return SessionLog(question=question, reactions=tuple(reactions))
        reaction = await person.react_to(question, reply)
        reactions.append(reaction)
        heard(reaction.text)
        text = reaction.text
        if not reaction.satisfied and len(reactions) < max_replies:
            text = f"{reaction.text} {question.text}"
        history.append({"role": "assistant", "content": reply})
        history.append({"role": "user", "content": text})


def problems_of(seed: int, name: str) -> Callable[[], Question]:
    """Return a function that draws the problems of a person's sessions; the same for the same person and seed."""
    rng = random.Random(f"{name}/{seed}/problems")
    return lambda: draw_question("asked", rng)


def sessions_until_satisfied(satisfied: Sequence[bool], in_a_row: int = IN_A_ROW) -> int | None:
    """Return the number of sessions until `in_a_row` first replies in a row satisfied, None if that never was."""
    run = 0
    for count, one in enumerate(satisfied, 1):
        run = run + 1 if one else 0
        if run == in_a_row:
            return count
    return None
