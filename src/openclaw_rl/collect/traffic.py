"""Classify requests as main or side traffic. Titles, heartbeats and memory flushes are never trained on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openclaw_rl.common.client_patterns import Pattern
from openclaw_rl.common.message_hash import text_of
from openclaw_rl.types import Kind, Message, Request

LONGEST_TASK = 1000
"""Characters. A side call's system message is its task. An agent's system message is far longer, and may mention
heartbeats, memory and titles without being a side call."""
_SHOWN = 60
# Agents prefix messages with the time.
_STAMP = re.compile(r"\s*(\[\w{3} \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]*\]\s*)?")


class Sides:
    """Classifier of requests by `collect.side_patterns` and `collect.interlude_patterns`."""

    def __init__(self, patterns: Sequence[str], interludes: Sequence[str] = ()) -> None:
        self._patterns = [Pattern(p) for p in patterns]
        self._interludes = [Pattern(p) for p in interludes]

    def certain(self, message: Message) -> bool:
        """Return whether the whole message is a client prompt, which no user typed."""
        text = _words(message)
        return any(p.fullmatch(text) for p in self._interludes)

    def why(self, message: Message) -> str | None:
        """Return the part of the text that makes this message look like a side call, or None."""
        text = _words(message)
        if any(p.fullmatch(text) for p in self._interludes):
            return text[:_SHOWN]
        found = next((m for p in self._patterns if (m := p.search(text))), None)
        return found.group()[:_SHOWN] if found else None

    def of(self, request: Request) -> tuple[Kind, str | None]:
        """Return the request's kind and, for side traffic, the reason: by the header, else by its messages.

        A redacted request has no text: without a header it counts as main (it is never trained on anyway).
        """
        if request.kind is not None:
            return request.kind, "the client declared it (X-Turn-Type)" if request.kind is Kind.SIDE else None
        for message in self._telling(request):
            if words := self.why(message):
                return Kind.SIDE, f'a message contains "{words}"'
        return Kind.MAIN, None

    def _telling(self, request: Request) -> list[Message]:
        """Return the messages to classify by: the last user message, and short system messages of a first request."""
        if not request.messages:
            return []
        users = [m for m in request.marks if m.role == "user"][-1:]
        if any(m.role == "assistant" for m in request.marks):  # a task in the system message has a single reply
            return [request.messages[m.index] for m in users]
        systems = [m for m in request.marks if m.role == "system"]
        brief = [m for m in systems if len(text_of(request.messages[m.index])) <= LONGEST_TASK]
        return [request.messages[m.index] for m in users + brief]


def _words(message: Message) -> str:
    text = text_of(message).strip()
    stamp = _STAMP.match(text)
    return text[stamp.end() :] if stamp else text
