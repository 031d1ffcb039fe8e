"""Find the messages that react to each reply of a request's history.

A client may leave thousands of side calls (heartbeats) between a reply and its reaction in the history. Each step from
one reply to the next is computed once, so that the time grows with the number of messages and not with its square.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise

from openclaw_rl.collect.reply_match import ReactionMessages, ReplyMatcher
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common.message_hash import reaction_signature, visible_text
from openclaw_rl.types import Mark, Request

_NO_USER = -1


class ReactionFinder:
    """The reactions in one request: messages of a person or a tool, without what only the client wrote."""

    def __init__(self, request: Request, sides: TrafficClassifier, matcher: ReplyMatcher) -> None:
        self._request = request
        self._sides = sides
        self._matcher = matcher
        self._next_reply = dict(pairwise(matcher.positions))
        self._ephemeral = sorted(
            set(range(len(request.messages))) - {mark.index for mark in request.marks}
        )
        users = (i if m.get("role") == "user" else _NO_USER for i, m in enumerate(request.messages))
        # Index of the last one before a message.
        self._last_user = [_NO_USER, *accumulate(users, max)]
        self._client_prompts: dict[int, bool] = {}
        # By position of an aside's reply: the rest of a reaction.
        self._after_aside: dict[int, tuple[Mark, ...]] = {}
        # The newest.
        self._signed: tuple[tuple[Mark, ...], tuple[tuple[Mark, ...], bytes | None]] | None = None

    def find_reaction(self, at: int) -> ReactionMessages:
        """Return the reaction to mark `at`, a reply."""
        marks, signature = self._without_client_texts(self._marks_after(at))
        if not any(m.role in ("user", "tool") for m in marks):
            return ReactionMessages(may_be_main=self._may_be_main(at))
        last = self._matcher.positions[-1]
        return ReactionMessages(
            marks=marks,
            signature=signature,
            is_last=at == last or marks[-1].index > self._request.marks[last].index,
            from_person=any(m.role == "user" for m in marks),
            may_be_main=self._may_be_main(at),
        )

    def _without_client_texts(
        self, marks: tuple[Mark, ...]
    ) -> tuple[tuple[Mark, ...], bytes | None]:
        """Return the marks of what a person or a tool wrote, and their signature."""
        # Several replies may have one tuple.
        if self._signed is None or self._signed[0] is not marks:
            messages = self._request.messages
            kept = tuple(
                m for m in marks if not (messages and self._sides.is_client_text(messages[m.index]))
            )
            self._signed = marks, (kept, reaction_signature(kept))
        return self._signed[1]

    def _may_be_main(self, at: int) -> bool:
        """Return whether the prompt of a reply is no client prompt (a heartbeat). False if the text was not stored."""
        if not self._request.messages:
            return False
        # May be ephemeral, e.g. the rest of a heartbeat.
        prompt = self._last_user[self._request.marks[at].index]
        return prompt == _NO_USER or not self._is_client_prompt(prompt)

    def _marks_after(self, at: int) -> tuple[Mark, ...]:
        """Return the marks of the reaction to mark `at`: everything up to the next reply of the main conversation.

        Side calls that some clients leave in the history (a heartbeat and its reply) are skipped, because their prompt
        is not a reaction. The reaction ends at the reply to a message that only resembles a client prompt, and at the
        reply to a wake if the user saw text of it. The request's own last messages are never skipped: its kind is
        known.
        """
        kept, aside = self._step(at, aside=False)
        rest = () if aside is None else self._marks_after_aside(aside)
        # Without `kept` the same tuple.
        return kept + rest if kept else rest

    def _marks_after_aside(self, at: int) -> tuple[Mark, ...]:
        steps: list[tuple[int, tuple[Mark, ...], int | None]] = []
        place: int | None = at
        while place is not None and place not in self._after_aside:
            kept, following = self._step(place, aside=True)
            steps.append((place, kept, following))
            place = following
        for place, kept, following in reversed(steps):
            rest = () if following is None else self._after_aside[following]
            self._after_aside[place] = kept + rest if kept else rest
        return self._after_aside[at]

    def _step(self, at: int, *, aside: bool) -> tuple[tuple[Mark, ...], int | None]:
        """Return what counts between a reply and the next one, and the position of that one if it is of a side call.

        `aside`: the reply at `at` is of a side call.
        """
        marks = self._request.marks
        end = self._next_reply.get(at)
        run = marks[at + 1 : end]
        if end is None:
            return run, None
        genuine = [m for m in run if not (m.role == "user" and self._is_client_prompt(m.index))]
        # tool results of a side call.
        used = aside and all(m.role == "tool" for m in genuine)
        kept = tuple(m for m in genuine if not (aside and m.role == "tool"))
        reply = marks[end]
        woken = self._has_wake_between(marks[at].index, reply.index)
        is_side = self._matcher.is_declared_side(reply) or (
            bool(run or woken) and (used or not genuine)
        )
        if not is_side or (woken and visible_text(self._request.messages[reply.index])):
            return kept, None
        return kept, end

    def _has_wake_between(self, after: int, before: int) -> bool:
        """Return whether a wake was between these messages. Clients keep its reply only if they showed it."""
        first = bisect_right(self._ephemeral, after)
        return any(
            map(
                self._is_client_prompt,
                self._ephemeral[first : bisect_left(self._ephemeral, before)],
            )
        )

    def _is_client_prompt(self, index: int) -> bool:
        if not self._request.messages:
            return False
        if index not in self._client_prompts:
            self._client_prompts[index] = self._sides.is_client_prompt(
                self._request.messages[index]
            )
        return self._client_prompts[index]
