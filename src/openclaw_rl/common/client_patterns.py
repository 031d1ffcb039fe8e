"""Regular expressions that recognise messages written by a client program; the shipped ones are the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.common.linear_regex import LinearPattern, PatternSet

_SHIPPED = read_yaml_asset("client_patterns.yaml")
SYSTEM_REMINDER: str = _SHIPPED["ephemeral"]["system_reminder"]
LOCAL_COMMAND: str = _SHIPPED["ephemeral"]["local_command"]
EPHEMERAL_PATTERNS: tuple[str, ...] = tuple(_SHIPPED["ephemeral"].values())
SIDE_PATTERNS: tuple[str, ...] = tuple(_SHIPPED["side"])
CLIENT_PROMPT_PATTERNS: tuple[str, ...] = tuple(_SHIPPED["client_prompt"])
_TYPED_DURING_RUN = LinearPattern(_SHIPPED["typed_during_run"])
# Texts whose result is remembered, and their greatest length.
_CACHED_TEXTS = 256
_MAX_CACHED_CHARS = 4096


class ClientContext:
    """Recognises text that a client program added, by patterns in which `.` matches line ends, too.

    Text that a person typed during a run never counts, whatever the patterns say.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = PatternSet()
        for pattern in patterns:
            self._patterns.add(f"(?s){pattern}")
        self._patterns.compile()
        # The newest message of a request is read several times: for its mark, for lessons, for hints.
        self._recognise_short = lru_cache(_CACHED_TEXTS)(self._recognise)

    def __call__(self, text: str) -> bool:
        if len(text) <= _MAX_CACHED_CHARS:
            return self._recognise_short(text)
        return self._recognise(text)

    def _recognise(self, text: str) -> bool:
        return bool(self._patterns.matching(text)) and not is_typed_during_run(text)


def is_typed_during_run(text: str) -> bool:
    """Return whether a text that a client sent has words that a person typed while the agent worked."""
    return _TYPED_DURING_RUN.matches(text)


def head_and_tail(text: str, limit: int) -> str:
    """Return a text of more than `limit` characters without its middle."""
    return text if len(text) <= limit else f"{text[: limit // 2]}\n{text[-(limit // 2) :]}"
