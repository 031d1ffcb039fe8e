"""In whose shape the errors of a path leave: also those for which there is no handler."""

from __future__ import annotations

from openclaw_rl.serve.dialects.anthropic_messages import MessagesDialect
from openclaw_rl.serve.dialects.openai_chat import ChatDialect

MESSAGES = "/v1/messages"


def error(path: str, status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """An error body: Anthropic's for the Messages paths, OpenAI's for all others."""
    dialect = MessagesDialect if (path + "/").startswith(MESSAGES + "/") else ChatDialect
    return dialect.error(status, message, param=param, code=code)
