"""Regular expressions that recognise messages written by a client program; the shipped ones are the defaults."""

from __future__ import annotations

import re

import yaml

from openclaw_rl.common.assets import read_asset

_SHIPPED = yaml.safe_load(read_asset("client_patterns.yaml"))
SYSTEM_REMINDER: str = _SHIPPED["ephemeral"]["system_reminder"]
LOCAL_COMMAND: str = _SHIPPED["ephemeral"]["local_command"]
EPHEMERAL_PATTERNS: tuple[str, ...] = tuple(_SHIPPED["ephemeral"].values())
SIDE_PATTERNS: tuple[str, ...] = tuple(_SHIPPED["side"])
CLIENT_PROMPT_PATTERNS: tuple[str, ...] = tuple(_SHIPPED["client_prompt"])
SHIPPED_PATTERNS = frozenset({*EPHEMERAL_PATTERNS, *SIDE_PATTERNS, *CLIENT_PROMPT_PATTERNS})
SEARCHED_CHARS = 16_384
"""Characters of a long text (its head and tail) that a pattern of the owner searches, as it may be slow."""


def head_and_tail(text: str, limit: int) -> str:
    """Return a text of more than `limit` characters without its middle."""
    return text if len(text) <= limit else f"{text[: limit // 2]}\n{text[-(limit // 2) :]}"


class ClientPattern:
    """A compiled expression; only a shipped one searches long texts in full. Raises `re.error` if it is invalid."""

    def __init__(self, expression: str, flags: int = 0) -> None:
        self._compiled = re.compile(expression, flags)
        self._searches_all = expression in SHIPPED_PATTERNS

    def search(self, text: str) -> re.Match[str] | None:
        return self._compiled.search(self._searched_text(text))

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._compiled.fullmatch(self._searched_text(text))

    def _searched_text(self, text: str) -> str:
        return text if self._searches_all else head_and_tail(text, SEARCHED_CHARS)
