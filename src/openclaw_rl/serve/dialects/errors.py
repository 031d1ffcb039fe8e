"""Error bodies in the wire format of the request path, also for paths without a handler."""

from __future__ import annotations

from openclaw_rl.serve.dialects.anthropic_messages import MessagesDialect
from openclaw_rl.serve.dialects.openai_chat import ChatDialect

MESSAGES_PATH = "/v1/messages"


def error_body(path: str, status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """Return an error body: Anthropic's format for the Messages paths, OpenAI's for all others."""
    dialect = MessagesDialect if (path + "/").startswith(MESSAGES_PATH + "/") else ChatDialect
    return dialect.error_body(status, message, param=param, code=code)
