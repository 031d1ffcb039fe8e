"""Registry of the dialects. A new one needs its module and one entry here."""

from __future__ import annotations

from openclaw_rl.errors import PromptTooLong
from openclaw_rl.serve.dialects.anthropic_messages import MessagesDialect
from openclaw_rl.serve.dialects.base import Dialect
from openclaw_rl.serve.dialects.openai_chat import ChatDialect
from openclaw_rl.serve.dialects.openai_completions import CompletionsDialect
from openclaw_rl.serve.dialects.openai_responses import ResponsesDialect

DIALECTS: tuple[type[Dialect], ...] = (
    ChatDialect,
    CompletionsDialect,
    ResponsesDialect,
    MessagesDialect,
)


def error_body(
    path: str, status: int, message: str, *, param: str | None = None, code: str | None = None
) -> bytes:
    """Return an error body in the format of the dialect that owns `path`: OpenAI's if none does."""
    return _path_owner(path).error_body(status, message, param=param, code=code)


def prompt_too_long(path: str, error: PromptTooLong) -> tuple[str, str]:
    """Return message and field for a prompt that is too long, in the words of the dialect that owns `path`."""
    owner = _path_owner(path)
    return owner.prompt_too_long(error), owner.prompt_field


def _path_owner(path: str) -> type[Dialect]:
    return next((d for d in DIALECTS if (path + "/").startswith(d.path + "/")), Dialect)
