"""Classify requests as main or side traffic. Titles, heartbeats and memory flushes are never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from openclaw_rl.collect.known_clients import KnownClients, PromptKind
from openclaw_rl.common.linear_regex import LinearPattern
from openclaw_rl.common.message_hash import message_text, strip_time_stamp, visible_text
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
        self._known = (
            {kind: KnownClients(kind) for kind in get_args(PromptKind)} if known_clients else {}
        )

    def is_client_prompt(self, message: Message) -> bool:
        """Return whether the message is a client prompt, which no user typed."""
        text = _message_text(message)
        return (
            any(p.fullmatch(text) for p in self._client_prompt_patterns)
            or self._match_known("user", text) is not None
        )

    def is_client_text(self, message: Message) -> bool:
        """Return whether a client program wrote this main message, or cleared its tool result."""
        kind: PromptKind = "cleared" if message.get("role") == "tool" else "continuation"
        return self._match_known(kind, _message_text(message)) is not None

    def is_acknowledgement(self, message: Message) -> bool:
        """Return whether a client program wrote this assistant message behind a text that it put into the history."""
        return (
            message.get("role") == "assistant"
            and self._match_known("acknowledgement", _message_text(message)) is not None
        )

    def introduced_summary(self, message: Message) -> str | None:
        """Return the text behind the words by which a known client introduces a summary of the earlier conversation."""
        text = visible_text(message)
        found = self._match_known("summary", text)
        return text[len(found) :].strip() if found is not None else None

    def _match_known(self, kind: PromptKind, text: str) -> str | None:
        return self._known[kind].match(text) if kind in self._known else None

    def side_pattern_match(self, message: Message, *, only_known: bool = False) -> str | None:
        """Return the part of the text that makes this message look like a side call, or None.

        `only_known`: only the whole prompts of known clients count, as the task of an episode may be about anything.
        """
        text = _message_text(message)
        if not only_known and any(p.fullmatch(text) for p in self._client_prompt_patterns):
            return text[:_SHOWN_CHARS]
        patterns = () if only_known else self._side_patterns
        if found := next((part for p in patterns if (part := p.find(text))), None):
            return found[:_SHOWN_CHARS]
        known = self._match_known(
            "system" if message.get("role") in _SYSTEM_ROLES else "user", text
        )
        return known[:_SHOWN_CHARS] if known is not None else None

    def classify_request(self, request: Request) -> tuple[Kind, str | None]:
        """Return the request's kind and, for side traffic, the reason: by the header, else by its messages.

        A redacted request has no text: without a header it counts as main (it is never trained on anyway).
        """
        if request.kind is not None:
            return (
                request.kind,
                "the client declared it (X-Turn-Type)" if request.kind is Kind.SIDE else None,
            )
        for message in self._classified_messages(request):
            if words := self.side_pattern_match(message, only_known=request.episode is not None):
                return Kind.SIDE, f'a message contains "{words}"'
        if request.messages and not any(m.role == "assistant" for m in request.marks):
            systems = (request.messages[m.index] for m in request.marks if m.role == "system")
            if words := next(
                (w for m in systems if (w := self._match_known("system", _message_text(m)))), None
            ):
                return Kind.SIDE, f'a system message starts with "{words[:_SHOWN_CHARS]}"'
        return Kind.MAIN, None

    def _classified_messages(self, request: Request) -> list[Message]:
        """Return the messages to classify by: the last user message, a system message after it, and short system
        messages of a first request."""
        if not request.messages:
            return []
        users = [m for m in request.marks if m.role == "user"][-1:]
        # The task of some clients comes last.
        users += [m for m in request.marks[-1:] if m.role == "system"]
        # A task in the system message has a single reply.
        if any(m.role == "assistant" for m in request.marks):
            return [request.messages[m.index] for m in users]
        systems = [m for m in request.marks if m.role == "system"]
        brief = [
            m for m in systems if len(message_text(request.messages[m.index])) <= MAX_TASK_CHARS
        ]
        return [request.messages[m.index] for m in users + brief]


def _message_text(message: Message) -> str:
    return strip_time_stamp(message_text(message).strip())
