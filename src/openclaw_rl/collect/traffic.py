"""Classify requests as main or side traffic. Titles, heartbeats and memory flushes are never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from openclaw_rl.collect.known_clients import KnownClients, PromptKind, client_patterns
from openclaw_rl.common.linear_regex import LinearPattern
from openclaw_rl.common.message_hash import message_text, unstamped_text, visible_text
from openclaw_rl.types import Kind, Message, Request

MAX_TASK_CHARS = 1000
"""Characters. A side call's system message is its task. An agent's system message is far longer, and may mention
heartbeats, memory and titles without being a side call."""
_SHOWN_CHARS = 60
_SYSTEM_ROLES = frozenset({"system", "developer"})


class TrafficClassifier:
    """Classifier of requests by `collect.side_patterns`, `collect.client_prompt_patterns` and the known clients."""

    def __init__(
        self, patterns: Sequence[str], interludes: Sequence[str] = (), *, known_clients: bool = True
    ) -> None:
        self._side_patterns = [LinearPattern(p) for p in patterns]
        self._client_prompt_patterns = [LinearPattern(p) for p in interludes]
        self._known = {
            kind: KnownClients(client_patterns(kind) if known_clients else ())
            for kind in get_args(PromptKind)
        }

    def is_client_prompt(self, message: Message) -> bool:
        """Return whether the message is a client prompt, which no user typed."""
        text = unstamped_text(message)
        if any(pattern.fullmatch(text) for pattern in self._client_prompt_patterns):
            return True
        return self._known["user"].match(text) is not None

    def is_client_text(self, message: Message) -> bool:
        """Return whether a client program wrote this main message, or cleared its tool result."""
        kind: PromptKind = "cleared" if message.get("role") == "tool" else "continuation"
        return self._known[kind].match(unstamped_text(message)) is not None

    def is_acknowledgement(self, message: Message) -> bool:
        """Return whether a client program wrote this assistant message behind a text that it put into the history."""
        if message.get("role") != "assistant":
            return False
        return self._known["acknowledgement"].match(unstamped_text(message)) is not None

    def introduced_summary(self, message: Message) -> str | None:
        """Return the text behind the words by which a known client introduces a summary of the earlier conversation."""
        text = visible_text(message)
        introduction = self._known["summary"].match(text)
        return text[len(introduction) :].strip() if introduction is not None else None

    def classify_request(self, request: Request) -> tuple[Kind, str | None]:
        """Return the request's kind and, for side traffic, the reason: by the header, else by its messages.

        A redacted request has no text: without a header it counts as main (it is never trained on anyway).
        """
        if request.kind is Kind.SIDE:
            return request.kind, "the client declared it (X-Turn-Type)"
        if request.kind is not None:
            return request.kind, None
        if not request.messages:
            return Kind.MAIN, None
        by_role: dict[str, list[Message]] = {"user": [], "system": []}
        for mark in request.marks:
            by_role.setdefault(mark.role, []).append(request.messages[mark.index])
        # The last user message, and a system message after it: the task of some clients comes last.
        classified = by_role["user"][-1:]
        systems = by_role["system"]
        if request.marks and request.marks[-1].role == "system":
            classified.append(systems[-1])
        # A task in the system message has a single reply.
        if "assistant" in by_role:
            systems = []
        classified += [m for m in systems if len(message_text(m)) <= MAX_TASK_CHARS]
        only_known = request.episode is not None
        for message in classified:
            part = self.side_pattern_match(message, only_known=only_known)
            if part:
                return Kind.SIDE, f'a message contains "{part}"'
        for message in systems:
            part = self._known["system"].match(unstamped_text(message))
            if part:
                return Kind.SIDE, f'a system message starts with "{part[:_SHOWN_CHARS]}"'
        return Kind.MAIN, None

    def side_pattern_match(self, message: Message, *, only_known: bool = False) -> str | None:
        """Return the part of the text that makes this message look like a side call, or None.

        `only_known`: only the whole prompts of known clients count, as the task of an episode may be about anything.
        """
        text = unstamped_text(message)
        if not only_known:
            if any(pattern.fullmatch(text) for pattern in self._client_prompt_patterns):
                return text[:_SHOWN_CHARS]
            parts = (pattern.find(text) for pattern in self._side_patterns)
            part = next(filter(None, parts), None)
            if part is not None:
                return part[:_SHOWN_CHARS]
        kind: PromptKind = "system" if message.get("role") in _SYSTEM_ROLES else "user"
        part = self._known[kind].match(text)
        return part[:_SHOWN_CHARS] if part is not None else None
