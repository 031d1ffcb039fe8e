"""Values that are computed once from a message or from the tools of a request, and cached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openclaw_rl.render.chat_template import SerializedTool


@dataclass(frozen=True, slots=True)
class MessageFeatures:
    """Values that are computed from one message."""

    own_hash: bytes
    role: str
    distinctive: bool
    is_ephemeral: bool
    template_message: dict[str, Any]  # the message as the template takes it
    sent_hash: bytes  # like `own_hash`, but includes text that the client inserts, because it changes the prompt
    origin: tuple[str, str] | None  # (session, agent) that the message states
    has_acting_token: bool


@dataclass(frozen=True, slots=True)
class ToolFeatures:
    """Values that are computed from a request's tools."""

    template_tools: list[SerializedTool]
    digest: bytes
    has_acting_token: bool
