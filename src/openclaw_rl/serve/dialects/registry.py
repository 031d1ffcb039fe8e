"""Registry of the dialects. A new one needs its module and one entry here."""

from __future__ import annotations

from openclaw_rl.serve.dialects.anthropic_messages import MessagesDialect
from openclaw_rl.serve.dialects.base import Dialect
from openclaw_rl.serve.dialects.openai_chat import ChatDialect
from openclaw_rl.serve.dialects.openai_responses import ResponsesDialect

DIALECTS: tuple[type[Dialect], ...] = (ChatDialect, ResponsesDialect, MessagesDialect)


def error_body(path: str, status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """Return an error body in the format of the dialect that owns `path`: OpenAI's if none does."""
    owner = next((d for d in DIALECTS if (path + "/").startswith(d.path + "/")), Dialect)
    return owner.error_body(status, message, param=param, code=code)
